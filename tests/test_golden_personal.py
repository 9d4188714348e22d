"""Exact trajectories of APFL and pFedMe: the real strategies, the real rules, the real client memory."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from fakes import TableManager, reply
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from test_golden import gradient

import strategies
from clients.memory.handshake import Memory
from clients.training import rule_of
from strategies import Roster

OPTIONS = {"vgrad": "gradient", "alpha_mode": "alpha_mode", "theta_init": "start"}
HYPER = {"alpha": "alpha", "lam": "penalty", "plr": "personal_rate", "K": "inner_steps", "beta": "beta"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "personal_trajectory" not in metafunc.fixturenames:
        return
    with open(metafunc.config.getoption("--golden")) as file:
        golden = json.load(file)
    cases = [
        pytest.param((golden["problems"][case["problem"]], case, name), id=f"{case['id']}-{name}")
        for case in golden["cases"]
        if case["method"] in ("apfl", "pfedme")
        for name in case["variants"]
    ]
    metafunc.parametrize("personal_trajectory", cases)


class Phone:
    """A client in float64: the real rule and the real memory on the problem's gradients."""

    def __init__(self, problem: dict[str, Any], client: int) -> None:
        self.problem, self.client, self.memory = problem, client, Memory()

    def oracle(self, at: torch.Tensor) -> torch.Tensor:
        """The gradient, in memory that the next call overwrites."""
        self.buffer = getattr(self, "buffer", torch.empty_like(at))
        return self.buffer.copy_(torch.from_numpy(gradient(self.problem, self.client, at.numpy())))

    def open(self, parameters: Any, config: Any) -> tuple[torch.Tensor, Any, Memory]:
        w, *arrays = [torch.from_numpy(array) for array in parameters_to_ndarrays(parameters)]
        memory, resync = self.memory.open(config["last-accepted"])
        assert not resync
        state = {key: torch.from_numpy(value.copy()) for key, value in memory.committed.items()}
        return w, rule_of(config)(w, arrays, config, state), memory

    def fit(self, instruction: FitIns, steps: int) -> np.ndarray:
        w, rule, memory = self.open(instruction.parameters, instruction.config)
        y, rate = w.clone(), instruction.config["learning-rate"]
        for _ in range(steps):
            rule.step(y, self.oracle, rate)
        state = {key: value.numpy() for key, value in rule.remember(y, steps, rate).items()}
        self.memory = memory.stage(instruction.config["round"], state)
        return (y - w).numpy()

    def state(self) -> dict[str, np.ndarray]:
        """The newest state, which holds if the last reply was accepted."""
        return dict(self.memory.committed if self.memory.pending is None else self.memory.pending)


def check(got: Any, expected: Any, what: str) -> None:
    np.testing.assert_allclose(np.squeeze(got), expected, rtol=1e-9, atol=1e-11, err_msg=what)


@pytest.mark.parametrize("lose", [False, True])
def test_personal_trajectory(personal_trajectory: Any, lose: bool) -> None:
    """With `lose`, a lost round comes before each round, which must not change anything."""
    problem, case, name = personal_trajectory
    variant = case["variants"][name]
    options = {HYPER[key]: value for key, value in case["hyper"].items() if key in HYPER}
    options |= {OPTIONS[key]: value for key, value in variant["opts"].items() if value != "exact"}
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
    phones = [Phone(problem, client) for client in range(len(problem["clients"]))]
    manager, server_round = TableManager(), 0
    parameters = strategy.initialize_parameters(manager)
    for t, steps in enumerate(case["steps"]):
        if lose:
            server_round += 1
            manager.online = range(len(phones))
            for proxy, instruction in strategy.configure_fit(server_round, parameters, manager):
                phones[int(proxy.cid)].fit(instruction, 2)
            parameters, _ = strategy.aggregate_fit(server_round, [], [])
        server_round += 1
        manager.online = [client for client, s in enumerate(steps) if s > 0]
        results = []
        for proxy, instruction in strategy.configure_fit(server_round, parameters, manager):
            client = int(proxy.cid)
            delta = phones[client].fit(instruction, steps[client])
            if name == case["primary"]:
                sent = next(r for r in case["replies"][t] if r["cid"] == client)
                check(delta, sent["delta"], f"delta of {client}")
                for symbol in ("v", "alpha", "theta"):
                    if f"{symbol}_new" in sent:
                        check(phones[client].state()[symbol], sent[f"{symbol}_new"], f"{symbol} of {client}")
            results.append((proxy, reply(instruction, delta, problem["clients"][client]["n"])))
        parameters, _ = strategy.aggregate_fit(server_round, results[::-1], [])
        check(strategy.weights, variant["w"][t], "w")
        manager.online = range(len(phones))
        asked = strategy.configure_evaluate(server_round, parameters, manager)
        assert [int(proxy.cid) for proxy, _ in asked] == list(manager.online)
        for proxy, question in asked:
            _, rule, memory = phones[int(proxy.cid)].open(question.parameters, question.config)
            if "personal" in variant:
                check(rule.personal(), variant["personal"][t][proxy.cid], f"personal model of {proxy.cid}")
            for symbol, values in variant["state"].items() if t + 1 == case["rounds"] else ():
                check(memory.committed[symbol], values[proxy.cid], f"{symbol} of {proxy.cid}")
