"""Statistics of a trace, before training: availability, spells, and the bias of three schemes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexfl.report.figure import Numbers
from flexfl.report.participation import State, States
from strategies.schemes import scheme_a, scheme_b, scheme_c
from traces import Trace, finished_steps

SCHEMES = {"scheme-a": scheme_a, "scheme-b": scheme_b, "scheme-c": scheme_c}
NAMED = 3  # clients listed at each end of a ranking


@dataclass(frozen=True)
class SpellLengths:
    """Lengths of spells of consecutive rounds, cut off at the first and the last round."""

    count: int
    mean: float
    median: int
    longest: int
    longest_of: int
    """The client with the longest spell; -1 if there is none."""


@dataclass(frozen=True)
class Bias:
    """Clients' weights in a scheme's update against their shares of the data, E[p_tau^k s_tau^k] / (p^k E).

    Clients that are never members are left out. If no update ever counts, the scale is 0 and all else is
    empty.

    Attributes
    ----------
    scale
        The mean ratio, weighted by the shares: the size of the update relative to full participation. The
        other numbers are divided by it: all are 1 if z_tau of Theorem 3.1 (Ruan et al.) is 0.
    favoured, neglected
        (client, ratio) of the clients with the largest and the smallest ratios.
    excluded
        Number of clients with ratio 0.
    """

    scheme: str
    scale: float
    minimum: float | None
    median: float | None
    maximum: float | None
    favoured: list[tuple[int, float]]
    neglected: list[tuple[int, float]]
    excluded: int


@dataclass(frozen=True)
class TraceReport:
    """The statistics of a trace over rounds 1..R.

    Attributes
    ----------
    online
        Fraction of the members that is online in each round; None in a round without members.
    took_part
        Likewise, fraction of the members whose work arrives, in this round or a later one.
    sessions, gaps
        Spells online, and spells offline while a member.
    unanswered
        Spells of membership in which no work arrives; the longest is tau_max of MimiC.
    complete, incomplete, dropped
        Fractions of all online clients, over all rounds.
    finished
        Mean fraction of E that incomplete clients finish.
    never_seen
        Number of members that are never online; `never_seen_first` are the first of them.
    availability_period
        The E of FedLaAvg's Assumption 4: each member is online at least once in any E consecutive rounds.
        None if it does not hold within these rounds.
    rates
        Share of its rounds of membership in which work of a client arrives, shape (N,); NaN for a client that
        is never a member.
    ratios
        The ratios of `Bias` by scheme, each of shape (N,); NaN as well, and where no update ever counts.
    """

    num_clients: int
    num_rounds: int
    virtual_seconds: float | None
    online: list[float | None]
    took_part: list[float | None]
    sessions: SpellLengths
    gaps: SpellLengths
    unanswered: SpellLengths
    complete: float
    incomplete: float
    dropped: float
    finished: float
    never_seen: int
    never_seen_first: list[int]
    availability_period: int | None
    bias: list[Bias]
    rates: Numbers
    ratios: dict[str, Numbers]


def observe(
    trace: Trace,
    num_rounds: int,
    sizes: NDArray[np.int64],
    planned: NDArray[np.int64],
    on_round: Callable[[int, States], None] = lambda t, states: None,
) -> TraceReport:
    """Evaluate the rounds once, in memory that grows with N + R, not with N R.

    All online clients are selected: sampling (`--clients-per-round`) and fast reboot are ignored.

    Parameters
    ----------
    trace
        The trace.
    num_rounds
        R.
    sizes
        Number of examples per client, shape (N,); the shares p^k are relative to the members of a round.
    planned
        E of each client, shape (N,).
    on_round
        Called with each round and the states of all clients, shape (N,); work that arrives later is late.
    """
    n = trace.num_clients
    sessions, gaps, unanswered = (_Spells(n, num_rounds) for _ in range(3))
    online: list[float | None] = []
    took_part: list[float | None] = []
    counts, finished = np.zeros(len(State), np.int64), 0.0
    was_online, was_member = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    rounds_with = np.zeros((2, n))  # as a member, and with work that arrives
    weight, full = {name: np.zeros(n) for name in SCHEMES}, np.zeros(n)
    for t in range(1, num_rounds + 1):
        now = trace.round(t)
        steps, lost = finished_steps(now.completion, planned), trace.lost(t)
        replied = (steps > 0) & ~lost
        states = np.zeros(n, np.int8)
        for state, clients in (
            (State.OFFLINE, now.member),
            (State.DROPPED, now.online),
            (State.LOST, (steps > 0) & lost),
            (State.INCOMPLETE, replied),
            (State.COMPLETE, replied & (steps >= planned)),
        ):
            states[clients] = state
        on_round(t, _with_late(trace, t, states))
        counts += np.bincount(states, minlength=len(State))
        rounds_with += np.stack([now.member, replied])
        finished += float((steps / planned)[states == State.INCOMPLETE].sum())
        sessions.add(now.online)
        gaps.add(now.member & ~now.online)
        unanswered.add(now.member & ~replied)
        was_online |= now.online
        was_member |= now.member
        members = int(now.member.sum())
        online.append(float(now.online.sum()) / members if members else None)
        took_part.append(float(replied.sum()) / members if members else None)
        if members:
            shares = sizes * now.member / sizes[now.member].sum()
            full += shares
            active = np.flatnonzero(replied)
            for name, coefficients in SCHEMES.items():
                p = coefficients(shares[active], steps[active], planned[active], members)
                weight[name][active] += p * steps[active] / planned[active]
    never_online = np.flatnonzero(was_member & ~was_online)
    selected = max(1, int(counts[State.DROPPED :].sum()))
    ratios = {name: _ratios(weight[name], full) for name in SCHEMES}
    return TraceReport(
        num_clients=n,
        num_rounds=num_rounds,
        virtual_seconds=trace.seconds(num_rounds),
        online=online,
        took_part=took_part,
        sessions=sessions.lengths(),
        gaps=gaps.lengths(),
        unanswered=unanswered.lengths(),
        complete=float(counts[State.COMPLETE] / selected),
        incomplete=float(counts[State.INCOMPLETE] / selected),
        dropped=float((counts[State.DROPPED] + counts[State.LOST]) / selected),
        finished=finished / max(1, int(counts[State.INCOMPLETE])),
        never_seen=len(never_online),
        never_seen_first=never_online[:10].tolist(),
        availability_period=None
        if len(never_online) or not was_member.any()
        else int(gaps.longest.max()) + 1,
        bias=[_bias(name, weight[name], full, ratios[name]) for name in SCHEMES],
        rates=_over(rounds_with[1], rounds_with[0]),
        ratios=ratios,
    )


def _with_late(trace: Trace, t: int, states: States) -> States:
    if not trace.has_late_replies:
        return states
    return np.where((states >= State.INCOMPLETE) & (trace.late(t) > 0), np.int8(State.LATE), states)


class _Spells:
    """Lengths of the spells of consecutive rounds in which a condition holds, for N clients at once."""

    def __init__(self, num_clients: int, num_rounds: int) -> None:
        self.running = np.zeros(num_clients, np.int64)  # length so far; 0: not in a spell
        self.longest = np.zeros(num_clients, np.int64)
        self.ended = np.zeros(num_rounds + 1, np.int64)  # number of spells of each length

    def add(self, holds: NDArray[np.bool_]) -> None:
        """Add a round, with the clients for which the condition holds, shape (N,)."""
        self.ended += np.bincount(self.running[~holds], minlength=len(self.ended))
        self.running = np.where(holds, self.running + 1, 0)
        self.longest = np.maximum(self.longest, self.running)

    def lengths(self) -> SpellLengths:
        """Return the statistics, including the spells that are still running."""
        counts = self.ended + np.bincount(self.running, minlength=len(self.ended))
        counts[0] = 0
        total = int(counts.sum())
        if not total:
            return SpellLengths(0, 0.0, 0, 0, -1)
        mean = float(counts @ np.arange(len(counts))) / total
        median = int(np.searchsorted(counts.cumsum(), total / 2))
        client = int(self.longest.argmax())
        return SpellLengths(total, mean, median, int(self.longest[client]), client)


def _over(values: Numbers, by: Numbers) -> Numbers:
    return np.asarray(np.divide(values, by, out=np.full(len(values), np.nan), where=by > 0))


def _ratios(weight: Numbers, full: Numbers) -> Numbers:
    """Return sum_t p_t^k s_t^k / E over sum_t p^k, an estimate of the expectations' ratio, over its mean."""
    total = weight.sum()
    return _over(weight, full * (total / full.sum())) if total else np.full(len(full), np.nan)


def _bias(scheme: str, weight: Numbers, full: Numbers, ratios: Numbers) -> Bias:
    """Rank the clients by their ratios."""
    members = np.flatnonzero(full)
    scale = float(weight.sum() / full.sum()) if len(members) else 0.0
    if not scale:
        return Bias(scheme, 0.0, None, None, None, [], [], len(members))
    ratio = ratios[members]
    order = np.argsort(ratio, kind="stable")
    ranked = [(int(members[k]), float(ratio[k])) for k in [*order[:NAMED], *order[::-1][:NAMED]]]
    first = len(order[:NAMED])
    return Bias(
        scheme,
        scale,
        float(ratio.min()),
        float(np.median(ratio)),
        float(ratio.max()),
        ranked[first:],
        ranked[:first],
        int((ratio == 0).sum()),
    )
