"""The statistics of a trace in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from fedtide.ground.wording import client_name, count, duration
from fedtide.report import plots
from fedtide.report.trace_statistics import Bias, SpellLengths, Spread, TimelineReport, TraceReport

Line = tuple[str, str]
"""A name and a text."""


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
    yield "never seen", _never(report.never_seen, report.never_seen_first, devices)
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
        ", ".join(f"{client_name(client, devices)}: {ratio:.2f}" for client, ratio in pairs)
        for pairs in (bias.favoured, bias.neglected)
    )
    excluded = f"; {count(bias.excluded, 'client')} excluded throughout" if bias.excluded else ""
    spread = f"lowest {bias.minimum:.2f}, median {bias.median:.2f}, highest {bias.maximum:.2f}"
    update = f"update {bias.scale:.1%} of full participation"
    return f"{spread}; favours {favoured}; neglects {neglected}{excluded}; {update}"


def describe_timeline(report: TimelineReport, devices: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the lines of the summary, each a name and a text; `devices` are those of the clients."""
    yield "virtual time", duration(report.virtual_seconds)
    yield "rounds", f"{report.num_rounds:,}{_rate(report.num_rounds, report)}"
    incomplete = f", {report.incomplete / report.replies:.1%} of them incomplete" if report.replies else ""
    yield "replies", f"{report.replies:,}{_rate(report.replies, report)}{incomplete}"
    numbers = {
        "dropped": report.dropped,
        "lost": report.lost,
        "withdrawn": report.withdrawn,
        "at work at the end": report.at_work,
    }
    yield (
        "other tasks",
        ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number) or "none",
    )
    if report.lag.mean is not None:
        yield "lag", f"changes of the weights per reply: {_distribution(report.lag, '{:.3g}'.format)}"
        yield "seconds", f"of a task with a reply: {_distribution(report.task_seconds, duration)}"
    yield (
        "idle",
        f"{report.idle:.1%} of the {count(report.limit, 'place')} when rounds begin, by their seconds",
    )
    shares = [share for share in report.online if share is not None]
    if shares:
        yield "online", f"{sum(shares) / len(shares):.1%} of the members when rounds begin"
    yield "never asked", _never(report.never_asked, report.never_asked_first, devices)


def _never(number: int, first: Sequence[int], devices: Sequence[str]) -> str:
    names = ", ".join(client_name(k, devices) for k in first)
    more = ", ..." if number > len(first) else ""
    return f"{count(number, 'client')}: {names}{more}" if names else "none"


def _rate(number: int, report: TimelineReport) -> str:
    if not report.hours:
        return ""
    rate = number / report.hours
    return f", {f'{rate:,.0f}' if rate >= 100 else f'{rate:.3g}'} per virtual hour"


def _distribution(spread: Spread, shown: Any) -> str:
    names = ("mean", "median", "90th percentile", "largest")
    return ", ".join(
        f"{name} {shown(value)}" for name, value in zip(names, asdict(spread).values(), strict=True)
    )
