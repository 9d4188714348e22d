"""MimiC's and FedLaAvg's exact trajectories with the memory at the clients: the real strategies and rules.

With memory at the server they are in test_golden.py. The reference's variant `no_handshake` shows what goes
wrong where a client takes every reply for accepted.
"""

from typing import Any

import numpy as np
import pytest
from devices import Device
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from golden_cases import close, devices_of, eta, play, variants
from test_golden import make_strategy


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


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant = case["variants"][name]
    strategy = make_strategy(problem, case, {**variant["opts"], "memory": "client"})
    devices, v = devices_of(problem), [np.zeros(len(case["w0"]))]

    def told(client: int, instruction: FitIns) -> FitIns:
        handshake = variant["opts"].get("handshake", True)
        return instruction if handshake else believing(instruction, devices[client], v)

    for t, before, sent in play(case, strategy, devices, told):
        for client in sent if name == case["primary"] == "client_side" else ():
            expected = next(r for r in case["replies"][t - 1] if r["cid"] == client)
            close(devices[client].sent[0], expected["v_i"], f"upload of {client} in round {t}")
        if "eta" in case:
            v.append((before.vector - strategy.weights) / eta(case, t))
        close(strategy.weights, variant["w"][t - 1], f"round {t}")
    if variant["opts"].get("client_side"):  # as the clients compute it, without the last v
        for client, c in variant["state"]["c"].items():
            close(devices[int(client)].correction, c, f"c of {client}")
    if case["method"] == "fedlaavg":
        gone = strategy.roster.departed & ~strategy.roster.member
        latest = [np.array(u) for k, u in variant["state"]["u"].items() if not gone[int(k)]]
        close(strategy.latest.total, np.sum(latest, axis=0), "sum of u")
