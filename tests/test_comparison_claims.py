"""Which methods a comparison tells apart: ranks, tests and sentences, against numbers from the literature."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import friedmanchisquare, rankdata

from fedtide.comparison.claims import Lacking, rankings_of, ranks_table, sentence, sentences
from fedtide.comparison.ranking import Ranking
from fedtide.comparison.results import CellRun, Row, rows_of
from fedtide.config.grid import cells
from fedtide.config.target import Target
from fedtide.engine.read_run import Run
from fedtide.report.ranks import ranks_figure

# Demšar (2006), Table 6: the ranks of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf by AUC on 14 data sets.
DEMSAR = """
4 3 2 1        1 2 3 4  4 1 2 3          4 1 3 2          4 2 3 1        1 2.5 4 2.5  3 2 4 1
2.5 2.5 4 1    4 3 2 1  2.5 2.5 2.5 2.5  4 2.5 1 2.5      3 2 4 1        4 1 2 3      3 1 4 2
"""


def test_the_ranks_and_the_critical_difference_of_demsar() -> None:
    """Mean ranks 3.143, 2.000, 2.893, 1.964; at 5 % Nemenyi's test, of 1.25, is "not powerful enough"."""
    values = np.array(DEMSAR.split(), float).reshape(14, 4)
    ranking = Ranking("AUC", ["C4.5", "+m", "+cf", "+m+cf"], values)
    assert ranking.ranks.tolist() == rankdata(values, axis=1).tolist() == values.tolist()
    assert ranking.mean_ranks == pytest.approx([3.143, 2.0, 2.893, 1.964], abs=5e-4)
    assert ranking.critical_difference == pytest.approx(1.25, abs=5e-3)
    statistic, p = friedmanchisquare(*values.T)
    assert ranking.p == pytest.approx(p)
    assert ranking.p < 0.05
    assert ranking.concordance == pytest.approx(statistic / (14 * 3))
    assert not any(pair.told_apart for pair in ranking.pairs)
    assert sentence(ranking).startswith(
        "Over 14 settings no method is told apart from another (by AUC; Friedman"
    )


TRACES = [f"bernoulli:p=0.{i}" for i in range(1, 10)] + ["always"]


def grid(finals: Mapping[str, Sequence[float]], reach: Sequence[Target] = (), **settings: Any) -> list[Row]:
    """Rows of methods with an accuracy under each trace, the mean of two seeds that differ by 0.02."""
    count = len(next(iter(finals.values())))
    given = {"strategy": [*finals], "trace": TRACES[:count], "seed": [0, 1], **settings}
    found = []
    for cell in cells(given, "here"):
        value = finals[cell.settings.strategy][TRACES.index(cell.settings.trace)]
        value += 0.01 if cell.settings.seed else -0.01
        records = [{"round": t, "accuracy": value * t / 3} for t in range(4)]
        found.append(CellRun(cell, Run(Path(), {}, {"final": {"accuracy": value}}, records)))
    return rows_of(found, None, reach)


def test_what_is_claimed() -> None:
    """By hand: mean ranks 1.5, 1.5 and 3, a critical difference of 2.343 sqrt(12 / 60) = 1.05."""
    first, second = [0.8, 0.9] * 5, [0.9, 0.8] * 5
    (ranking,) = rankings_of(grid({"fedavg": [0.5] * 10, "fedvarp": first, "scaffold": second}))
    assert sentence(ranking) == (
        "Over 10 settings fedvarp and scaffold are not told apart; both are ahead of fedavg "
        "(by accuracy; Friedman, p = 0.00055; Nemenyi, critical difference 1.05)."
    )
    assert ranking.groups == [(0, 1)]
    equal, *pairs = ranking.pairs
    assert (equal.won, equal.lead) == (0.5, pytest.approx(0))
    assert [(pair.worse, pair.won, round(pair.lead, 9)) for pair in pairs] == [("fedavg", 1, 0.35)] * 2
    assert [line["mean rank"] for line in ranks_table([ranking])] == ["1.50", "1.50", "3.00"]
    figure = ranks_figure([ranking])
    assert figure is not None
    assert figure.views[""]["layout"]["yaxis"]["ticktext"] == ["fedvarp", "scaffold", "fedavg"]
    assert "fedvarp, scaffold" in str(figure.views[""]["data"])


def test_seeds_and_what_belongs_to_a_method_are_no_settings() -> None:
    """A hundred runs under two traces are two settings; another rate makes another method."""
    values = {"fedavg": [0.5, 0.6], "mifa": [0.8, 0.9]}
    many = grid(values, seed=[*range(50)])
    (ranking,) = rankings_of(many)
    assert ranking.num_settings == 2
    (said,) = sentences([ranking])
    assert said.startswith(
        "2 settings: too few to tell methods apart by accuracy; that takes 6 (combinations"
    )
    assert ranks_figure([ranking]) is None
    (ranking,) = rankings_of(grid(values, **{"learning-rate": [0.1, 0.2], "local-steps": [5, 6, 7]}))
    assert ranking.num_settings == 6
    assert len(ranking.methods) == 4
    assert "fedavg · learning-rate 0.1" in ranking.methods
    (ranking,) = rankings_of(grid(values, **{"round-ends": [1, 10]}))
    assert (ranking.num_settings, len(ranking.methods)) == (2, 4)
    assert rankings_of(grid({"fedavg": [0.5, 0.6]})) == []


def test_two_methods() -> None:
    """Wilcoxon's p of six differences with one sign is 2 / 2^6; of five it cannot be below 0.05."""
    better, worse = [0.6, 0.65, 0.7, 0.75, 0.8, 0.9], [0.59, 0.6, 0.6, 0.5, 0.5, 0.3]
    (ranking,) = rankings_of(grid({"fedavg": worse, "mifa": better}))
    assert ranking.p == pytest.approx(2 / 64)
    assert sentence(ranking) == "Over 6 settings mifa is ahead of fedavg (by accuracy; Wilcoxon, p = 0.031)."
    (ranking,) = rankings_of(grid({"fedavg": worse[:5], "mifa": better[:5]}))
    assert math.isnan(ranking.p)
    assert "too few" in sentence(ranking)
    values = np.array([*([1.0, 1.0 + i] for i in range(1, 7)), [3.0, math.inf]])
    assert Ranking("rounds", ["a", "b"], values).p == pytest.approx(2 / 2**7)
    assert Ranking("final metric", ["a", "b"], values, one_unit=False).p == pytest.approx(2 / 2**7)
    assert Ranking("rounds", ["a", "b"], np.ones((8, 2))).p == 1


def test_many_small_leads_are_no_claim_against_few_large_ones() -> None:
    """Wilcoxon's test then speaks for the one that wins less often."""
    a = np.zeros(30)
    b = np.array([*np.linspace(0.001, 0.016, 16), *-np.linspace(0.017, 0.030, 14)])
    ranking = Ranking("accuracy", ["a", "b"], np.stack([a, b], 1))
    assert ranking.mean_ranks[0] < ranking.mean_ranks[1]
    assert ranking.p < 0.05
    assert sentence(ranking).startswith("Over 30 settings no method is told apart")


def test_who_failed_or_never_got_there_is_the_worst() -> None:
    """Two such are equal; a setting in which a run has not finished yet is left out, and so are gaps."""
    finals = {"fedavg": [0.5] * 6, "fedvarp": [0.6] * 6, "mifa": [0.9] * 6, "scaffold": [0.7] * 6}
    lacking = [Lacking({"strategy": "mifa", "trace": TRACES[0], "seed": 1}, failed=True)]
    lacking += [Lacking({"strategy": "fedavg", "trace": TRACES[5], "seed": 0}, failed=False)]
    target = Target("", 0.65)
    final, to_target = rankings_of(grid(finals, [target]), lacking)
    assert (final.measure, to_target.measure) == ("accuracy", "rounds to 65%")
    assert (final.num_settings, final.left_out) == (5, 1)
    assert "1 setting left out" in sentence(final)
    by_name = dict(zip(final.methods, final.ranks[0], strict=True))
    assert by_name == {"mifa": 4, "scaffold": 1, "fedvarp": 2, "fedavg": 3}
    by_name = dict(zip(to_target.methods, to_target.ranks[0], strict=True))
    assert by_name == {"scaffold": 1, "mifa": 3, "fedvarp": 3, "fedavg": 3}  # places 2 to 4
    assert to_target.methods == ["scaffold", "mifa", "fedavg", "fedvarp"]
    assert to_target.ranks.tolist()[1:] == [[1.5, 1.5, 3.5, 3.5]] * 4


def test_final_values_of_runs_that_stop_are_not_ranked() -> None:
    finals = {"fedavg": [0.5] * 6, "mifa": [0.9] * 6}
    stopping = grid(finals, [Target("", 0.5)], **{"stop-at": "accuracy=0.5"})
    assert [ranking.measure for ranking in rankings_of(stopping)] == ["rounds to 50%"]
