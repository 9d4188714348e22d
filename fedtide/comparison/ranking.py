"""How methods rank over settings, and which of them are told apart: Friedman, Nemenyi, Wilcoxon.

Methods are ranked in each setting, 1 for the best, ties at their mean rank. Friedman's test says whether the
mean ranks differ at all; if so, Nemenyi's says which two do: those whose mean ranks are further apart than
the critical difference. Two methods are compared by Wilcoxon's test of signed ranks instead.

Demšar, J. (2006). Statistical comparisons of classifiers over multiple data sets. JMLR 7, 1-30.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from fedtide.engine.history import Numbers

LEVEL = 0.05
ENOUGH = 5  # settings for Friedman's test, whose distribution is an approximation
ENOUGH_FOR_TWO = 6  # with fewer, Wilcoxon's p is above the level whatever the values


class Pair(NamedTuple):
    """Two methods, the one with the better mean rank first."""

    better: str
    worse: str
    p: float
    told_apart: bool
    won: float  # share of the settings in which the first is better; equal values count half
    lead: float  # median over settings of how much better its value is; NaN: there is no common unit


@dataclass(frozen=True)
class Ranking:
    """How k methods rank over n settings by one measure."""

    measure: str  # what is ranked, such as `accuracy` or `rounds to 80%`
    methods: Sequence[str]  # the best mean rank first
    values: Numbers  # by setting and method, shape (n, k); lower is better, and infinite the worst
    left_out: int = 0  # further settings, where a method has not, or not yet, run
    one_unit: bool = True  # whether differences of values can be compared between settings

    @property
    def num_settings(self) -> int:
        """n, the settings that count."""
        return len(self.values)

    @property
    def least(self) -> int:
        """How many settings a test takes."""
        return ENOUGH_FOR_TWO if len(self.methods) == 2 else ENOUGH

    @property
    def enough(self) -> bool:
        """Whether there are settings enough for a test."""
        return self.num_settings >= self.least

    @cached_property
    def ranks(self) -> Numbers:
        """The ranks in each setting, shape (n, k)."""
        better = (self.values[:, None, :] < self.values[:, :, None]).sum(2)
        equal = (self.values[:, None, :] == self.values[:, :, None]).sum(2)
        return np.asarray(better + (equal + 1) / 2)

    @cached_property
    def mean_ranks(self) -> Numbers:
        """The mean rank of each method, shape (k,); NaN without a setting."""
        return np.asarray(self.ranks.sum(0) / (self.num_settings or math.nan))

    @property
    def test(self) -> str:
        """The test of all methods together."""
        if len(self.methods) > 2:
            return "Friedman"
        return "Wilcoxon" if self.one_unit else "sign test"

    @cached_property
    def p(self) -> float:
        """How probable such different ranks are if the methods are equal; NaN: too few settings."""
        if not self.enough:
            return math.nan
        from scipy.stats import binomtest, friedmanchisquare, wilcoxon  # take half a second to import

        if np.ptp(self.ranks, axis=1).max() == 0:
            return 1.0
        if self.test == "Friedman":
            return float(friedmanchisquare(*self.ranks.T).pvalue)
        lead = _lead(*self.values.T)
        if self.test == "Wilcoxon":
            # Its statistic is one of ranks: the infinite differences may be any that are the largest.
            finite = np.abs(lead[np.isfinite(lead)])
            most = 2 * finite.max(initial=0.5)
            return float(wilcoxon(np.clip(lead, -most, most)).pvalue)
        return float(binomtest(int((lead > 0).sum()), int((lead != 0).sum())).pvalue)

    @cached_property
    def critical_difference(self) -> float:
        """How far two mean ranks have to be apart (Nemenyi; Demšar, Section 3.2.2); NaN for two methods."""
        n, k = self.values.shape
        if k == 2 or not n:
            return math.nan
        from scipy.stats import studentized_range

        return float(studentized_range.ppf(1 - LEVEL, k, math.inf)) * math.sqrt(k * (k + 1) / (12 * n))

    @property
    def concordance(self) -> float:
        """Kendall's W, the effect size of Friedman's test; NaN if all are ties.

        It is from 0, where settings rank the methods as if by chance, to 1, where all do in the same way.
        """
        n, k = self.ranks.shape
        between = n * n * ((self.mean_ranks - (k + 1) / 2) ** 2).sum()
        all_ranks = n * ((self.ranks - (k + 1) / 2) ** 2).sum()
        return float(between / all_ranks) if all_ranks else math.nan

    @cached_property
    def pairs(self) -> list[Pair]:
        """All pairs of methods, those of the best first."""
        return [self._pair(i, j) for i, j in combinations(range(len(self.methods)), 2)]

    @property
    def groups(self) -> list[tuple[int, int]]:
        """The largest groups of neighbours of which no two are told apart: first and last positions."""
        apart = {(pair.better, pair.worse) for pair in self.pairs if pair.told_apart}
        last = [
            max(j for j in range(i, len(self.methods)) if (method, self.methods[j]) not in apart)
            for i, method in enumerate(self.methods)
        ]
        return [(i, j) for i, j in enumerate(last) if j > i and (i == 0 or last[i - 1] < j)]

    def _pair(self, i: int, j: int) -> Pair:
        n, k = self.values.shape
        own, other = self.ranks[:, i], self.ranks[:, j]
        won = float(((own < other) + (own == other) / 2).mean()) if n else math.nan
        lead = _lead(self.values[:, i], self.values[:, j])
        median = float(np.median(lead)) if n and self.one_unit else math.nan
        p = self.p
        if self.enough and k > 2:
            from scipy.stats import studentized_range

            distance = (self.mean_ranks[j] - self.mean_ranks[i]) * math.sqrt(12 * n / (k * (k + 1)))
            p = float(studentized_range.sf(distance, k, math.inf))
        apart = max(p, self.p) < LEVEL
        if apart and self.test == "Wilcoxon":  # many small leads may weigh less than few large ones
            from scipy.stats import rankdata

            apart = float((rankdata(np.abs(lead)) * np.sign(lead)).sum()) > 0
        return Pair(self.methods[i], self.methods[j], p, apart, won, median)


def _lead(own: Numbers, other: Numbers) -> Numbers:
    """Return the lead of the first values over the others; two infinite values are equal."""
    with np.errstate(invalid="ignore"):
        return np.where(own == other, 0.0, other - own)
