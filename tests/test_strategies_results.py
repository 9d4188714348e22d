"""Replies in columns: the same as Flower's list of them, whatever the clients report."""

from typing import Any

import numpy as np
import pytest
from fakes import NamedProxy, TableManager
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from fedtide.base.contract import REPORTED
from strategies import FedAvg, FlatParameters, FlexibleStrategy, Layout, Replies, Roster
from strategies.core.replies import ReplyTable
from strategies.core.reply_vectors import ReplyVectors

N, M, STEPS = 7, 5, 4
LAYOUT = Layout(((2, 2), (1,)), np.dtype(np.float32))
STARTS = np.arange(M, dtype=np.float32)
NUMBERS = st.floats(-3, 3, width=32)
ODD = NUMBERS | st.sampled_from([0.0, -1.0, 1e19, np.inf, -np.inf, np.nan])
Row = tuple[int, int, int, float, Any]  # client, number of examples, steps, loss, update


def proxy(client: int) -> NamedProxy:
    return NamedProxy(str(client))


class Play:
    """A strategy, and rounds in which it gets the results of some rows."""

    def __init__(self, method: str | type[FlexibleStrategy], **options: Any) -> None:
        own: Any = {"local_steps": STEPS, "batch_size": 2, "learning_rate": 0.1, **options}
        start = FlatParameters(STARTS, LAYOUT)
        self.strategy: FlexibleStrategy = strategies.make(method, start, Roster(np.arange(1, N + 1)), **own)
        self.manager, self.number = TableManager(), 0
        self.manager.online = range(N)
        self.parameters: Any = self.strategy.initialize_parameters(self.manager)

    def begin(self, rows: list[Row]) -> ReplyTable:
        """What an engine hands over in the next round: the replies in the order in which they came."""
        self.number += 1
        self.strategy.configure_fit(self.number, self.parameters, self.manager)
        start = self.parameters.vector
        with np.errstate(over="ignore"):
            vectors = [start + np.asarray(update, np.float32) for *_, update in rows]
        reported = np.zeros(len(rows), REPORTED)
        for k, ((client, n, steps, loss, _), vector) in enumerate(zip(rows, vectors, strict=True)):
            with np.errstate(over="ignore", invalid="ignore"):
                norm = np.linalg.norm((vector - start).astype(np.float64))
            reported[k] = client, self.number, n, steps, loss, loss, loss, np.nan, norm, False
        return ReplyTable(reported=reported, vectors=ReplyVectors(vectors), layout=LAYOUT)

    def end(self, results: Any) -> tuple[np.ndarray, str]:
        """The weights, and all that the round says."""
        self.parameters, told = self.strategy.aggregate_fit(self.number, results, [])
        report = self.strategy.report
        said = (told, report.active.tolist(), report.rejected, report.events)
        return self.strategy.weights.copy(), repr(said)


def a_row(client: int, odd: bool) -> Any:
    numbers = ODD if odd else NUMBERS
    n, steps = st.integers(1 - 2 * odd, 200 if odd else 9), st.integers(1 - 2 * odd, STEPS + 2 * odd)
    return st.tuples(st.just(client), n, steps, numbers, st.lists(numbers, min_size=M, max_size=M))


@st.composite
def a_round(draw: Any) -> list[Row]:
    """Some clients, in any order, in most rounds nothing odd about any of them."""
    clients = draw(st.lists(st.integers(0, N), unique=True, max_size=N))  # N is not known
    odd = draw(st.integers(0, 3)) == 0
    return [draw(a_row(client, odd)) for client in clients if client < N or odd]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedavg", {"weights": "uniform", "max_update_norm": "1.5"}),
        ("fedavg", {"max_update_norm": "auto", "outliers": "clip"}),
        *((method, {}) for method in ("fedavg", "scheme-c", "mifa", "mimic", "fedbuff", "fedawe")),
        ("fedlaavg", {"max_update_norm": "off"}),
    ],
)
@settings(max_examples=30, deadline=None)
@given(st.lists(a_round(), min_size=1, max_size=4))
def test_columns_and_a_list_are_the_same_round(
    method: str, options: dict[str, Any], rounds: list[list[Row]]
) -> None:
    columns, listed = Play(method, **options), Play(method, **options)
    for rows in rounds:
        weights, said = columns.end(columns.begin(rows))
        expected, also = listed.end(listed.begin(rows).as_flower(proxy))
        np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-12)
        assert said == also


def test_a_bad_reply_costs_that_reply() -> None:
    """The others are read in their columns; the order is that in which they arrived."""

    class Noting(FedAvg):
        def update(self, replies: Replies) -> None:
            self.order = replies.order.tolist()
            super().update(replies)

    play: Any = Play(Noting)
    rows: list[Row] = [(3, 4, 4, 1.0, [3] * M), (5, 6, 4, 1.0, [np.nan] * M), (0, 1, 4, 1.0, [0] * M)]
    weights, _ = play.end(play.begin(rows))
    assert play.strategy.report.rejected == [("5", "weights are not finite")]
    assert play.strategy.order == [2, 0]
    np.testing.assert_allclose(weights, STARTS + 3 * 4 / 5)  # n = 4 of 5 examples moved by 3
