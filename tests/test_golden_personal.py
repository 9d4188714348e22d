"""Exact trajectories of APFL and pFedMe: the real strategies, the real rules, the real client memory."""

from typing import Any

import numpy as np
import pytest
import torch
from fakes import TableManager
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from golden_cases import variants
from test_golden import devices_of

import strategies
from clients.rules import rule_named
from flexfl.ground.contract import FitConfig
from strategies import Roster

OPTIONS = {"vgrad": "gradient", "alpha_mode": "alpha_mode", "theta_init": "start"}
VALUES = {"chain": "chain-rule"}  # the reference's words for ours
HYPER = {"alpha": "alpha", "lam": "penalty", "plr": "personal_rate", "K": "inner_steps", "beta": "beta"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "personal_trajectory" in metafunc.fixturenames:
        metafunc.parametrize("personal_trajectory", variants(metafunc.config, ("apfl", "pfedme")))


def check(got: Any, expected: Any, what: str) -> None:
    np.testing.assert_allclose(np.squeeze(got), expected, rtol=1e-9, atol=1e-11, err_msg=what)


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
    strategy = strategies.make(
        case["method"],
        ndarrays_to_parameters([np.array(case["w0"])]),
        Roster(np.array([client["n"] for client in problem["clients"]])),
        local_steps=case["hyper"]["E"],
        learning_rate=case["lr"],
        **options,
    )
    devices = devices_of(problem)
    manager, server_round = TableManager(), 0
    parameters = strategy.initialize_parameters(manager)
    for t, steps in enumerate(case["steps"]):
        if lose:
            server_round += 1
            manager.online = range(len(devices))
            for proxy, instruction in strategy.configure_fit(server_round, parameters, manager):
                devices[int(proxy.cid)].fit(instruction, 2)
            parameters, _ = strategy.aggregate_fit(server_round, [], [])
        server_round += 1
        manager.online = [client for client, s in enumerate(steps) if s > 0]
        results = []
        for proxy, instruction in strategy.configure_fit(server_round, parameters, manager):
            client = int(proxy.cid)
            result = devices[client].fit(instruction, steps[client])
            if name == case["primary"]:
                sent = next(r for r in case["replies"][t] if r["cid"] == client)
                check(devices[client].update, sent["delta"], f"delta of {client}")
                for symbol in ("v", "alpha", "theta"):
                    if f"{symbol}_new" in sent:
                        check(devices[client].state()[symbol], sent[f"{symbol}_new"], f"{symbol} of {client}")
            results.append((proxy, result))
        parameters, _ = strategy.aggregate_fit(server_round, results[::-1], [])
        check(strategy.weights, variant["w"][t], "w")
        manager.online = range(len(devices))
        asked = strategy.configure_evaluate(server_round, parameters, manager)
        assert [int(proxy.cid) for proxy, _ in asked] == list(manager.online)
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
