"""Clients that train in a cohort return what each returns alone, whatever their work and the oracle."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from devices import BY_RULE
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from clients import training
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers, ClientEnvironment, VirtualClients
from fedtide.base.contract import FitConfig
from fedtide.base.contract.metrics import of_row
from fedtide.tasks import PartitionedData
from fedtide.tasks.models import MODELS

SIZES = [23, 7, 1, 12, 40, 5]
OWN = {"mu": 0.3, "alpha": 0.5, "alpha-mode": "step", "gradient": "chain-rule"}  # of all rules in use here


def divided(sizes: list[int], shape: tuple[int, ...], classes: int) -> PartitionedData:
    """Random examples of this shape, so many for each client."""
    rng, count = np.random.default_rng(5), sum(sizes)
    pool = (rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(classes, size=count))
    parts = np.split(np.arange(count), np.cumsum(sizes)[:-1])
    return PartitionedData.divide(pool, pool, classes, parts, 0.0, 0)


def make_data() -> PartitionedData:
    return divided(SIZES, (1, 8, 8), 4)


class OnDemand:
    """The same data, loaded for one client at a time."""

    def __init__(self, data: PartitionedData) -> None:
        self.sizes, self.num_outputs, self.input_shape = data.sizes, data.num_outputs, data.input_shape
        self.criterion, self.test, self.examples = data.criterion, data.test, data.examples
        self.train_set, self.holdout = data.train_set, data.holdout


def build(model: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        if model == "no-bias":
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 9, bias=False), nn.ReLU(), nn.Linear(9, 4))
        if model == "tanh":
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Tanh(), nn.Linear(9, 4))
        return MODELS[model]((1, 8, 8), 4)


def fit(model: str, jobs: list[Job], cohort: str, size: int, data: Any = None) -> Answers:
    environment = ClientEnvironment(
        data or make_data(), lambda: build(model), 3, cohort=cohort, cohort_size=size
    )
    clients = VirtualClients(environment)
    return clients.fit(Broadcast(clients.model.vector.numpy().copy()), jobs)


def by_client(answers: Answers) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """The local weights and the metrics, in ascending order of clients."""
    order = np.argsort(answers.reported["client"])
    return answers.vectors[order], [of_row(row) for row in answers.reported[order]]


def config(**changes: Any) -> FitConfig:
    return replace(FitConfig(round=2, local_steps=7, batch_size=6, learning_rate=0.1), **changes)


ORACLES = [
    ("logistic", "compiled"),
    ("logistic", "stacked"),
    ("mlp", "stacked"),
    ("mlp", "compiled"),
    ("tanh", "vmap"),
    ("lenet", "vmap"),
    ("lenet", "compiled-chain"),
    ("lenet", "chain"),
    ("cnn", "chain"),
    ("no-bias", "chain"),
]


@pytest.mark.parametrize(("model", "cohort"), ORACLES)
@pytest.mark.parametrize("work", [{}, {"batch_size": 0}, {"local_steps": 0, "local_epochs": 2}])
def test_a_cohort_returns_what_each_client_returns_alone(
    model: str, cohort: str, work: dict[str, int]
) -> None:
    jobs = [Job(k, [], config(**work), share) for k, share in enumerate([1, 0.4, 1, 0, 0.75, 0.2])]
    alone, expected = by_client(fit(model, jobs, "loop", 1))
    for size in (2, 6):
        answers = fit(model, jobs, cohort, size)
        together, metrics = by_client(answers)
        np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
        assert [failure[:2] for failure in answers.failures] == [(3, "dropped in mid-round")]
        for one, other in zip(metrics, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-5, abs=3e-7)  # losses near 0 in single precision
    on_demand, _ = by_client(fit(model, jobs, cohort, 6, OnDemand(make_data())))
    np.testing.assert_array_equal(on_demand, together)


@pytest.mark.parametrize(("model", "cohort"), ORACLES)
@pytest.mark.parametrize("batch_size", [6, 20])
def test_clients_that_start_from_weights_of_their_own(model: str, cohort: str, batch_size: int) -> None:
    """As if each had received its own broadcast; others in the same call start from the common one."""
    environment = ClientEnvironment(make_data(), lambda: build(model), 3, cohort="loop", cohort_size=1)
    alone = VirtualClients(environment)
    common = alone.model.vector.numpy().copy()
    own = {k: (common * (1 + 0.1 * k)).astype(np.float32) for k in (1, 3, 4)}
    jobs = [Job(k, [], config(batch_size=batch_size), 1.0, weights=own.get(k)) for k in range(6)]
    together, _ = by_client(fit(model, jobs, cohort, 6))
    for k, job in enumerate(jobs):
        answers = alone.fit(Broadcast(own.get(k, common)), [job._replace(weights=None)])
        np.testing.assert_allclose(together[k], answers.vectors[0], rtol=1e-5, atol=1e-6)


@settings(max_examples=30)
@given(
    completions=st.lists(st.floats(0, 1), min_size=6, max_size=6),
    batch_size=st.integers(0, 50),
    size=st.integers(1, 6),
    rates=st.lists(st.sampled_from([0.1, 0.03]), min_size=6, max_size=6),
    trained=st.sampled_from(
        [("logistic", "compiled"), ("mlp", "stacked"), ("lenet", "compiled-chain"), ("lenet", "chain")]
    ),
    rule=st.sampled_from(["sgd", "proximal", "apfl"]),
)
def test_no_result_depends_on_the_other_clients_of_the_cohort(
    completions: list[float],
    batch_size: int,
    size: int,
    rates: list[float],
    trained: tuple[str, str],
    rule: str,
) -> None:
    """Not even in the last bit: a run is the same with any number of workers."""
    work = config(batch_size=batch_size, rule=rule, own=OWN)
    jobs = [Job(k, [], replace(work, learning_rate=rates[k]), completions[k]) for k in range(6)]
    model, cohort = trained
    together, reported = by_client(fit(model, jobs, cohort, size))
    singles = [alone for job in jobs if len((alone := fit(model, [job], cohort, 1)).reported)]
    assert len(together) == len(singles)
    for vector, metrics, single in zip(together, reported, singles, strict=True):
        np.testing.assert_array_equal(vector, single.vectors[0])
        assert metrics == of_row(single.reported[0])


@settings(max_examples=10)
@example(widths=[784, 10], examples=60, batch_size=5, steps=10, rule="sgd", bias=True)
@example(widths=[784, 200, 200, 10], examples=60, batch_size=10, steps=10, rule="sgd", bias=True)
@example(widths=[784, 200, 200, 10], examples=60, batch_size=10, steps=3, rule="proximal", bias=True)
@example(widths=[64, 33], examples=3, batch_size=1, steps=1, rule="sgd", bias=False)
@example(widths=[10, 3], examples=17, batch_size=0, steps=1, rule="sgd", bias=False)
@given(
    widths=st.lists(st.sampled_from([2, 3, 10, 16, 33, 64, 200]), min_size=2, max_size=4),
    examples=st.sampled_from([1, 2, 5, 17, 40]),
    batch_size=st.sampled_from([0, 1, 2, 5, 16]),
    steps=st.integers(1, 6),
    rule=st.sampled_from(["sgd", "proximal"]),
    bias=st.booleans(),
)
def test_the_size_of_a_cohort_changes_no_bit(
    widths: list[int], examples: int, batch_size: int, steps: int, rule: str, bias: bool
) -> None:
    """So it may be chosen by a measurement. Some clients stop early, and one trains alone at the end.

    The weights of another, whose examples are infinite, leave no trace.
    """
    count = 40
    data = divided([examples] * count, (widths[0],), widths[-1])
    data.train[0][data.train_rows(7)] = np.inf

    def module() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            layers = [nn.Linear(i, o, bias=bias) for i, o in pairwise(widths)]
        return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])

    work = config(batch_size=batch_size, local_steps=steps, rule=rule, own={"mu": 0.1})
    jobs = [Job(k, [], work, 1.0 if not k else 0.3 + 0.05 * (k % 10)) for k in range(count)]
    for cohort in ("stacked", "compiled"):
        bits = set()
        for size in (1, 2, 3, 7, 13, 16, 31, 32, 39, 40):
            virtual = VirtualClients(ClientEnvironment(data, module, 3, cohort=cohort, cohort_size=size))
            vectors, _ = by_client(virtual.fit(Broadcast(virtual.model.vector.numpy().copy()), jobs))
            finite = np.isfinite(vectors).all(axis=1)
            assert finite.tolist() == [k != 7 for k in range(count)]
            bits.add(sha256(vectors[finite].tobytes()).hexdigest())
        assert len(bits) == 1


VARIED = [("apfl", {"alpha-mode": "round", "gradient": "plain"}), ("pfedme", {"start": "w"})]


@pytest.mark.parametrize(("method", "options"), [*BY_RULE, *VARIED], ids=str)
def test_every_rule_has_the_same_results_with_and_without_cohorts(
    simulate: Callable[..., Any], method: str, options: dict[str, str]
) -> None:
    run = {
        "strategy": method + ":" * bool(options) + ",".join(f"{k}={v}" for k, v in options.items()),
        "trace": "pools:first=8+lost:p=0.1",
        "num_clients": 12,
        "num_rounds": 4,
        "partition": "dirichlet:alpha=1",
        "learning_rate": 0.05,
        "arrivals": "11=2",
        "departures": "0=3",
    }
    loop = simulate(**run, cohort="loop")
    assert sum(len(record["active"]) for record in loop.rounds) > 20
    for cohort in ("compiled", "stacked", "vmap", "chain"):
        other = simulate(**run, cohort=cohort, cohort_size=5)
        np.testing.assert_allclose(other.weights, loop.weights, rtol=1e-5, atol=2e-6)
        for one, two in zip(other.rounds, loop.rounds, strict=True):
            for key in ("selected", "active", "failed", "steps", "bytes_up", "bytes_down"):
                assert one[key] == two[key]
            assert one.get("client_loss", -1) == pytest.approx(two.get("client_loss", -1), rel=1e-4)


@pytest.mark.parametrize(("model", "cohort"), [("mlp", "stacked"), ("mlp", "compiled")])
def test_a_client_that_fails_does_not_fail_its_cohort(model: str, cohort: str) -> None:
    data = make_data()
    x, labels = data.train[0].copy(), data.train[1].copy()
    labels[data.train_rows(1)] = 77
    x[data.train_rows(4)] = np.nan
    broken = PartitionedData((x, labels), data.test, 4, data.order, data.offsets, data.sizes, 0.0)
    jobs = [Job(k, [], config(), 1.0) for k in range(6)]
    answers, healthy = fit(model, jobs, cohort, 6, broken), fit(model, jobs, cohort, 6)
    ((failed, reason, _),) = answers.failures
    assert failed == 1
    assert "labels 77 to 77 where the task has 4 classes" in reason
    rows, expected = by_client(answers)[0], by_client(healthy)[0]
    np.testing.assert_array_equal(rows[[0, 1, 2, 4]], expected[[0, 2, 3, 5]])
    assert np.isnan(rows[3]).any()


@pytest.mark.parametrize(
    ("model", "rule"),
    [*((m, r) for m in ("logistic", "mlp", "lenet") for r in ("sgd", "proximal")), ("mlp", "apfl")],
)
def test_threads_change_no_bit(model: str, rule: str) -> None:
    """Clients train on several cores at a time; some stop early, and APFL's steps are not compiled."""
    jobs = [Job(k, [], config(rule=rule, own=OWN), 1 - 0.15 * k) for k in range(6)]
    found, before = [], torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            cohort = "compiled-chain" if model == "lenet" else "compiled"
            found.append(by_client(fit(model, jobs, cohort, 6))[0])
        finally:
            torch.set_num_threads(before)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


class Steps:
    """A clock that shows how often it was read: before the first step, and after every one."""

    def __init__(self) -> None:
        self.shown = 0

    def monotonic(self) -> int:
        self.shown += 1
        return self.shown


@pytest.mark.parametrize(("model", "oracle"), [("mlp", "stacked"), ("cnn", "chain"), ("tanh", "vmap")])
def test_a_client_that_runs_out_of_time_did_the_first_of_its_steps(
    monkeypatch: pytest.MonkeyPatch, model: str, oracle: str
) -> None:
    shares = {0: 1, 1: 0.3, 2: 0.6, 3: 1, 4: 1, 5: 0.15}  # 7, 2, 4, 7, 7 and 1 steps; there is time for 4
    done = {0: 4, 1: 2, 2: 4, 3: 4, 4: 4, 5: 1}
    for k, share in shares.items():
        expected, metrics = by_client(fit(model, [Job(k, [], config(), min(share, 0.6))], oracle, 1))
        monkeypatch.setattr(training, "time", Steps())
        vectors, reported = by_client(fit(model, [Job(k, [], config(), share, until=5)], oracle, 1))
        assert reported[0]["steps"] == done[k]
        np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-6)
        assert reported[0] == pytest.approx(metrics[0], rel=1e-5)
