"""Exact trajectories of APFL and pFedMe: the real strategies, the real rules, the real client memory."""

from typing import Any

import numpy as np
import pytest
import torch
from fakes import TableManager
from flwr.common import parameters_to_ndarrays
from golden_cases import close, devices_of, play, strategy_of, variants

from clients.rules import rule_named
from fedtide.base.contract import FitConfig

OPTIONS = {"vgrad": "gradient", "alpha_mode": "alpha_mode", "theta_init": "start"}
VALUES = {"chain": "chain-rule"}  # the reference's words for ours
HYPER = {"alpha": "alpha", "lam": "penalty", "plr": "personal_rate", "K": "inner_steps", "beta": "beta"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "personal_trajectory" in metafunc.fixturenames:
        metafunc.parametrize("personal_trajectory", variants(metafunc.config, ("apfl", "pfedme")))


def check(got: Any, expected: Any, what: str) -> None:
    close(np.squeeze(got), expected, what)


@pytest.mark.parametrize("lose", [False, True])
def test_personal_trajectory(personal_trajectory: Any, lose: bool) -> None:
    """With `lose`, every round is preceded by one whose replies are lost, which must change nothing."""
    problem, case, name = personal_trajectory
    variant = case["variants"][name]
    options = {HYPER[key]: value for key, value in case["hyper"].items() if key in HYPER}
    options |= {
        OPTIONS[key]: VALUES.get(value, value) for key, value in variant["opts"].items() if value != "exact"
    }
    if name == "exact":  # the reference's closed form of theta is where many inner steps end
        options["inner_steps"] = 500
    strategy, devices = strategy_of(problem, case, case["method"], **options), devices_of(problem)
    manager = TableManager()
    manager.online = everybody = range(len(devices))
    played = case
    if lose:
        steps = [row for steps in case["steps"] for row in ([2] * len(devices), steps)]
        lost = [[t, client] for t in range(1, len(steps), 2) for client in everybody]
        played = {**case, "rounds": len(steps), "steps": steps, "lost": lost}
    for number, _, sent in play(played, strategy, devices):
        if lose and number % 2:
            continue
        t = (number - 1) // (1 + lose)
        for client in sent if name == case["primary"] else ():
            expected = next(r for r in case["replies"][t] if r["cid"] == client)
            check(devices[client].update, expected["delta"], f"delta of {client}")
            for symbol in ("v", "alpha", "theta"):
                if f"{symbol}_new" in expected:
                    check(devices[client].state()[symbol], expected[f"{symbol}_new"], f"{symbol} of {client}")
        check(strategy.weights, variant["w"][t], "w")
        asked = strategy.configure_evaluate(number, strategy.initialize_parameters(manager), manager)
        assert [int(proxy.cid) for proxy, _ in asked] == [*everybody]
        for proxy, question in asked:
            config = FitConfig.from_wire(question.config)
            memory, resync = devices[int(proxy.cid)].memory.open(config.last_accepted)
            assert not resync
            w = torch.from_numpy(parameters_to_ndarrays(question.parameters)[0])
            state = {key: torch.from_numpy(value) for key, value in memory.committed.items()}
            rule = rule_named(config.rule)(w, [], config, state)
            if "personal" in variant:
                check(rule.personal(), variant["personal"][t][proxy.cid], f"personal model of {proxy.cid}")
            for symbol, values in variant["state"].items() if t + 1 == case["rounds"] else ():
                check(memory.committed[symbol], values[proxy.cid], f"{symbol} of {proxy.cid}")
