"""MimiC's and FedLaAvg's exact trajectories with the memory at the clients: the real strategies and rules.

With memory at the server they are in test_golden.py. The reference's variant `no_handshake` shows what goes
wrong where a client takes every reply for accepted.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from devices import Device
from fakes import TableManager
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from golden_cases import variants
from test_golden import devices_of, make_strategy


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trajectory" in metafunc.fixturenames:
        metafunc.parametrize("trajectory", variants(metafunc.config, ("mimic", "fedlaavg")))


def believing(instruction: FitIns, device: Device, v: list[np.ndarray]) -> FitIns:
    """The task that the server would send if it had accepted the client's last reply."""
    memory = device.memory
    tag = memory.tag if memory.pending is None else memory.pending_tag
    w = parameters_to_ndarrays(instruction.parameters)[0]
    config = {**instruction.config, "last-accepted": tag}
    return FitIns(ndarrays_to_parameters([w, v[tag]] if tag else [w]), config)


def close(got: Any, expected: Any, what: str) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11, err_msg=what)


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant = case["variants"][name]
    strategy = make_strategy(problem, case, {**variant["opts"], "memory": "client"})
    devices = devices_of(problem)
    manager = TableManager()
    parameters, v = strategy.initialize_parameters(manager), [np.zeros(len(case["w0"]))]
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
            if not variant["opts"].get("handshake", True):
                instruction = believing(instruction, devices[client], v)
            result = devices[client].fit(instruction, steps[client])
            if name == case["primary"] == "client_side":
                sent = next(r for r in case["replies"][t - 1] if r["cid"] == client)
                close(devices[client].sent[0], sent["v_i"], f"upload of {client} in round {t}")
            if [t, client] not in case.get("lost", []):
                n = 0 if [t, client] in case.get("data_less", []) else result.num_examples
                results.append((proxy, replace(result, num_examples=n)))
        before = strategy.weights.copy()
        parameters, _ = strategy.aggregate_fit(t, results[::-1], [])
        if "eta" in case:
            v.append((before - strategy.weights) / eta)
        close(strategy.weights, variant["w"][t - 1], f"round {t}")
    if variant["opts"].get("client_side"):  # as the clients compute it, without the last v
        for client, c in variant["state"]["c"].items():
            close(devices[int(client)].correction, c, f"c of {client}")
    if case["method"] == "fedlaavg":
        gone = strategy.roster.departed & ~strategy.roster.member
        latest = [np.array(u) for k, u in variant["state"]["u"].items() if not gone[int(k)]]
        close(strategy.latest.total, np.sum(latest, axis=0), "sum of u")
