"""MimiC's and FedLaAvg's exact trajectories with the memory at the clients: the real strategies and rules.

With memory at the server they are in test_golden.py. Of the reference's variants, `no_handshake` shows what
goes wrong without our protocol, and is not checked.
"""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from devices import Device
from fakes import TableManager
from test_golden import gradient, make_strategy


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trajectory" not in metafunc.fixturenames:
        return
    with open(metafunc.config.getoption("--golden")) as file:
        golden = json.load(file)
    cases = [
        pytest.param((golden["problems"][case["problem"]], case, name), id=f"{case['id']}-{name}")
        for case in golden["cases"]
        if case["method"] in ("mimic", "fedlaavg")
        for name, variant in case["variants"].items()
        if variant["opts"].get("handshake", True)
    ]
    metafunc.parametrize("trajectory", cases)


def close(got: Any, expected: Any, what: str) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11, err_msg=what)


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant = case["variants"][name]
    strategy = make_strategy(problem, case, {**variant["opts"], "memory": "client"})
    devices = [
        Device(client["n"], partial(gradient, problem, k)) for k, client in enumerate(problem["clients"])
    ]
    manager = TableManager()
    parameters = strategy.initialize_parameters(manager)
    for t in range(1, case["rounds"] + 1):
        events = [event for event in case.get("events", []) if event["round"] == t]
        manager.arrived = [event["cid"] for event in events if event["type"] == "arrive"]
        manager.departed = [event["cid"] for event in events if event["type"] == "depart"]
        if "available" in case:
            steps = [case["hyper"]["E"] * there for there in case["available"][t - 1]]
        else:
            steps = case["steps"][t - 1]
        if "eta" in case:
            eta = case["eta"][t - 1] if isinstance(case["eta"], list) else case["eta"]
            strategy.options = replace(strategy.options, global_rate=eta)
        manager.online = [client for client, s in enumerate(steps) if s > 0]
        results = []
        for proxy, instruction in strategy.configure_fit(t, parameters, manager):
            client = int(proxy.cid)
            result = devices[client].fit(instruction, steps[client])
            if name == case["primary"] == "client_side":
                sent = next(r for r in case["replies"][t - 1] if r["cid"] == client)
                close(devices[client].sent[0], sent["v_i"], f"upload of {client} in round {t}")
            if [t, client] not in case.get("lost", []):
                n = 0 if [t, client] in case.get("data_less", []) else result.num_examples
                results.append((proxy, replace(result, num_examples=n)))
        parameters, _ = strategy.aggregate_fit(t, results[::-1], [])
        close(strategy.weights, variant["w"][t - 1], f"round {t}")
    if variant["opts"].get("client_side"):  # what the clients know, who have not seen the last v
        for client, c in variant["state"]["c"].items():
            close(devices[int(client)].correction, c, f"c of {client}")
    if case["method"] == "fedlaavg":
        gone = strategy.roster.gone & ~strategy.roster.member
        latest = [np.array(u) for k, u in variant["state"]["u"].items() if not gone[int(k)]]
        close(strategy.latest.total, np.sum(latest, axis=0), "sum of u")
