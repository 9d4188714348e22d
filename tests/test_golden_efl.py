"""EFL's exact trajectories of an independent reference, by the real strategy and the real client rule."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from fakes import TableManager
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from test_golden import gradient

import clients.rules.ternary
import strategies
import strategies.parts.ternary
from clients.memory.handshake import Memory
from clients.training import rule_of
from strategies import Roster

OPTIONS = {"objective": "departure", "lam": "elasticity", "q": "sparsity"}  # others have our names


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    with open(metafunc.config.getoption("--golden")) as file:
        golden = json.load(file)
    if "trajectory" in metafunc.fixturenames:
        cases = [
            pytest.param((golden["problems"][case["problem"]], case, name), id=f"{case['id']}-{name}")
            for case in golden["cases"]
            if case["method"] == "efl"
            for name in case["variants"]
        ]
        metafunc.parametrize("trajectory", cases)
    if "vector" in metafunc.fixturenames:
        cases = [
            pytest.param((case, name), id=f"{case['id']}-{name}")
            for case in golden["cases"]
            if case["method"] == "ST"
            for name in case["expect"]
        ]
        metafunc.parametrize("vector", cases)


def fisher(problem: dict[str, Any], client: int, w: np.ndarray) -> np.ndarray:
    """Diagonal of A^T A, or mean p (1 - p) x^2."""
    data = problem["clients"][client]
    if problem["type"] == "quadratic":
        curvature = np.array(data["H"]) if "H" in data else np.transpose(data["A"]) @ np.array(data["A"])
        return np.diag(curvature).copy()
    X = np.array(data["X"])
    p = 1 / (1 + np.exp(-X @ w))
    return (p * (1 - p)) @ X**2 / len(X)


def work(
    problem: dict[str, Any], client: int, instruction: FitIns, steps: int, memory: Memory
) -> tuple[FitRes, np.ndarray, Memory]:
    """What the real client code answers, on the problem's gradients; its update, its memory."""
    w, *arrays = [torch.from_numpy(array) for array in parameters_to_ndarrays(instruction.parameters)]
    config = instruction.config
    memory, _ = memory.open(int(config["last-accepted"]))
    state = {key: torch.from_numpy(value) for key, value in memory.committed.items()}
    y, rule, rate = w.clone(), rule_of(config)(w, arrays, config, state), float(config["learning-rate"])
    rule.fisher = lambda at: torch.from_numpy(fisher(problem, client, at.numpy()))
    for _ in range(steps):
        rule.step(y, lambda at: torch.from_numpy(gradient(problem, client, at.numpy())), rate)
    new = {key: value.numpy() for key, value in rule.remember(y, steps, rate).items()}
    sent = [y] * rule.sends_weights + rule.upload(y, steps, rate)
    parameters = ndarrays_to_parameters([array.numpy() for array in sent])
    metrics: Any = {"steps": steps, "round": config["round"]}
    result = FitRes(Status(Code.OK, ""), parameters, problem["clients"][client]["n"], metrics)
    return result, (y - w).numpy(), memory.stage(int(config["round"]), new)


def make_strategy(problem: dict[str, Any], case: dict[str, Any], options: dict[str, Any]) -> Any:
    sizes = np.array([client["n"] for client in problem["clients"]])
    members = np.zeros(len(sizes), bool)
    members[case.get("initial_members", range(len(sizes)))] = True
    rates: Any = case["lr"] if isinstance(case["lr"], list) else [case["lr"]] * case["rounds"]
    schedule: Any = lambda _, t, shift, E: rates[t - 1]  # noqa: E731
    hyper = {"q": case["hyper"]["q"], "lam": case["hyper"]["lam"]}
    own = {OPTIONS.get(key, key): value for key, value in (hyper | options).items()}
    return strategies.make(
        "efl",
        ndarrays_to_parameters([np.array(case["w0"])]),
        Roster(sizes, members),
        local_steps=case["hyper"]["E"],
        lr_schedule=schedule,
        **own,
    )


def close(got: Any, expected: Any, what: str) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11, err_msg=what)


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant = case["variants"][name]
    strategy = make_strategy(problem, case, variant["opts"])
    memories = {client: Memory() for client in range(len(problem["clients"]))}
    manager = TableManager()
    parameters = strategy.initialize_parameters(manager)
    for t in range(1, case["rounds"] + 1):
        events = [event for event in case.get("events", []) if event["round"] == t]
        manager.arrived = [event["cid"] for event in events if event["type"] == "arrive"]
        manager.departed = [event["cid"] for event in events if event["type"] == "depart"]
        steps = case["steps"][t - 1]
        manager.online = [client for client, s in enumerate(steps) if s > 0]
        results = []
        for proxy, instruction in strategy.configure_fit(t, parameters, manager):
            client = int(proxy.cid)
            result, delta, memories[client] = work(
                problem, client, instruction, steps[client], memories[client]
            )
            if name == case["primary"]:
                expected = next(r for r in case["replies"][t - 1] if r["cid"] == client)
                vector, extra = strategy.decode(result.parameters)
                close(delta, expected["delta"], "delta")
                close(vector - strategy.weights, expected["sent"], "sent")
                for array, symbol in zip(extra, "uv", strict=False):
                    close(array, expected[symbol], symbol)
            if [t, client] not in case.get("lost", []):
                results.append((proxy, result))
        parameters, _ = strategy.aggregate_fit(t, results[::-1], [])
        assert strategy.rejected == []
        close(strategy.weights, variant["wc"][t - 1], f"clients' model of round {t}")
        close(strategy.weights + strategy.drift, variant["w"][t - 1], f"model of round {t}")
        close(strategy.residual, variant["RG"][t - 1], f"RG of round {t}")
    accepted = strategy.roster.accepted
    for client, expected in variant["state"]["R"].items():
        state = memories[int(client)].open(int(accepted[int(client)]))[0].committed
        close(state.get("residual", np.zeros(len(case["w0"]))), expected, f"R of {client}")
    if strategy.options.elasticity:  # else nobody asks for them
        close(strategy.precision, variant["state"]["U"], "U")
        close(strategy.weighted, variant["state"]["V"], "V")


def test_ternary(vector: Any) -> None:
    case, name = vector
    ties, rounding = name.split("/")
    T, expected = np.array(case["T"]), case["expect"][name]
    k = strategies.parts.ternary.kept(len(T), case["q"], rounding)
    close(strategies.parts.ternary.ternary(T, k, ties), expected, "server")
    close(clients.rules.ternary.ternary(torch.from_numpy(T), k, ties).numpy(), expected, "client")
