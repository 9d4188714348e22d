"""Models with buffers, such as BatchNorm's running means: methods do not touch them, the server averages."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from devices import BY_RULE, Device
from fakes import AT_ONCE, SIZES, START, N, Rounds, same_state, stored
from flwr.common import EvaluateIns, ndarrays_to_parameters, parameters_to_ndarrays
from own_parts import Folder

import strategies
from clients import single
from strategies import FlatParameters, Roster

BUFFERS = [np.array([1.0, -2.0]), np.array(3.0), np.array([-np.inf, np.nan, 1e30]), np.empty((0, 2))]
M = 9
CASES = [*BY_RULE, ("fedbuff", {}), ("mifa", {}), ("fedavg", {"server_opt": "adam:rate=0.1"})]


class Client(Device):
    """Minimises (w - k)^2 / 2, and notes in its buffers that it did."""

    def __init__(self, number: int) -> None:
        super().__init__(int(SIZES[number]), self.move, np.ones_like)
        self.number, self.calls = number, 0

    def move(self, at: np.ndarray) -> np.ndarray:
        self.calls += 1
        at[M : M + 3] = 0.5 * at[M : M + 3] + self.number  # the others are constants
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
    expected = np.concatenate([a.ravel() for a in BUFFERS])
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
                np.testing.assert_allclose(own[:3], expected[:3] * left + 2 * k * (1 - left))
                np.testing.assert_array_equal(own[3:], expected[3:])
            expected = np.append((weights @ np.array(sent) / weights.sum())[:3], expected[3:])
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
    arrays[-3] = np.array(np.nan)
    replies[0].parameters = FlatParameters(np.concatenate([a.ravel() for a in arrays]), rounds.strategy.wire)
    replies[1].parameters.tensors.pop()
    rounds.hear(*replies.items())
    assert rounds.strategy.report.active.tolist() == [2]
    reasons = dict(rounds.strategy.report.rejected)
    assert "not finite" in reasons["0"]
    assert "shapes" in reasons["1"]


MODELS = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("sees_nothing", self.mask < 0)
        self.register_buffer("empty", torch.empty(0))

    def forward(self, x):
        x = self.first(x.flatten(1)).view(-1, 4, 4)
        return self.last((torch.softmax(x @ x.mT + self.mask, -1) @ x).flatten(1))

def normalised(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
"""
FLOWERS = "flwr.server.strategy.FedAvg"
LATE = {"trace": "speeds", "round_ends": 2}
PROBED = {"initial_model": "two-norm:min-change=0.01", "arrivals": "1=3,2=3"}


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        *((name, {}) for name in ("fedavg", "mimic:memory=client", "efl", "apfl", FLOWERS)),
        ("fedavg", PROBED),
        ("fedasync", LATE),
    ],
)
def test_a_mask_of_infinities_is_no_reason_to_refuse_a_reply(
    own: Folder, simulate: Callable[..., Any], strategy: str, settings: dict[str, Any]
) -> None:
    own.write("own_models.py", MODELS)
    run = simulate(strategy=strategy, model="own_models.Attention", **settings)
    assert not any(record["failed"] for record in run.rounds)
    sent = run.experiment.initial
    assert not np.array_equal(run.weights[: len(sent.weights)], sent.weights)
    np.testing.assert_array_equal(
        run.weights[len(sent.weights) :], np.triu(np.full((4, 4), -np.inf), 1).ravel()
    )


@pytest.mark.parametrize("strategy", ["fedavg", FLOWERS])
def test_buffers_out_of_range_are_refused_however_replies_are_read(
    own: Folder, simulate: Callable[..., Any], strategy: str
) -> None:
    def spoil(data: Any) -> Any:
        data.train[0].reshape(len(data.train[0]), -1)[data.train_rows(2), 3] *= 1e16
        return data

    own.write("own_models.py", MODELS)
    run = simulate(wrap=spoil, strategy=strategy, model="own_models.normalised", trace="always")
    assert [[*record["failed"]] for record in run.rounds] == [["2"]] * 3
    assert np.abs(run.weights).max() < 1e3


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


TASKS = """
from strategies import FedAvg, FlatParameters, Task

class Own(FedAvg):
    def task(self, client):
        start = (self.weights / 2).astype(self.layout.dtype)
        return Task(learning_rate=0.01, local_steps=2, weights=FlatParameters(start, self.layout))

class Shared(FedAvg):
    def shared_task(self):
        return Own.task(self, 0)

class Both(Shared):
    def task(self, client):
        return Task()
"""


def test_what_all_clients_get_may_have_its_own_rate_steps_and_weights(
    own: Folder, simulate: Callable[..., Any]
) -> None:
    own.write("own_models.py", MODELS)
    own.write("own_methods.py", TASKS)
    runs = [
        simulate(strategy=f"own_methods.{name}", model="own_models.normalised", local_epochs=3)
        for name in ("Own", "Shared", "Both")
    ]
    assert {steps for run in runs for record in run.rounds for steps in record["steps"]} <= {1, 2}
    for run in runs[1:]:
        np.testing.assert_array_equal(run.weights, runs[0].weights)
