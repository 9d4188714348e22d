"""The rules of APFL and pFedMe against autograd and closed forms, for one client and for a stack of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from clients.rules import RULES
from flexfl.ground.contract import FitConfig

M = 5
APFL: dict[str, Any] = {"alpha": 0.3, "alpha-mode": "step", "gradient": "chain-rule"}
PFEDME: dict[str, Any] = {"penalty": 4.0, "inner-steps": 3, "personal-rate": 0.05, "start": "warm"}
CONFIGS = [
    ("apfl", APFL),
    ("apfl", {**APFL, "alpha-mode": "fixed", "gradient": "plain"}),
    ("apfl", {**APFL, "alpha-mode": "round"}),
    ("pfedme", PFEDME),
    ("pfedme", {**PFEDME, "start": "w"}),
]


def make(name: str, w: Tensor, own: dict[str, Any], state: dict[str, Tensor] | None = None) -> Any:
    config = FitConfig(round=1, learning_rate=0.01, batch_size=1, local_steps=3, own=own)
    return RULES[name](w, [], config, state or {})


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss(at: Tensor) -> Tensor:
    """Not quadratic, and different in every coordinate; summed over clients."""
    return (torch.arange(1, M + 1) * (at - 1) ** 2 + torch.sin(3 * at)).sum()


def oracle(at: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(loss, at)


def test_apfl_descends_the_gradients_of_the_mixture() -> None:
    w, y, v, rate = draw(M), draw(M, seed=1), draw(M, seed=2), 0.01
    rule = make("apfl", w, APFL, {"v": v.clone(), "alpha": torch.tensor([0.3], dtype=torch.float64)})
    before = y.clone()
    at = [part.clone().requires_grad_() for part in (v, torch.tensor([0.3], dtype=torch.float64))]
    loss(at[1] * at[0] + (1 - at[1]) * before).backward()
    rule.step(y, oracle, rate)
    torch.testing.assert_close(rule.state["v"], v - rate * at[0].grad)
    torch.testing.assert_close(rule.state["alpha"], 0.3 - rate * at[1].grad)
    torch.testing.assert_close(y, before - rate * oracle(before))


def test_alpha_stays_between_0_and_1() -> None:
    for rate, expected in ((100.0, 0.0), (-100.0, 1.0)):
        y, v = torch.zeros(M, dtype=torch.float64), torch.full((M,), 9.0, dtype=torch.float64)
        rule = make("apfl", y.clone(), APFL, {"v": v, "alpha": torch.full((1,), 0.5, dtype=torch.float64)})
        rule.step(y, oracle, rate)
        assert rule.state["alpha"].item() == expected


@pytest.mark.parametrize("start", ["warm", "w"])
def test_many_inner_steps_of_pfedme_solve_its_problem(start: str) -> None:
    """Then grad f(theta) + lambda (theta - w_i) = 0, and w_i moves by eta grad f(theta) downhill."""
    w = draw(M)
    y = w.clone()
    rule = make("pfedme", w, {**PFEDME, "penalty": 20.0, "inner-steps": 400, "start": start})
    for _ in range(2):
        before = y.clone()
        rule.step(y, oracle, 0.01)
        theta = rule.personal()
        torch.testing.assert_close(oracle(theta), 20.0 * (before - theta))
        torch.testing.assert_close(y, before - 0.01 * oracle(theta))


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_a_stack_of_clients_trains_as_each_does_alone(name: str, config: dict[str, Any]) -> None:
    w, stack = draw(M), draw(2, 3, M, seed=1)
    together = make(name, w.expand(2, 3, M), config)
    y = stack.clone()
    for _ in range(3):
        together.step(y, oracle, 0.02)
    for i in range(2):
        for j in range(3):
            alone = make(name, w, config)
            own = stack[i, j].clone()
            for _ in range(3):
                alone.step(own, oracle, 0.02)
            torch.testing.assert_close(y[i, j], own)
            torch.testing.assert_close(together.personal()[i, j], alone.personal())
            for key, value in alone.finish(own, 3, 0.02)[1].items():
                torch.testing.assert_close(together.finish(y, 3, 0.02)[1][key][i, j], value)


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_a_step_leaves_the_global_weights_alone(name: str, config: dict[str, Any]) -> None:
    w = draw(M)
    rule = make(name, w, config)
    torch.testing.assert_close(rule.personal(), w)  # before the first step
    y = w.clone()
    rule.step(y, oracle, 0.02)
    torch.testing.assert_close(w, draw(M), rtol=0, atol=0)
