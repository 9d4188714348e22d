"""Results in columns: the same as a list of them, whatever the clients report."""

from typing import Any

import numpy as np
import pytest
from flwr.common import Code, FitRes, Status
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from fedtide.ground.contract import REPORTED
from strategies import FlatParameters, FlexibleStrategy, Layout, Roster
from strategies.core.results import RoundResults
from tests.fakes import NamedProxy, TableManager

N, M, STEPS = 7, 5, 4
LAYOUT = Layout(((2, 2), (1,)), np.dtype(np.float32))
STARTS = np.arange(M, dtype=np.float32)
ODD = st.sampled_from([0.0, -1.0, 1e19, np.inf, -np.inf, np.nan])


def build(method: str, **options: Any) -> FlexibleStrategy:
    cls = getattr(strategies, method)
    made = cls.options_type()(local_steps=STEPS, batch_size=2, learning_rate=0.1, **options)
    return cls(FlatParameters(STARTS, LAYOUT), Roster(np.arange(1, N + 1)), options=made)


def in_columns(rows: list[dict[str, Any]], server_round: int) -> RoundResults:
    """What an engine hands over: the replies of clients in the order in which they came."""
    reported = np.zeros(len(rows), REPORTED)
    vectors = []
    for k, row in enumerate(rows):
        vector = STARTS + np.asarray(row["update"], np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.linalg.norm((vector - STARTS).astype(np.float64))
        told = (row["client"], row["n"], row["steps"], row["loss"], row["loss"], norm, False)
        reported[k] = told
        vectors.append(vector)

    def result(k: int) -> tuple[NamedProxy, FitRes]:
        client, n, steps, train, final, _, _ = reported[k].item()
        metrics = {"client-id": client, "round": server_round, "steps": steps}
        metrics |= {"train-loss": train, "final-loss": final}
        return NamedProxy(str(client)), FitRes(
            Status(Code.OK, ""), FlatParameters(vectors[k], LAYOUT), n, metrics
        )

    return RoundResults(reported, vectors, result)


def play(strategy: FlexibleStrategy, rounds: list[list[dict[str, Any]]], as_list: bool) -> list[Any]:
    manager = TableManager()
    manager.online = range(N)
    parameters, seen = strategy.initialize_parameters(manager), []
    for number, rows in enumerate(rounds, 1):
        strategy.configure_fit(number, parameters, manager)
        results = in_columns(rows, number)
        handed: Any = list(results) if as_list else results
        parameters, told = strategy.aggregate_fit(number, handed, [])
        report = strategy.report
        seen.append((strategy.weights.copy(), told, report.active.tolist(), report.rejected, report.events))
    return seen


def a_row(odd: bool) -> Any:
    numbers = st.floats(-3, 3, width=32)
    return st.fixed_dictionaries(
        {
            "n": st.integers(-1, 200) if odd else st.integers(1, 9),
            "steps": st.integers(-1, STEPS + 2) if odd else st.integers(1, STEPS),
            "loss": numbers | ODD if odd else numbers,
            "update": st.lists(numbers | ODD if odd else numbers, min_size=M, max_size=M),
        }
    )


@st.composite
def a_round(draw: Any) -> list[dict[str, Any]]:
    """Some clients, in any order, in most rounds nothing odd about any of them."""
    clients = draw(st.lists(st.integers(0, N), unique=True, max_size=N))  # N is not known
    odd = draw(st.integers(0, 3)) == 0
    return [draw(a_row(odd)) | {"client": client} for client in clients if client < N or odd]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("FedAvg", {}),
        ("FedAvg", {"weights": "uniform", "max_update_norm": "1.5"}),
        ("FedAvg", {"max_update_norm": "auto", "outliers": "clip"}),
        ("SchemeC", {}),
        ("MIFA", {}),
        ("MimiC", {}),
        ("FedLaAvg", {"max_update_norm": "off"}),
        ("FedBuff", {}),
        ("FedAWE", {}),
    ],
)
@settings(max_examples=30, deadline=None)
@given(st.lists(a_round(), min_size=1, max_size=4))
def test_columns_and_a_list_are_the_same_round(
    method: str, options: dict[str, Any], rounds: list[list[dict[str, Any]]]
) -> None:
    columns = play(build(method, **options), rounds, as_list=False)
    listed = play(build(method, **options), rounds, as_list=True)
    for (weights, *rest), (expected, *others) in zip(columns, listed, strict=True):
        np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-12)
        assert repr(rest) == repr(others)


def test_ordinary_replies_are_read_without_a_list() -> None:
    strategy, manager = build("FedAvg"), TableManager()
    manager.online = range(N)
    strategy.configure_fit(1, strategy.initialize_parameters(manager), manager)
    rows = [{"client": k, "n": k + 1, "steps": 4, "loss": 1.0, "update": [k] * M} for k in (3, 0)]
    results = in_columns(rows, 1)
    _, told = strategy.aggregate_fit(1, results, [])
    assert not results.is_list
    assert told["active"] == 2
    assert results.order.tolist() == [1, 0]  # in which they arrived
    np.testing.assert_allclose(strategy.weights, STARTS + 3 * 4 / 5)  # n = 4 of 5 examples moved by 3


def test_what_a_wrapper_changes_counts() -> None:
    """Differential privacy of Flower's own changes the parameters of each result in place."""
    strategy, manager = build("FedAvg"), TableManager()
    manager.online = range(N)
    strategy.configure_fit(1, strategy.initialize_parameters(manager), manager)
    results = in_columns([{"client": 2, "n": 3, "steps": 4, "loss": 1.0, "update": [1] * M}], 1)
    for _, result in results:
        result.parameters = FlatParameters(STARTS + 7, LAYOUT)
    strategy.aggregate_fit(1, results, [])
    np.testing.assert_allclose(strategy.weights, STARTS + 7)
