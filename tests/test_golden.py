"""Exact trajectories of an independent reference, through the real strategies.

`pytest --golden FILE` checks another file of the same format.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_engine_sequential
import test_strategies_definitions
import test_strategies_feddyn
from golden_cases import cases, close, devices_of, play, strategy_of, variants

from fedtide.plan import METHODS as ALL
from strategies import Roster
from strategies.core.options import Staircase, Theorem
from strategies.memory.models import HeldModels
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
    "fedasync": "fedasync",
    "focus": "focus",
    "amp_scaffold": "amplified-scaffold",
    "fedexp": "fedexp",
    "fedacg": "fedacg",
    "ghbm": "ghbm",
}
# What the reference does where a variant does not say otherwise: literally the papers, not our defaults.
REFERENCE: dict[str, dict[str, Any]] = {
    "mifa": {"normalize": False, "empty": "move"},
    "fedlaavg": {"units": "update", "weights": "none", "normalize": False, "empty": "move"},
    "mimic": {"rate": "paper"},
    "fedau": {"cutoff": 0, "normalize": False},
    "fedvarp": {"weights": "uniform", "units": "update", "normalize": False},
    "f3ast": {"weights": "uniform", "normalize": False},
    "fedexp": {"epsilon": 0.0, "units": "update"},
}
OPTIONS = {  # others have our names
    "peak": "reboot_peak",
    "objective": "departure",
    "unseen": "first_round",
    "eta_g": "server_rate",
    "gamma": "server_rate",
    "P": "period",
    "B": "buffer",
    "a": "staleness",
}
OWN_OPTIONS = {  # where one word means another option of a method
    "amp_scaffold": {"gamma": "gamma"},
    "ghbm": {"C": "share"},
}
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
    "delay": "delay",
}
TRANSPORT = {"client_side": True, "handshake": False}
HYPER = {  # what only the case's name or its hyper-parameters say
    "vrlsgd-2-warmup": {"warm_up": True},
    "f3ast-1": {"rate_memory": 0.1},
    "f3ast-2-members": {"rate_memory": 0.05},
    "ampscaffold-2-members": {"period": 3, "gamma": 1.4},
}
ONES = np.ones(10)  # FOCUS keeps n_k G_k
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


def make_strategy(problem: dict[str, Any], case: dict[str, Any], options: dict[str, Any]) -> Any:
    inner = case["hyper"].get("inner", case["method"])
    own = {key: case["hyper"][key] for key in ("weights", "peak") if key in case["hyper"]}
    return strategy_of(
        problem,
        case,
        METHODS[inner],
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
        names.get(key, key): VALUES.get(key, {}).get(value, value)
        for key, value in options.items()
        if key not in TRANSPORT and key not in layer
    }


def anchor(anchors: Any, client: Any) -> Any:
    """GHBM's: what the client was sent, or its local model."""
    assert client[0] in anchors
    return anchors.of(client[0]).vector if isinstance(anchors, HeldModels) else anchors.read(client)[0]


def check_state(strategy: Any, expected: dict[str, Any]) -> None:
    """The method's own state after the last round, by the symbols of the papers."""
    read = {
        "G": lambda client: strategy.latest.read(client)[0] / getattr(strategy, "sizes", ONES)[client[0]],
        "u": lambda client: strategy.latest.read(client)[0],
        "c": lambda client: strategy.corrections.read(client)[0],
        "T": lambda client: getattr(strategy, "last", strategy.roster.accepted)[client[0]],
        "ci": lambda client: strategy.table.read(client)[0],
        "omega": lambda client: strategy.intervals.means(client, strategy.round + 1)[0],
        "age": lambda client: strategy.round - strategy.intervals.start[client[0]],
        "seen": lambda client: strategy.intervals.ended[client[0]],
        "y": lambda client: strategy.latest.read(client)[0] / strategy.sizes[client[0]],
        "r": lambda client: strategy.rate(client)[0],
        "x": lambda client: strategy.task(client[0]).weights.vector,
        "d": lambda client: strategy.tracked.read(client)[0],
        "D": lambda client: strategy.tracked.read(client)[0],
        "anchors": lambda client: anchor(strategy.anchors, client),
    }
    if "version" in expected:
        assert strategy.version == expected["version"]
        assert strategy.buffer.clients.tolist() == [client for client, _ in expected["waiting"]]
    if isinstance(c := expected.get("c"), list):  # SCAFFOLD's, a single vector
        close(strategy.control, c)
        del read["c"]
    for symbol in {"m", "v", "h", "anchor"} & expected.keys():
        (layer,) = strategy.layers
        if hasattr(layer, symbol):
            close(getattr(layer, symbol), expected[symbol])
    if "momentum" in expected:
        close(strategy.m, expected["momentum"])
    for symbol in read.keys() & expected.keys():
        for client, value in expected[symbol].items():
            close(read[symbol](np.array([int(client)])), value, f"{symbol} of {client}")


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant = case["variants"][name]
    strategy, devices = make_strategy(problem, case, variant["opts"]), devices_of(problem)
    delays = {(task, client): delay for task, client, delay in case.get("late", [])}
    for t, _, sent in play(case, strategy, devices):
        assert strategy.learning_rate == pytest.approx(variant["lr_used"][t - 1], rel=1e-12)
        if "selected" in variant:
            assert strategy.selected.tolist() == variant["selected"][t - 1]
        for client in sent if name == case["primary"] else ():
            arrival = t + delays.get((t, client), 0)
            if arrival <= case["rounds"]:
                reply = next(r for r in case["replies"][arrival - 1] if r["cid"] == client)
                close(devices[client].update, reply["delta"])
        w = strategy.weights
        if "xbar" in variant:
            close(w, variant["xbar"][t - 1])
            w = strategy.models.of(10**9).vector  # the newest
        (model,) = strategy.model(strategy.initialize_parameters(None))
        if "sent" in variant:
            close(w, variant["sent"][t - 1])
            w = model
        close(w, variant["w"][t - 1])
        if "evaluated" in variant:
            close(model, variant["evaluated"][t - 1])
        if "factor" in variant:
            assert strategy.report.measured.get("extrapolation") == pytest.approx(variant["factor"][t - 1])
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
    close(got, schedule["expect"])


def test_every_case_is_played(request: pytest.FixtureRequest) -> None:
    """A case of a method that no test file takes would pass without a word."""
    methods = {case["method"] for _, case in cases(request.config)}
    elsewhere = {"efl", "ST", "apfl", "pfedme", "schedule"}
    elsewhere |= {"participation", "fedau_weights", "event", "initial_model", "similarity"}
    assert methods <= set(METHODS) | set(LAYERS) | elsewhere


def test_every_method_is_checked() -> None:
    """By trajectories of the reference, or by formulas in NumPy, client by client."""
    by_formula: dict[str, Any] = {
        "cafed": test_strategies_definitions.test_cafed,
        "feddyn": test_strategies_feddyn.test_trajectories_are_those_of_the_algorithm,
        "fedstale": test_strategies_definitions.test_fedstale,
        "sequential-sgd": test_engine_sequential.test_its_trajectory_is_gradient_descent_on_the_union,
    }
    by_reference = {*METHODS.values(), "efl", "apfl", "pfedme"}
    assert sorted([*by_reference, *by_formula]) == sorted(ALL)
    root = Path(__file__).parents[1]
    assert re.search(rf"{len(ALL)} methods from [^.]*?, all\s+tested", (root / "README.md").read_text())
    (line,) = re.findall("All methods but .*", (root / "docs" / "methods-common.md").read_text())
    assert {*re.findall("`([a-z-]+)`", line)} == {*by_formula}
