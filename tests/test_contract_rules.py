"""Every rule that a strategy declares has a client class, which does what the declaration says."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import SIZES, START, VARIANTS, M, N, Rounds, make
from flwr.common import FitIns, FitRes, parameters_to_ndarrays

import strategies
from clients import single
from clients.memory.handshake import Memory
from clients.rules import RULES
from fedtide.base.contract import SGD, FitConfig, Rule
from fedtide.base.contract.ternary import unpack

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in strategies.STRATEGIES),
    *VARIANTS.items(),
    ("focus", {"gradient": "last"}),
    ("focus", {"gradient": "last", "memory": "client"}),
]
DECLARED = [(name, make(name, **options).rule, options) for name, options in OPTIONS]
METHODS = [
    pytest.param(name, rule, options, id=" ".join([name, *options])) for name, rule, options in DECLARED
]
BY_RULE = {case[1].name: case for case in DECLARED}  # a strategy for each
E = 3


def gradient(client: int, at: torch.Tensor) -> torch.Tensor:
    """Of a quadratic; every client has its own optimum."""
    return at - torch.linspace(-client, client, M, dtype=at.dtype)


def train(client: int, instruction: FitIns, memory: Memory | None) -> tuple[FitRes, Memory | None]:
    return single.fit(
        instruction, lambda at: gradient(client, at), int(SIZES[client]), memory, fisher=torch.ones_like
    )


def test_every_rule_has_a_client_class_and_every_client_class_a_rule() -> None:
    """And a name stands for one rule."""
    by_name = {rule.name: rule for _, rule, _ in DECLARED}
    assert by_name.keys() == RULES.keys()
    assert all(rule == by_name[rule.name] for _, rule, _ in DECLARED)


@pytest.mark.parametrize(("name", "rule", "options"), METHODS)
def test_client_and_server_keep_to_the_rule(name: str, rule: Rule, options: dict[str, Any]) -> None:
    """Over three rounds: in the first there are no states and no arrays of the method yet.

    Client 0 misses the second round.
    """
    rounds = Rounds(make(name, local_steps=E, **options))
    memories: dict[int, Memory | None] = dict.fromkeys(range(N))
    extras = set()
    for online in (range(N), range(1, N), range(N)):
        replies = []
        for client, instruction in rounds.ask(online).items():
            check_task(instruction, rule)
            result, memory = train(client, instruction, memories[client])
            extras.add(check_upload(result, rule))
            assert (memory is not None) == rule.remembers
            if memory is not None:
                assert memory.pending
                memories[client] = memory
            replies.append((client, result))
        rounds.hear(*replies)
        assert rounds.strategy.report.rejected == []
        assert rounds.strategy.report.active.tolist() == list(online)
    assert max(extras) == rule.extra


def check_task(instruction: FitIns, rule: Rule) -> None:
    """The server sends the scalars that the rule names, no others, and what a state needs."""
    config = FitConfig.from_wire(instruction.config)
    assert config.rule == rule.name
    assert set(config.own) == set(rule.scalars)
    for key, value in instruction.config.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key)
        assert type(value) in (bool, int, float, str, bytes)  # as Flower can carry
    assert (config.last_accepted is not None) == rule.remembers
    weights, own = config.split(parameters_to_ndarrays(instruction.parameters))
    assert [array.shape for array in weights] == [array.shape for array in START]
    assert {array.shape for array in own} <= {(M,), (1,)}
    if rule == SGD:  # any Flower client can do it
        assert own == []


def check_upload(result: FitRes, rule: Rule) -> int:
    """The client sends what the rule says; return how many vectors follow."""
    arrays = parameters_to_ndarrays(result.parameters)
    count = len(START) if rule.sends == "weights" else 1
    sent, extra = arrays[:count], arrays[count:]
    if rule.sends == "weights":
        assert [array.shape for array in sent] == [array.shape for array in START]
    elif rule.sends == "vector":
        assert sent[0].shape == (M,)
    else:
        assert unpack(sent[0], M).any()
    assert all(array.shape == (M,) and array.dtype.kind == "f" for array in extra)
    assert len(extra) in (0, rule.extra)
    return len(extra)


@pytest.mark.parametrize(("name", "rule", "options"), BY_RULE.values(), ids=BY_RULE)
def test_a_client_keeps_a_state_and_needs_the_scalars_as_the_rule_says(
    name: str, rule: Rule, options: dict[str, Any]
) -> None:
    """Asked to keep a state, a client of another rule has none to keep."""
    instruction = Rounds(make(name, local_steps=E, **options)).ask(range(N))[0]
    _, memory = train(0, replace(instruction, config={**instruction.config, "last-accepted": 0}), None)
    assert memory is not None
    assert bool(memory.pending) == rule.remembers
    for scalar in {*rule.scalars} - {"fisher-batches"}:  # of a client that computes it
        config = {key: value for key, value in instruction.config.items() if key != scalar}
        with pytest.raises(ValueError, match=f"^the task has no '{scalar}'"):
            train(0, replace(instruction, config=config), None)


@pytest.mark.parametrize(("slope", "end"), [(9.0, 0.0), (-9.0, 1.0)])
def test_the_share_of_a_personal_model_stays_between_0_and_1(slope: float, end: float) -> None:
    """APFL's alpha moves by -eta <v - w, g>."""
    own = {"alpha": 0.5, "alpha-mode": "step", "gradient": "plain"}
    config = FitConfig(round=1, learning_rate=1.0, batch_size=1, local_steps=1, own=own)
    state = {"v": np.ones(1), "alpha": np.array([0.5])}
    rule = RULES["apfl"](np.zeros(1), [], config, state)
    rule.step(np.zeros(1), lambda at: np.full(1, slope), 1.0)
    assert rule.state["alpha"] == [end]
