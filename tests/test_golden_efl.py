"""EFL's exact trajectories of an independent reference, by the real strategy and the real client rule."""

from typing import Any

import numpy as np
import pytest
import torch
from golden_cases import cases, close, devices_of, play, strategy_of, variants

import clients.rules.elastic
import fedtide.base.contract.ternary
from strategies.core.parameters import decode

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


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant = case["variants"][name]
    own = {key: case["hyper"][key] for key in ("q", "lam")} | variant["opts"]
    options = {OPTIONS.get(key, key): value for key, value in own.items()}
    strategy, devices = strategy_of(problem, case, "efl", **options), devices_of(problem)
    for t, before, replies in play(case, strategy, devices):
        for client, result in replies.items() if name == case["primary"] else ():
            expected = next(r for r in case["replies"][t - 1] if r["cid"] == client)
            sent, _, extra = decode(result.parameters, strategy.rule, before)
            if extra:  # the local weights are known where Fisher information is computed
                close(devices[client].update, expected["delta"], "delta")
            close(sent, expected["sent"], "sent")
            for array, symbol in zip(extra, "uv", strict=False):
                close(array, expected[symbol], symbol)
        assert strategy.report.rejected == []
        close(strategy.weights, variant["wc"][t - 1], f"clients' model of round {t}")
        close(strategy.weights + strategy.drift, variant["w"][t - 1], f"model of round {t}")
        close(strategy.residual, variant["RG"][t - 1], f"RG of round {t}")
    accepted = strategy.roster.accepted
    for client, expected in variant["state"]["R"].items():
        device = devices[int(client)]
        state = device.memory.open(int(accepted[int(client)]))[0].committed
        if strategy.roster.departed[int(client)]:  # it keeps its R, but would start anew if it returned
            state = device.state()
        close(state.get("residual", np.zeros(len(case["w0"]))), expected, f"R of {client}")
    if strategy.options.elasticity:  # otherwise they are not computed
        close(strategy.precision, variant["state"]["U"], "U")
        close(strategy.weighted, variant["state"]["V"], "V")


def test_ternary(vector: Any) -> None:
    case, name = vector
    ties, rounding = name.split("/")
    T, expected = np.array(case["T"]), case["expect"][name]
    k = fedtide.base.contract.ternary.kept(len(T), case["q"], rounding)
    close(fedtide.base.contract.ternary.ternary(T, k, ties), expected, "server")
    close(clients.rules.elastic.ternary(torch.from_numpy(T), k, ties).numpy(), expected, "client")
