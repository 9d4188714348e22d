"""Models with buffers, such as BatchNorm's running means: methods do not touch them, the server averages."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from devices import BY_RULE, Device
from fakes import AT_ONCE, SIZES, START, N, Rounds, same_state, stored
from flwr.common import EvaluateIns, ndarrays_to_parameters, parameters_to_ndarrays

import strategies
from clients import single
from strategies import FlatParameters, Roster

BUFFERS = [np.array([1.0, -2.0]), np.array(3.0)]
M, B = 9, 3
CASES = [*BY_RULE, ("fedbuff", {}), ("mifa", {}), ("fedavg", {"server_opt": "adam:rate=0.1"})]


class Client(Device):
    """Minimises (w - k)^2 / 2, and notes in its buffers that it did."""

    def __init__(self, number: int) -> None:
        super().__init__(int(SIZES[number]), self.move, np.ones_like)
        self.number, self.calls = number, 0

    def move(self, at: np.ndarray) -> np.ndarray:
        self.calls += 1
        at[M:] = 0.5 * at[M:] + self.number
        return at - self.number


def make(name: str, options: Mapping[str, Any], buffers: bool) -> Any:
    arrays = [*START, *(BUFFERS if buffers else [])]
    options = {"local_steps": 2, "learning_rate": 0.1, "seed": 1, **AT_ONCE.get(name, {}), **options}
    initial, count = ndarrays_to_parameters(arrays), len(BUFFERS) if buffers else 0
    return strategies.make(name, initial, Roster(SIZES, np.ones(N, bool)), num_buffers=count, **options)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_no_method_changes_buffers_or_is_changed_by_them(name: str, options: Mapping[str, Any]) -> None:
    plain, noting = (Rounds(make(name, options, buffers)) for buffers in (False, True))
    clients = {rounds: [Client(k) for k in range(N)] for rounds in (plain, noting)}
    expected = np.array([1.0, -2.0, 3.0])
    for online in ((0, 1, 2, 3, 4), (1, 3), (), (0, 2, 3)):
        for rounds in (plain, noting):
            asked = rounds.ask(online)
            before = {k: clients[rounds][k].calls for k in asked}
            replies = {k: clients[rounds][k].fit(instruction, 2) for k, instruction in asked.items()}
            rounds.hear(*replies.items())
        if replies:
            weights = np.array([SIZES[k] for k in replies])
            at = parameters_to_ndarrays(next(iter(asked.values())).parameters)[len(START) :]
            np.testing.assert_allclose(np.concatenate([a.ravel() for a in at[: len(BUFFERS)]]), expected)
            sent = []
            for reply in replies.values():
                arrays = parameters_to_ndarrays(reply.parameters)
                first = len(START) if arrays[0].shape == START[0].shape else 0
                sent.append(np.concatenate([a.ravel() for a in arrays[first : first + len(BUFFERS)]]))
            for k, own in zip(replies, sent, strict=True):
                left = 0.5 ** (clients[noting][k].calls - before[k])
                np.testing.assert_allclose(own, expected * left + 2 * k * (1 - left))
            expected = weights @ np.array(sent) / weights.sum()
        np.testing.assert_allclose(noting.strategy.buffers, expected)
        np.testing.assert_array_equal(noting.strategy.weights, plain.strategy.weights)
    assert not np.array_equal(noting.strategy.weights, np.concatenate([a.ravel() for a in START]))
    assert len(parameters_to_ndarrays(noting.parameters)) == len(START) + len(BUFFERS)

    again = make(name, options, True)
    state = stored(noting.strategy.state_dict())
    again.load_state_dict(state)
    same_state(again.state_dict(), noting.strategy.state_dict())
    evaluated = single.personal_weights(
        EvaluateIns(asked[0].parameters, asked[0].config), clients[noting][0].memory
    )
    assert [a.shape for a in evaluated] == [a.shape for a in (*START, *BUFFERS)]


def test_buffers_that_are_not_finite_or_missing_make_no_reply() -> None:
    rounds = Rounds(make("fedavg", {}, True))
    replies = {k: Client(k).fit(instruction, 2) for k, instruction in rounds.ask(range(3)).items()}
    arrays = parameters_to_ndarrays(replies[0].parameters)
    arrays[-1] = np.array(np.nan)
    replies[0].parameters = FlatParameters(np.concatenate([a.ravel() for a in arrays]), rounds.strategy.wire)
    replies[1].parameters.tensors.pop()
    rounds.hear(*replies.items())
    assert rounds.strategy.report.active.tolist() == [2]
    reasons = dict(rounds.strategy.report.rejected)
    assert "not finite" in reasons["0"]
    assert "shapes" in reasons["1"]


# Everything together, in all engines

MODEL = "vgg11:norm=batch,width=1,hidden=6,dropout=0.5"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mimic:memory=client", "apfl"])
def test_a_model_with_buffers_and_dropout_is_the_same_on_ray(
    method: str, simulate: Callable[..., Any], ray_cluster: None
) -> None:
    run = {"strategy": method, "model": MODEL, "num_clients": 5, "num_rounds": 2, "batch_size": 9}
    run |= {"trace": "pools:first=5", "local_steps": 3, "learning_rate": 0.05}
    here = simulate(**run)
    there = simulate(**run, engine="ray", num_workers=1)
    np.testing.assert_array_equal(there.weights, here.weights)
    assert len(here.weights) > here.experiment.strategy.layout.size
    assert np.abs(here.experiment.strategy.buffers).min() > 0
    assert not any(record["failed"] for record in here.rounds)
