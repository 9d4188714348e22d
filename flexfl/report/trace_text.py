"""The statistics of a trace in words."""

from __future__ import annotations

from collections.abc import Iterator

from flexfl.ground.wording import count
from flexfl.report.trace_report import Bias, SpellLengths, TraceReport


def describe(report: TraceReport) -> Iterator[tuple[str, str]]:
    """Yield the lines of the summary, each a name and a text."""
    if report.virtual_seconds is not None:
        yield "virtual time", f"{report.virtual_seconds / 3600:.1f} hours"
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
    yield "longest absence", _longest(report.gaps)
    names = ", ".join(map(str, report.never_seen_first))
    more = ", ..." if report.never_seen > len(report.never_seen_first) else ""
    yield (
        "never seen",
        f"{count(report.never_seen, 'client')}: {names}{more}" if report.never_seen else "none",
    )
    if report.availability_period is None:
        yield "Assumption 4", "(FedLaAvg) does not hold in these rounds: some member is never online"
    else:
        yield "Assumption 4", f"(FedLaAvg) holds in these rounds for E >= {report.availability_period}"
    yield "tau_max", f"(MimiC) without a reply for at most {_longest(report.unanswered)}"
    for bias in report.bias:
        yield bias.scheme, _weights(bias)


def _spells(spells: SpellLengths) -> str:
    if not spells.count:
        return "none"
    lengths = f"mean {spells.mean:.1f} rounds, median {spells.median}, longest {spells.longest}"
    return f"{count(spells.count, 'spell')}, {lengths}"


def _longest(spells: SpellLengths) -> str:
    return f"{count(spells.longest, 'round')} (client {spells.longest_of})" if spells.count else "0 rounds"


def _weights(bias: Bias) -> str:
    if bias.minimum is None:
        return "no update ever counts"
    favoured, neglected = (
        ", ".join(f"{client} ({ratio:.2f})" for client, ratio in pairs)
        for pairs in (bias.favoured, bias.neglected)
    )
    excluded = f"; {count(bias.excluded, 'client')} excluded throughout" if bias.excluded else ""
    spread = f"lowest {bias.minimum:.2f}, median {bias.median:.2f}, highest {bias.maximum:.2f}"
    update = f"update {bias.scale:.1%} of full participation"
    return f"{spread}; favours {favoured}; neglects {neglected}{excluded}; {update}"
