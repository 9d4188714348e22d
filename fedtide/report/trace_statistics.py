"""Statistics of a trace, before training: availability, spells, the bias of three schemes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.base.wording import client_name, count
from fedtide.engine.client_states import State, States
from fedtide.engine.history import Numbers
from fedtide.report import plots
from strategies.schemes import scheme_a, scheme_b, scheme_c
from traces import RoundAvailability, Trace, finished_steps
from traces.base import SECOND, availability_in

SCHEMES = {"scheme-a": scheme_a, "scheme-b": scheme_b, "scheme-c": scheme_c}
NAMED = 3  # clients listed at each end of a ranking
MOST_NAMED = 10  # clients listed that never take part

Line = tuple[str, str]
"""A name and a text."""


@dataclass(frozen=True)
class SpellLengths:
    """Lengths of spells of consecutive rounds, cut off at the first and the last round."""

    count: int
    mean: float
    median: int
    longest: int
    longest_of: int  # the client with the longest spell; -1 if there is none


@dataclass(frozen=True)
class Bias:
    """Clients' weights in a scheme's update against their shares of the data, E[p_tau^k s_tau^k] / (p^k E).

    The ratios are divided by their mean, the `scale`: all are 1 if z_tau of Theorem 3.1 (Ruan et al.) is 0.
    Clients that are never members are left out. If no update ever counts, the scale is 0 and all else is
    empty.
    """

    scheme: str
    scale: float  # weighted by the shares: the size of the update relative to full participation
    minimum: float | None
    median: float | None
    maximum: float | None
    favoured: list[tuple[int, float]]  # clients with the largest ratios above 1, as shown
    neglected: list[tuple[int, float]]  # and the smallest below
    excluded: int  # number of clients with ratio 0


@dataclass(frozen=True)
class TraceReport:
    """The statistics of a trace over rounds 1..R."""

    num_clients: int
    num_rounds: int
    virtual_seconds: float | None
    online: list[float | None]  # fraction of the members in each round; None in a round without members
    took_part: list[float | None]  # likewise, those whose work arrives, in this round or a later one
    sessions: SpellLengths
    gaps: SpellLengths  # offline while a member
    unanswered: SpellLengths  # without work that arrives; the longest is tau_max of MimiC
    complete: float  # this and the next two: fractions of all online clients, over all rounds
    incomplete: float
    dropped: float
    finished: float  # mean fraction of E that incomplete clients finish
    never_seen: int  # number of members that are never online
    never_seen_first: list[int]  # some of them
    availability_period: int | None
    """The E of FedLaAvg's Assumption 4: each member is online at least once in any E consecutive rounds.

    None if it does not hold within these rounds.
    """
    bias: list[Bias]
    rates: Numbers
    """By client: among its rounds as a member, the share in which its work arrives; NaN without any."""
    ratios: dict[str, Numbers]
    """By scheme and client, the ratios of `Bias`; NaN as well, and where no update ever counts."""


def observe(
    trace: Trace,
    num_rounds: int,
    sizes: NDArray[np.int64],
    planned: NDArray[np.int64],
    on_round: Callable[[int, States], None] = lambda t, states: None,
) -> TraceReport:
    """Evaluate the rounds once, in memory that grows with N + R, not with N R.

    All online clients are selected: sampling (`--clients-per-round`) and fast reboot are ignored. The shares
    p^k of the examples are relative to the members of a round; `planned` is E of each client. `on_round` is
    called with each round and the states of all clients, shape (N,); work that arrives later is late.
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
        now = availability_in(trace, t)
        steps = finished_steps(now.completion, planned)
        states = _states(now, steps, planned, trace.lost(t))
        replied = states >= State.INCOMPLETE
        late = replied & (trace.delay(t) > 0) if trace.has_late_replies else np.zeros(n, np.bool_)
        on_round(t, np.where(late, np.int8(State.LATE), states))
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
    holds = was_member.any() and not len(never_online)  # the assumption of FedLaAvg
    selected = max(1, int(counts[State.DROPPED :].sum()))
    ratios = {name: _ratios(weight[name], full) for name in SCHEMES}
    return TraceReport(
        num_clients=n,
        num_rounds=num_rounds,
        virtual_seconds=None if (end := trace.ends(num_rounds)) is None else end / SECOND,
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
        never_seen_first=never_online[:MOST_NAMED].tolist(),
        availability_period=int(gaps.longest.max()) + 1 if holds else None,
        bias=[_bias(name, weight[name], full, ratios[name]) for name in SCHEMES],
        rates=plots.ratios(rounds_with[1], rounds_with[0]),
        ratios=ratios,
    )


def _states(
    now: RoundAvailability, steps: NDArray[np.int64], planned: NDArray[np.int64], lost: NDArray[np.bool_]
) -> States:
    """Return the states of all clients if those online are selected; late replies count as others."""
    replied = (steps > 0) & ~lost
    states = np.zeros(len(steps), np.int8)
    for state, clients in (
        (State.OFFLINE, now.member),
        (State.DROPPED, now.online),
        (State.LOST, (steps > 0) & lost),
        (State.INCOMPLETE, replied),
        (State.COMPLETE, replied & (steps >= planned)),
    ):
        states[clients] = state
    return states


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


def _ratios(weight: Numbers, full: Numbers) -> Numbers:
    """Return sum_t p_t^k s_t^k / E over sum_t p^k, an estimate of the expectations' ratio, over its mean."""
    total = weight.sum()
    return plots.ratios(weight, full * (total / full.sum())) if total else np.full(len(full), np.nan)


def _bias(scheme: str, weight: Numbers, full: Numbers, ratios: Numbers) -> Bias:
    members = np.flatnonzero(full)
    scale = float(weight.sum() / full.sum()) if len(members) else 0.0
    if not scale:
        return Bias(scheme, 0.0, None, None, None, [], [], len(members))
    ratio = ratios[members]
    order = members[np.argsort(ratio, kind="stable")]
    shown = np.round(ratios[order], 2)
    below, above = order[shown < 1], order[shown > 1]
    neglected, favoured = (
        [(int(k), float(ratios[k])) for k in clients] for clients in (below[:NAMED], above[::-1][:NAMED])
    )
    least, median, most = (float(of(ratio)) for of in (np.min, np.median, np.max))
    return Bias(scheme, scale, least, median, most, favoured, neglected, int((ratio == 0).sum()))


def describe(report: TraceReport, devices: Sequence[str] = (), began: float | None = None) -> Iterator[Line]:
    """Yield the lines of the summary, each a name and a text.

    `devices` are those of the clients, and `began` is when virtual time did, see `Participation`.
    """
    if (seconds := report.virtual_seconds) is not None:
        period = "" if began is None else f", {plots.date(began)} to {plots.date(began + seconds)} UTC"
        yield "virtual time", f"{seconds / 3600:.1f} hours{period}"
    fractions = [(online, t) for t, online in enumerate(report.online, start=1) if online is not None]
    if fractions:
        mean = sum(online for online, _ in fractions) / len(fractions)
        (low, first), (high, last) = min(fractions), max(fractions, key=lambda pair: (pair[0], -pair[1]))
        ends = f"lowest {low:.1%} (round {first}), highest {high:.1%} (round {last})"
        yield "online", f"{mean:.1%} of the members on average, {ends}"
    yield "sessions", _spells(report.sessions)
    yield "gaps", _spells(report.gaps)
    partly = f"{report.incomplete:.1%} incomplete (with {report.finished:.1%} of E on average)"
    yield "work", f"of those online, {report.complete:.1%} complete, {partly}, {report.dropped:.1%} dropped"
    yield "longest absence", _longest(report.gaps, devices)
    yield "never seen", never(report.never_seen, report.never_seen_first, devices)
    holds = f"holds in these rounds for E >= {report.availability_period}"
    fails = "does not hold in these rounds: some member is never online"
    yield "Assumption 4", f"(FedLaAvg) {fails if report.availability_period is None else holds}"
    yield "tau_max", f"(MimiC) without a reply for at most {_longest(report.unanswered, devices)}"
    for bias in report.bias:
        yield bias.scheme, _weights(bias, devices)


def _spells(spells: SpellLengths) -> str:
    if not spells.count:
        return "none"
    lengths = f"mean {spells.mean:.1f} rounds, median {spells.median}, longest {spells.longest}"
    return f"{count(spells.count, 'spell')}, {lengths}"


def _longest(spells: SpellLengths, devices: Sequence[str]) -> str:
    if not spells.count:
        return "0 rounds"
    return f"{count(spells.longest, 'round')} (client {client_name(spells.longest_of, devices)})"


def _weights(bias: Bias, devices: Sequence[str]) -> str:
    if bias.minimum is None:
        return "no update ever counts"
    favoured, neglected = (
        ", ".join(f"{client_name(client, devices)}: {ratio:.2f}" for client, ratio in pairs) or "nobody"
        for pairs in (bias.favoured, bias.neglected)
    )
    excluded = f"; {count(bias.excluded, 'client')} excluded throughout" if bias.excluded else ""
    spread = f"lowest {bias.minimum:.2f}, median {bias.median:.2f}, highest {bias.maximum:.2f}"
    update = f"update {bias.scale:.1%} of full participation"
    return f"{spread}; favours {favoured}; neglects {neglected}{excluded}; {update}"


def never(number: int, first: Sequence[int], devices: Sequence[str]) -> str:
    """Describe the clients that never take part, of which the first are given."""
    names = ", ".join(client_name(k, devices) for k in first)
    more = ", ..." if number > len(first) else ""
    return f"{count(number, 'client')}: {names}{more}" if names else "none"
