"""Claims of a comparison: rankings of its methods over its settings, and the sentences that sum them up.

A setting (see `methods`) is the unit of the tests, in which each method has one value, the mean over its
seeds. Seeds are not settings: they ask the same question again, and more of them make any difference
significant that holds for one trace on one data set. A claim about methods is one about other traces and data
sets, too, and only different ones of these support it (Demšar 2006, Section 3.2: "the number of data sets",
not of samples).

A method of which a run failed, or never reached the target, is the worst in the setting; several such are
equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedtide.base.wording import count
from fedtide.comparison.measures import measures_of
from fedtide.comparison.methods import label_of, method_of, setting_of
from fedtide.comparison.ranking import Ranking
from fedtide.comparison.results import Row
from fedtide.comparison.tables import Columns

MAX_NAMES = 6  # in a part of a sentence
SMALLEST_P = 1e-4  # that is shown
RANKS = (
    "Mean ranks over settings, 1 for the best; for each other method, the share of settings in which the "
    "best is better (ties half), the median of its lead, and p."
)


class Lacking(NamedTuple):
    """A run of a comparison that is not finished: its varied settings, and whether it has failed."""

    varied: Mapping[str, Any]
    failed: bool


def rankings_of(rows: Sequence[Row], lacking: Sequence[Lacking] = ()) -> list[Ranking]:
    """Rank the methods by the score, and by the rounds and virtual seconds to each target.

    There are no rankings of a single method, and none by scores where runs stop at a target. Settings
    in which a method did not run, or has not finished yet, are left out.
    """
    cells = {_place(row.varied): row for row in rows}
    failed = {_place(run.varied) for run in lacking if run.failed}
    waiting = {_place(run.varied) for run in lacking if not run.failed}
    places = [*cells, *failed, *waiting]
    settings, methods = (list(dict.fromkeys(place[i] for place in places)) for i in (0, 1))
    if len(methods) < 2:
        return []
    ended = (cells.keys() | failed) - waiting
    complete = [setting for setting in settings if all((setting, m) in ended for m in methods)]
    left_out = len(settings) - len(complete)
    found = []
    for measure in measures_of(rows):
        means = {place: float(np.mean([*measure.badness(row).values()])) for place, row in cells.items()}
        means |= dict.fromkeys(failed, math.inf)
        values = np.array([[means[setting, m] for m in methods] for setting in complete], np.float64)
        values = values.reshape(-1, len(methods))
        ranking = Ranking(measure.name, methods, values, left_out, measure.one_unit)
        order = np.argsort(ranking.mean_ranks, kind="stable")
        ordered = [methods[i] for i in order]
        found.append(replace(ranking, methods=ordered, values=values[:, order]))
    return found


def sentences(rankings: Sequence[Ranking]) -> list[str]:
    """Put the claims of rankings into words; if all have too few settings, only the first one says so."""
    enough = [ranking for ranking in rankings if ranking.enough]
    return [sentence(ranking) for ranking in enough or rankings[:1]]


def sentence(ranking: Ranking) -> str:
    """Put a ranking into words."""
    where, by = f"Over {count(ranking.num_settings, 'setting')}", f"by {ranking.measure}"
    out = f" {count(ranking.left_out, 'setting')} left out, where not all methods have run."
    rest = out if ranking.left_out else ""
    if not ranking.enough:
        return (
            f"{count(ranking.num_settings, 'setting')}: too few to tell methods apart {by}; that takes "
            f"{ranking.least} (combinations of trace, task and so on, not seeds).{rest}"
        )
    p = _shown(ranking.p)
    tests = f"{ranking.test}, p {p if p.startswith('<') else f'= {p}'}"
    if not (claims := _claims(ranking)):
        return f"{where} no method is told apart from another ({by}; {tests}).{rest}"
    if len(ranking.methods) > 2:
        tests += f"; Nemenyi, critical difference {ranking.critical_difference:.2f}"
    return f"{where} {'; '.join(claims)} ({by}; {tests}).{rest}"


def ranks_table(rankings: Sequence[Ranking]) -> list[Columns]:
    """Return the mean rank of each method, and how it compares with the best one: effect sizes and p."""
    shown: list[Columns] = []
    for ranking in (ranking for ranking in rankings if ranking.enough):
        against = {pair.worse: pair for pair in ranking.pairs if pair.better == ranking.methods[0]}
        for method, rank in zip(ranking.methods, ranking.mean_ranks.tolist(), strict=True):
            line = {"by": ranking.measure, "method": method, "mean rank": f"{rank:.2f}"}
            if pair := against.get(method):
                line["best wins"] = f"{pair.won:.0%}"
                line["lead of the best"] = "" if math.isnan(pair.lead) else f"{pair.lead:.3g}"
                line["p"] = _shown(pair.p)
            shown.append(line)
    return shown


def as_json(ranking: Ranking) -> dict[str, Any]:
    """Return the numbers of a ranking, for `--json`."""
    return {
        "measure": ranking.measure,
        "settings": ranking.num_settings,
        "left_out": ranking.left_out,
        "mean_ranks": dict(zip(ranking.methods, ranking.mean_ranks.tolist(), strict=True)),
        "test": ranking.test,
        "p": ranking.p,
        "critical_difference": ranking.critical_difference,
        "concordance": ranking.concordance,
        "pairs": [pair._asdict() for pair in ranking.pairs],
        "sentence": sentence(ranking),
    }


def listed(names: Sequence[str]) -> str:
    """List names in words, the first ones if there are many."""
    if len(names) > MAX_NAMES:
        return f"{', '.join(names[: MAX_NAMES - 1])} and {len(names) - MAX_NAMES + 1} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# Details


def _place(varied: Mapping[str, Any]) -> tuple[str, str]:
    """Return the setting and the method of a run."""
    return label_of(setting_of(varied)), label_of(method_of(varied))


def _shown(p: float) -> str:
    return f"{p:.2g}" if p >= SMALLEST_P else f"< {SMALLEST_P:g}"


def _claims(ranking: Ranking) -> list[str]:
    """Say which methods are ahead of others, after those that are not told apart from the best."""
    ahead: dict[str, list[str]] = {method: [] for method in ranking.methods}
    for pair in ranking.pairs:
        if pair.told_apart:
            ahead[pair.better].append(pair.worse)
    if not any(ahead.values()):
        return []
    best = [method for method in ranking.methods if method not in ahead[ranking.methods[0]]]
    claims = [f"{listed(best)} are not told apart"] if len(best) > 1 else []
    alike: dict[tuple[str, ...], list[str]] = {}
    for method, worse in ahead.items():
        if worse:
            alike.setdefault(tuple(worse), []).append(method)
    for behind, methods in alike.items():
        everybody = "both" if len(best) == 2 else "all of them"
        who = everybody if len(best) > 1 and methods == best else listed(methods)
        claims.append(f"{who} {'are' if len(methods) > 1 else 'is'} ahead of {listed(behind)}")
    return claims
