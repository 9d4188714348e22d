"""What every method's paper says of its state holds whoever comes and goes, and in whatever order.

`FEDTIDE_HISTORIES=1000 pytest tests/test_strategies_histories.py` plays that many histories with each.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes import M
from histories import HISTORIES, E, Federation, History, N, Round, begin
from hypothesis import Phase, given, settings

from strategies import STRATEGIES

EXAMPLES = int(os.environ.get("FEDTIDE_HISTORIES", "4"))
PHASES = (Phase.explicit, Phase.generate, *((Phase.shrink,) if "FEDTIDE_SHRINK" in os.environ else ()))
Check = Callable[[Federation, np.ndarray], None]
ALL: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in STRATEGIES),
    *((name, {"memory": "client"}) for name in ("mimic", "fedlaavg", "focus")),
    ("focus", {"memory": "client", "weights": "uniform", "gradient": "last"}),
    ("ghbm", {"anchor": "own"}),
    ("ghbm", {"anchor": "local"}),
    ("fedbuff", {"buffer": 4}),
    ("efl", {"abandon": "auto", "abandon_after": 2, "num_rounds": 10, "abandon_constant": 1e-3}),
    ("fedau", {"estimator": "frequency"}),
]
close = np.testing.assert_allclose


def kept(run: Federation) -> np.ndarray:
    """The vectors that members keep, shape (members, M)."""
    return np.array([run.vector(client) for client in run.members()]).reshape(-1, M)


def sum_of_rows(table: str) -> Check:
    """The total is the sum of the rows, and nobody has one who is no member."""

    def check(run: Federation, lost: np.ndarray) -> None:
        rows = getattr(run.strategy, table)
        assert set(rows.clients.tolist()) <= set(run.members().tolist())
        close(rows.total, rows.rows.sum(axis=0, dtype=np.float64), atol=1e-9)

    return check


def control_is_the_mean(run: Federation, lost: np.ndarray) -> None:
    strategy, members = run.strategy, run.members()
    if len(members):
        close(strategy.control, strategy.table.read(members).mean(axis=0), atol=1e-9)
    assert set(strategy.table.clients.tolist()) <= set(members.tolist())


def sum_is_zero(table: str) -> Check:
    """The vectors of all members sum to zero; those who have just arrived have zeros."""

    def check(run: Federation, lost: np.ndarray) -> None:
        close(getattr(run.strategy, table).read(run.members()).sum(axis=0), 0, atol=1e-9)

    return check


def kept_sum_to_zero(run: Federation, lost: np.ndarray) -> None:
    """MimiC at the clients: c_i = b_i + H - ghat_i, less those that nobody was told of."""
    strategy, members = run.strategy, run.members()
    last = strategy.roster.accepted[members]
    b = np.where(last[:, None] > 0, strategy.v_by_round.read(last), strategy.corrections.table.read(members))
    close((b + strategy.corrections.handed_over - kept(run)).sum(axis=0), 0, atol=1e-9)


def h_is_the_mean(run: Federation, lost: np.ndarray) -> None:
    if len(run.members()):
        close(run.strategy.h * len(run.members()), kept(run).sum(axis=0) + lost, atol=1e-9)


def total_is_kept(run: Federation, lost: np.ndarray) -> None:
    units = getattr(run.strategy, "units", np.ones(0))
    of = np.array([units[k] if k < len(units) else 1.0 for k in run.members()]).reshape(-1, 1)
    close(run.strategy.latest.total, (of * kept(run)).sum(axis=0) + lost, atol=1e-9)


def mean_of_models(run: Federation, lost: np.ndarray) -> None:
    models = [run.strategy.models.of(client).vector for client in run.members().tolist()]
    assert all(client in run.strategy.models for client in run.members().tolist())
    close(run.strategy.total, np.sum(models, axis=0) if models else np.zeros(M), atol=1e-9)


def availability_since_arrival(run: Federation, lost: np.ndarray) -> None:
    known, strategy = run.strategy.availability, run.strategy
    members = np.flatnonzero(strategy.roster.member)
    assert (known.rounds[members] >= 1).all()
    assert (known.rounds[members] <= strategy.round - strategy.roster.joined[members]).all()
    assert (known.seen[members] <= known.rounds[members]).all()


def waiting_are_members(run: Federation, lost: np.ndarray) -> None:
    assert set(run.strategy.buffer.clients.tolist()) <= set(run.members().tolist())


def rates_are_positive(run: Federation, lost: np.ndarray) -> None:
    run.strategy._start_rates()
    assert (run.strategy.rate(run.members()) > 0).all()


def intervals_begin_with_membership(run: Federation, lost: np.ndarray) -> None:
    members, strategy = run.members(), run.strategy
    assert (strategy.intervals.inverse_frequencies(members, strategy.round + 1) >= 1).all()
    strategy.intervals.extend(N)
    assert (strategy.intervals.start[members] >= strategy.roster.joined[members]).all()


def anchors_of_members(run: Federation, lost: np.ndarray) -> None:
    gone = set(range(N)) - set(run.members().tolist())
    assert not any(client in run.strategy.anchors for client in gone)


INVARIANTS: dict[str, Check] = {
    "scaffold": control_is_the_mean,
    "amplified-scaffold": control_is_the_mean,
    "feddyn": h_is_the_mean,
    "mimic": sum_is_zero("corrections"),
    "fedgate": sum_is_zero("tracked"),
    "mifa": sum_of_rows("latest"),
    "fedlaavg": sum_of_rows("latest"),
    "focus": sum_of_rows("latest"),
    "fedvarp": sum_of_rows("latest"),
    "fedstale": sum_of_rows("latest"),
    "mimic memory=client": kept_sum_to_zero,
    "fedlaavg memory=client": total_is_kept,
    "focus memory=client": total_is_kept,
    "fedawe": mean_of_models,
    "cafed": availability_since_arrival,
    "efl abandon=auto": availability_since_arrival,
    "fedbuff": waiting_are_members,
    "f3ast": rates_are_positive,
    "fedau": intervals_begin_with_membership,
    "ghbm anchor=own": anchors_of_members,
    "ghbm anchor=local": anchors_of_members,
}


def label(name: str, options: dict[str, Any]) -> str:
    """The method, and the first of its options."""
    return " ".join([name, *(f"{key}={value}" for key, value in [*options.items()][:1])])


def invariant(name: str, options: dict[str, Any]) -> Check | None:
    return INVARIANTS.get(label(name, options), INVARIANTS.get(name))


def check_round(run: Federation) -> None:
    """Every punctual reply with data counts; what the round makes of them is finite, and not discarded."""
    strategy = run.strategy
    assert np.isfinite(strategy.weights).all()
    assert not [event for event in strategy.report.events if event["event"] == "discarded update"]
    late = ("no examples", "late", "too old", "earlier", "round")
    assert not [why for _, why in strategy.report.rejected if not any(word in why for word in late)]
    shares = strategy.roster.shares.sum()
    assert shares == 0 or abs(shares - 1) < 1e-12


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("name", "options"), ALL, ids=lambda part: str(part) if part else "-")
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, phases=PHASES)
@given(history=HISTORIES)
def test_the_invariant_of_the_paper(name: str, options: dict[str, Any], history: History) -> None:
    """After every round, over arrivals, departures, returns, lost and late replies, and lost farewells."""
    at_clients = options.get("memory") == "client" or name == "feddyn"
    if at_clients:  # they drop late work, as the server does
        history = history.punctual(farewells=name == "mimic")
    run, check = Federation(name, history, **options), invariant(name, options)
    lost, before = np.zeros(M), np.zeros((N, M))
    for _ in run.play():
        check_round(run)
        lost += before[run.silenced].sum(axis=0)
        stayed = np.setdiff1d(run.members(), run.arrived)
        if name == "feddyn" and run.left and not run.accepted[stayed].any():
            lost = np.zeros(M)
        if check is not None:
            check(run, lost)
        units = getattr(run.strategy, "units", np.ones(0))
        for client in range(N) if at_clients else ():
            before[client] = run.vector(client) * (units[client] if client < len(units) else 1.0)


@pytest.mark.parametrize(
    ("name", "options"),
    [("mimic", {}), ("fedlaavg", {}), ("fedlaavg", {"weights": "none"}), ("focus", {})],
    ids=str,
)
@settings(max_examples=2 * EXAMPLES, deadline=None, derandomize=True, phases=PHASES)
@given(history=HISTORIES)
def test_both_memories_are_the_same(name: str, options: dict[str, Any], history: History) -> None:
    """At the server and at the clients, as long as farewells come and nothing is late."""
    history = history.punctual()
    if name == "fedlaavg" and not options:  # clients are told N p_k before it is known who has data
        history = history._replace(data=[0] * N)
    at_server, at_clients = (
        Federation(name, history, memory=memory, **options) for memory in ("server", "client")
    )
    for _ in zip(at_server.play(), at_clients.play(), strict=True):
        close(at_clients.strategy.weights, at_server.strategy.weights, rtol=1e-9, atol=1e-11)


FORGET: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("fedavg", "fedsgd", "fedprox", "fednova", "fedexp", "scaffold", "feddyn")),
    *((name, {}) for name in ("mimic", "fedgate", "vrl-sgd", "mifa", "fedvarp", "fedstale", "fedau")),
    *((name, {}) for name in ("fedlaavg", "focus", "fedasync", "fedbuff")),
    *((name, {"reboot": "off"}) for name in ("scheme-a", "scheme-b", "scheme-c")),
    *((name, {"memory": "client"}) for name in ("mimic", "fedlaavg", "focus")),
    *(("ghbm", {"anchor": anchor}) for anchor in ("own", "local")),
    ("cafed", {}),
    ("f3ast", {"rate_memory": 1.0}),
]


@pytest.mark.parametrize(("name", "options"), FORGET, ids=lambda part: str(part) if part else "-")
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, phases=PHASES)
@given(history=HISTORIES)
def test_once_all_are_replaced_only_the_new_ones_count(
    name: str, options: dict[str, Any], history: History
) -> None:
    """As in a run that begins with them from the same weights; the old ones leave as they come."""
    history = history.punctual()._replace(data=[0] * N, departure="exclude")
    there = dict.fromkeys(range(N), (E, 0))
    turnover = [Round(there, "all", set()), *[Round(there, set(), set())] * 2]
    run = Federation(name, history._replace(rounds=[*history.rounds, *turnover]), **options)
    anew = Federation(name, history._replace(rounds=[turnover[1]] * 3), **options)
    old, new = run.play(), anew.play()
    for _ in history.rounds:
        next(old)
    coming = np.setdiff1d(np.arange(N), np.flatnonzero(run.strategy.roster.member))
    anew.restart(begin(name, coming, run.strategy.weights, **options))
    for _ in zip(old, new, strict=True):
        assert run.members().tolist() == coming.tolist()
        close(run.strategy.weights, anew.strategy.weights, rtol=1e-9, atol=1e-9)
