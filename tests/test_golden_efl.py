"""EFL's exact trajectories of an independent reference, by the real strategy and the real client rule."""

from typing import Any

import numpy as np
import pytest
import torch
from fakes import TableManager
from flwr.common import ndarrays_to_parameters
from golden_cases import cases, variants
from test_golden import devices_of

import clients.rules.ternary
import flexfl.ground.contract.ternary
import strategies
from strategies import Roster
from strategies.core.decoding import decode

OPTIONS = {"objective": "departure", "lam": "elasticity", "q": "sparsity"}  # others have our names


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trajectory" in metafunc.fixturenames:
        metafunc.parametrize("trajectory", variants(metafunc.config, ("efl",)))
    if "vector" in metafunc.fixturenames:
        vectors = [
            pytest.param((case, name), id=f"{case['id']}-{name}")
            for _, case in cases(metafunc.config)
            if case["method"] == "ST"
            for name in case["expect"]
        ]
        metafunc.parametrize("vector", vectors)


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
    devices = devices_of(problem)
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
            result = devices[client].fit(instruction, steps[client])
            if name == case["primary"]:
                expected = next(r for r in case["replies"][t - 1] if r["cid"] == client)
                sent, _, extra = decode(result.parameters, strategy.rule, parameters)
                if extra:  # the local weights are known where Fisher information is computed
                    close(devices[client].update, expected["delta"], "delta")
                close(sent, expected["sent"], "sent")
                for array, symbol in zip(extra, "uv", strict=False):
                    close(array, expected[symbol], symbol)
            if [t, client] not in case.get("lost", []):
                results.append((proxy, result))
        parameters, _ = strategy.aggregate_fit(t, results[::-1], [])
        assert strategy.report.rejected == []
        close(strategy.weights, variant["wc"][t - 1], f"clients' model of round {t}")
        close(strategy.weights + strategy.drift, variant["w"][t - 1], f"model of round {t}")
        close(strategy.residual, variant["RG"][t - 1], f"RG of round {t}")
    accepted = strategy.roster.accepted
    for client, expected in variant["state"]["R"].items():
        device = devices[int(client)]
        state = device.memory.open(int(accepted[int(client)]))[0].committed
        if strategy.roster.departed[
            int(client)
        ]:  # it keeps its R, although it would start anew if it returned
            state = device.state()
        close(state.get("residual", np.zeros(len(case["w0"]))), expected, f"R of {client}")
    if strategy.options.elasticity:  # otherwise they are not computed
        close(strategy.precision, variant["state"]["U"], "U")
        close(strategy.weighted, variant["state"]["V"], "V")


def test_ternary(vector: Any) -> None:
    case, name = vector
    ties, rounding = name.split("/")
    T, expected = np.array(case["T"]), case["expect"][name]
    k = flexfl.ground.contract.ternary.kept(len(T), case["q"], rounding)
    close(flexfl.ground.contract.ternary.ternary(T, k, ties), expected, "server")
    close(clients.rules.ternary.ternary(torch.from_numpy(T), k, ties).numpy(), expected, "client")
