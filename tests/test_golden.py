"""Exact trajectories of an independent reference, through the real strategies.

`pytest --golden FILE` checks another file of the same format.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from devices import Device
from fakes import TableManager
from flwr.common import ndarrays_to_parameters
from golden_cases import cases, variants

import strategies
from strategies import Roster
from strategies.core.schedules import Constant, Staircase, Theorem
from strategies.parts.amplification import Amplification
from strategies.parts.reboot import boost
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS

METHODS = {
    "fedavg": "fedavg",
    "fedsgd": "fedsgd",
    "ruan_A": "scheme-a",
    "ruan_B": "scheme-b",
    "ruan_C": "scheme-c",
    "mifa": "mifa",
    "fedlaavg": "fedlaavg",
    "mimic": "mimic",
    "fedprox": "fedprox",
    "scaffold": "scaffold",
    "fedgate": "fedgate",
    "vrlsgd": "vrl-sgd",
    "fednova": "fednova",
    "fedau": "fedau",
    "fedvarp": "fedvarp",
    "f3ast": "f3ast",
    "fedawe": "fedawe",
    "fedbuff": "fedbuff",
    "amp_scaffold": "amplified-scaffold",
}
# What the reference does where a variant does not say otherwise: literally the papers, not our defaults.
REFERENCE: dict[str, dict[str, Any]] = {
    "mifa": {"normalize": False, "empty": "move"},
    "fedlaavg": {"units": "update", "weights": "none", "normalize": False, "empty": "move"},
    "mimic": {"rate": "paper"},
    "fedau": {"cutoff": 0, "normalize": False},
    "fedvarp": {"weights": "uniform", "units": "update", "normalize": False},
    "f3ast": {"weights": "uniform", "normalize": False},
}
OPTIONS = {
    "weights": "weights",
    "peak": "reboot_peak",
    "objective": "departure",
    "unseen": "first_round",
    "normalize": "normalize",
    "empty": "empty",
    "units": "units",
    "mu": "mu",
    "eta_g": "server_rate",
    "gamma": "server_rate",
    "mode": "mode",
    "memory": "memory",
    "q": "q",
    "tau": "tau",
    "cutoff": "cutoff",
    "beta": "beta",
    "estimator": "estimator",
    "r0": "r0",
    "scale": "scale",
    "P": "period",
    "B": "buffer",
    "a": "staleness",
    "max_lag": "max_lag",
    "renorm": "renorm",
    "clip": "clip",
}
OWN_OPTIONS = {"amp_scaffold": {"gamma": "gamma"}}  # where one word means another option of a method
VALUES = {  # the reference's words for ours
    "units": {"mean": "gradient", "grad": "gradient"},
    "mode": {"perstep": "per-step"},
    "tau": {"E": "planned"},
    "scale": {"K": "k"},
}
# Memory at the clients (mimic-4-client: client_side, no_handshake) is in test_golden_memory.py.
LAYERS = ("fedopt", "amplified")  # on top of a method, hyper.inner
OPTIMIZER_OPTIONS = {
    "eta": "rate",
    "b1": "beta1",
    "b2": "beta2",
    "tau": "tau",
    "v0": "start",
    "bias": "bias",
}
TRANSPORT = {"client_side": True, "handshake": False}
HYPER = {  # what only the case's name or its hyper-parameters say
    "vrlsgd-2-warmup": {"warm_up": True},
    "f3ast-1": {"rate_memory": 0.1},
    "f3ast-2-members": {"rate_memory": 0.05},
    "ampscaffold-2-members": {"period": 3, "gamma": 1.4},
}
SCHEDULES = {"staircase", "shares", "theorem31_rate", "boost"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trajectory" in metafunc.fixturenames:
        metafunc.parametrize("trajectory", variants(metafunc.config, [*METHODS, *LAYERS], **TRANSPORT))
    if "schedule" in metafunc.fixturenames:
        schedules = [
            pytest.param(case, id=case["id"])
            for _, case in cases(metafunc.config)
            if case["method"] == "schedule" and case["kind"] in SCHEDULES
        ]
        metafunc.parametrize("schedule", schedules)


def gradient(problem: dict[str, Any], client: int, w: np.ndarray) -> np.ndarray:
    data = problem["clients"][client]
    if problem["type"] == "quadratic":
        curvature = np.array(data["H"]) if "H" in data else np.transpose(data["A"]) @ np.array(data["A"])
        return curvature @ (w - np.array(data["e"]))
    X, y = np.array(data["X"]), np.array(data["y"])
    return X.T @ (1 / (1 + np.exp(-X @ w)) - y) / len(y) + problem["l2"] * w


def devices_of(problem: dict[str, Any]) -> list[Device]:
    """The problem's clients, with the real client code."""
    return [
        Device(client["n"], partial(gradient, problem, k), partial(fisher, problem, k))
        for k, client in enumerate(problem["clients"])
    ]


def fisher(problem: dict[str, Any], client: int, w: np.ndarray) -> np.ndarray:
    """Diagonal of A^T A, or mean p (1 - p) x^2."""
    data = problem["clients"][client]
    if problem["type"] == "quadratic":
        curvature = np.array(data["H"]) if "H" in data else np.transpose(data["A"]) @ np.array(data["A"])
        return np.diag(curvature).copy()
    X = np.array(data["X"])
    p = 1 / (1 + np.exp(-X @ w))
    return (p * (1 - p)) @ X**2 / len(X)


def make_strategy(problem: dict[str, Any], case: dict[str, Any], options: dict[str, Any]) -> Any:
    sizes = np.array([client["n"] for client in problem["clients"]])
    members = np.zeros(len(sizes), bool)
    members[case.get("initial_members", range(len(sizes)))] = True
    staircase, rates = case["lr"] is None, case["lr"]
    inner = case["hyper"].get("inner", case["method"])
    own = {key: case["hyper"][key] for key in ("weights", "peak") if key in case["hyper"]}
    schedule: Any = Staircase() if staircase else Constant()
    if isinstance(rates, list):
        schedule = lambda _, t, shift, E: rates[t - 1]  # noqa: E731
    return strategies.make(
        METHODS[inner],
        ndarrays_to_parameters([np.array(case["w0"])]),
        Roster(sizes, members),
        local_steps=case["hyper"]["E"],
        learning_rate=case["hyper"]["eta0"] if staircase else 1.0 if isinstance(rates, list) else rates,
        lr_schedule=schedule,
        clients_per_round=case["hyper"].get("K", 0) if "available" in case else 0,
        layers=layers_of(options, case["hyper"]) if case["method"] in LAYERS else (),
        **REFERENCE.get(inner, {}) | ours(own | options, case["method"]) | HYPER.get(case["id"], {}),
    )


def layers_of(options: dict[str, Any], hyper: dict[str, Any]) -> tuple[Any, ...]:
    """The server optimiser or the amplification of a case."""
    given = {key: hyper[key] for key in ("P", "amplify") if key in hyper} | options
    if "amplify" in given:
        return (partial(Amplification, period=given["P"], factor=given["amplify"]),)
    if "opt" not in given:
        return ()
    values = {"tau2": "tau"}
    own = {
        OPTIMIZER_OPTIONS[key]: values.get(value, value)
        for key, value in given.items()
        if key in OPTIMIZER_OPTIONS
    }
    return (partial(SERVER_OPTIMIZERS[given["opt"]], **own),)


def ours(options: dict[str, Any], method: str) -> dict[str, Any]:
    """A variant's options under the names of the strategy's."""
    names = OPTIONS | OWN_OPTIONS.get(method, {})
    layer = {*OPTIMIZER_OPTIONS, "opt", "amplify", "P"} if method in LAYERS else set()
    return {
        names[key]: VALUES.get(key, {}).get(value, value)
        for key, value in options.items()
        if key not in TRANSPORT and key not in layer
    }


def check_state(strategy: Any, expected: dict[str, Any]) -> None:
    """The method's own state after the last round, by the symbols of the papers."""
    read = {
        "G": lambda client: strategy.latest.read(client)[0],
        "u": lambda client: strategy.latest.read(client)[0],
        "c": lambda client: strategy.corrections.read(client)[0],
        "T": lambda client: getattr(strategy, "last", strategy.roster.accepted)[client[0]],
        "ci": lambda client: strategy.table.read(client)[0],
        "omega": lambda client: strategy.intervals.means(client, strategy.round + 1)[0],
        "y": lambda client: strategy.latest.read(client)[0] / strategy.sizes[client[0]],
        "r": lambda client: strategy.rate(client)[0],
        "x": lambda client: strategy.task(client[0]).weights.vector,
        "d": lambda client: strategy.tracked.read(client)[0],
        "D": lambda client: strategy.tracked.read(client)[0],
    }
    if "version" in expected:
        assert strategy.version == expected["version"]
        assert strategy.buffer.clients.tolist() == [client for client, _ in expected["waiting"]]
    if isinstance(c := expected.get("c"), list):  # SCAFFOLD's, a single vector
        np.testing.assert_allclose(strategy.control, c, rtol=1e-9, atol=1e-11)
        del read["c"]
    for symbol in {"m", "v", "anchor"} & expected.keys():
        (layer,) = strategy.layers
        if hasattr(layer, symbol):
            np.testing.assert_allclose(getattr(layer, symbol), expected[symbol], rtol=1e-9, atol=1e-11)
    for symbol in read.keys() & expected.keys():
        for client, value in expected[symbol].items():
            got = read[symbol](np.array([int(client)]))
            np.testing.assert_allclose(got, value, rtol=1e-9, atol=1e-11, err_msg=f"{symbol} of {client}")


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant = case["variants"][name]
    strategy = make_strategy(problem, case, variant["opts"])
    devices = devices_of(problem)
    manager = TableManager()
    parameters = strategy.initialize_parameters(manager)
    delays = {(task, client): delay for task, client, delay in case.get("late", [])}
    arrivals: dict[int, list[Any]] = {}
    for t in range(1, case["rounds"] + 1):
        events = [event for event in case.get("events", []) if event["round"] == t]
        manager.arrived = [event["cid"] for event in events if event["type"] == "arrive"]
        manager.departed = [event["cid"] for event in events if event["type"] == "depart"]
        if "available" in case:  # the server selects K of these, who do all of their work
            steps = [case["hyper"]["E"] * there for there in case["available"][t - 1]]
        else:
            steps = case["steps"][t - 1]
        if "eta" in case:  # the server's own rate
            eta = case["eta"][t - 1] if isinstance(case["eta"], list) else case["eta"]
            strategy.options = replace(strategy.options, global_rate=eta)
        manager.working = [
            int(proxy.cid) for at in range(t, case["rounds"] + 5) for proxy, _ in arrivals.get(at, [])
        ]
        manager.online = [client for client, s in enumerate(steps) if s > 0]
        instructions = strategy.configure_fit(t, parameters, manager)
        assert strategy.learning_rate == pytest.approx(variant["lr_used"][t - 1], rel=1e-12)
        if "selected" in variant:
            assert strategy.selected.tolist() == variant["selected"][t - 1]
        for proxy, instruction in instructions:
            client = int(proxy.cid)
            result = devices[client].fit(instruction, steps[client])
            arrival = t + delays.get((t, client), 0)
            if name == case["primary"] and arrival <= case["rounds"]:
                sent = next(r for r in case["replies"][arrival - 1] if r["cid"] == client)
                np.testing.assert_allclose(devices[client].update, sent["delta"], rtol=1e-9, atol=1e-11)
            if [t, client] in case.get("lost", []):
                continue
            n = 0 if [t, client] in case.get("data_less", []) else result.num_examples
            arrivals.setdefault(arrival, []).append((proxy, replace(result, num_examples=n)))
        parameters, _ = strategy.aggregate_fit(t, arrivals.pop(t, [])[::-1], [])
        w = strategy.weights
        if "xbar" in variant:
            np.testing.assert_allclose(w, variant["xbar"][t - 1], rtol=1e-9, atol=1e-11)
            w = strategy.models.of(10**9).vector  # the newest
        np.testing.assert_allclose(w, variant["w"][t - 1], rtol=1e-9, atol=1e-11)
    check_state(strategy, variant.get("state", {}))


def test_schedule(schedule: Any) -> None:
    kind, args = schedule["kind"], schedule["args"]
    if kind == "shares":
        got = Roster(np.array(list(args["n"].values()))).shares
    elif kind == "theorem31_rate":
        theorem = Theorem(mu=args["mu"], gamma=args["gamma"], work=args["Eps"])
        shift = args["tau0"]
        got = [theorem(1.0, shift + i, shift, args["E"]) for i in range(1, args["rounds"] + 1)]
    elif kind == "boost":
        rounds = np.arange(1, len(schedule["expect"]) + 1)
        got = [boost(int(t), args.get("peak", 3.0)) for t in rounds]
    else:
        shifts = [0, *args["shifts"]]
        rounds = range(1, args["rounds"] + 1)
        got = [Staircase()(args["eta0"], t, max(s for s in shifts if s < t), 1) for t in rounds]
    np.testing.assert_allclose(got, schedule["expect"], rtol=1e-9, atol=1e-11)


def test_boost_of_the_paper() -> None:
    """3 p at first (Ruan et al. 5.3), then 1.5 p and 1.222 p."""
    np.testing.assert_allclose([boost(t) for t in (1, 2, 3)], [3, 1.5, 1 + 2 / 9])


def test_every_case_is_played(request: pytest.FixtureRequest) -> None:
    """A case of a method that no test file takes would pass without a word."""
    methods = {case["method"] for _, case in cases(request.config)}
    elsewhere = {"efl", "ST", "apfl", "pfedme", "schedule"}
    elsewhere |= {"participation", "fedau_weights"}
    assert methods <= set(METHODS) | set(LAYERS) | elsewhere
