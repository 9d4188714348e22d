"""Exact trajectories with the memory at the clients: MimiC, FedLaAvg and FOCUS, real strategies and rules.

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
        metafunc.parametrize("trajectory", variants(metafunc.config, ("mimic", "fedlaavg", "focus")))


def believing(instruction: FitIns, device: Device, v: list[np.ndarray]) -> FitIns:
    """The task that the server would send if it had accepted the client's last reply."""
    memory = device.memory
    tag = memory.tag if memory.pending is None else memory.pending_tag
    w, *own = parameters_to_ndarrays(instruction.parameters)
    config = {**instruction.config, "last-accepted": tag}
    if config["rule"] == "kept-gradient":  # n_k, for the new gradient and for the old one
        return FitIns(ndarrays_to_parameters([w, own[0], own[0]]), config)
    return FitIns(ndarrays_to_parameters([w, v[tag]] if tag else [w]), config)


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant = case["variants"][name]
    strategy = make_strategy(problem, case, {**variant["opts"], "memory": "client"})
    devices, v = devices_of(problem), [np.zeros(len(case["w0"]))]

    def told(client: int, instruction: FitIns) -> FitIns:
        handshake = variant["opts"].get("handshake", True)
        without_data = [devices[client].memory.pending_tag, client] in case.get("data_less", [])
        return instruction if handshake or without_data else believing(instruction, devices[client], v)

    for t, before, sent in play(case, strategy, devices, told):
        for client in sent if name == case["primary"] == "client_side" else ():
            expected = next(r for r in case["replies"][t - 1] if r["cid"] == client)
            close(devices[client].sent[0], expected["v_i"], f"upload of {client} in round {t}")
        if "eta" in case:
            v.append((before.vector - strategy.weights) / eta(case, t))
        close(strategy.weights, variant["w"][t - 1], f"round {t}")
    if "c" in variant.get("state", {}) and variant["opts"].get(
        "client_side"
    ):  # as the clients compute it, without the last v
        for client, c in variant["state"]["c"].items():
            close(devices[int(client)].correction, c, f"c of {client}")
    gone = strategy.roster.departed & ~strategy.roster.member
    if case["method"] == "fedlaavg":
        latest = [np.array(u) for k, u in variant["state"]["u"].items() if not gone[int(k)]]
        close(strategy.latest.total, np.sum(latest, axis=0), "sum of u")
    if case["method"] == "focus":
        G = {int(k): np.array(G) * strategy.sizes[int(k)] for k, G in variant["state"]["G"].items()}
        for client, value in G.items():
            close(devices[client].state()["latest"], value, f"n G of {client}")
        if variant["opts"].get("handshake", True):
            close(
                strategy.latest.total, np.sum([v for k, v in G.items() if not gone[k]], axis=0), "sum of n G"
            )
