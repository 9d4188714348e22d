"""Results in columns: the same as a list of them, whatever the clients report."""

from typing import Any

import numpy as np
import pytest
from fakes import NamedProxy, TableManager
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from fedtide.ground.contract import REPORTED
from strategies import FlatParameters, FlexibleStrategy, Layout, Roster
from strategies.core.results import RoundResults

N, M, STEPS = 7, 5, 4
LAYOUT = Layout(((2, 2), (1,)), np.dtype(np.float32))
STARTS = np.arange(M, dtype=np.float32)
NUMBERS = st.floats(-3, 3, width=32)
ODD = NUMBERS | st.sampled_from([0.0, -1.0, 1e19, np.inf, -np.inf, np.nan])
Row = tuple[int, int, int, float, Any]  # client, number of examples, steps, loss, update


class Play:
    """A strategy, and rounds in which it gets the results of some rows."""

    def __init__(self, method: str, **options: Any) -> None:
        own: Any = {"local_steps": STEPS, "batch_size": 2, "learning_rate": 0.1, **options}
        start = FlatParameters(STARTS, LAYOUT)
        self.strategy: FlexibleStrategy = strategies.make(method, start, Roster(np.arange(1, N + 1)), **own)
        self.manager, self.number = TableManager(), 0
        self.manager.online = range(N)
        self.parameters: Any = self.strategy.initialize_parameters(self.manager)

    def begin(self, rows: list[Row]) -> RoundResults:
        """What an engine hands over in the next round: the replies in the order in which they came."""
        self.number += 1
        self.strategy.configure_fit(self.number, self.parameters, self.manager)
        vectors = [STARTS + np.asarray(update, np.float32) for *_, update in rows]
        reported = np.zeros(len(rows), REPORTED)
        for k, ((client, n, steps, loss, _), vector) in enumerate(zip(rows, vectors, strict=True)):
            with np.errstate(over="ignore", invalid="ignore"):
                norm = np.linalg.norm((vector - STARTS).astype(np.float64))
            reported[k] = client, self.number, n, steps, loss, loss, loss, np.nan, norm, False

        return RoundResults(reported, vectors, LAYOUT, lambda client: NamedProxy(str(client)))

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
        expected, also = listed.end([*listed.begin(rows)])
        np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-12)
        assert said == also


def test_ordinary_replies_are_read_without_a_list() -> None:
    """And those of which a wrapper, such as Flower's differential privacy, changes one in place with it."""
    play = Play("fedavg")
    results = play.begin([(k, k + 1, 4, 1.0, [k] * M) for k in (3, 0)])
    weights, _ = play.end(results)
    assert not results.is_list
    assert results.order.tolist() == [1, 0]  # in which they arrived
    np.testing.assert_allclose(weights, STARTS + 3 * 4 / 5)  # n = 4 of 5 examples moved by 3
    results = play.begin([(2, 3, 4, 1.0, [1] * M)])
    for _, result in results:
        result.parameters = FlatParameters(STARTS + 7, LAYOUT)
    weights, _ = play.end(results)
    np.testing.assert_allclose(weights, STARTS + 7)
