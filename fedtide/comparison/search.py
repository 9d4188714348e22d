"""The search for the best values of one method: what to try next, and what is given up early (Optuna).

What is proposed follows from the seed, the number of the trial, and the trials of all batches before: it does
not depend on how many of a batch run at a time, or on where a search was interrupted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedtide.comparison.ranges import Among, Between, Ranges, Values
from fedtide.ground.errors import SettingsError

if TYPE_CHECKING:
    import optuna

BATCH = 2  # trials of each batch after the first
WARM_UP = 0.25  # share of the rounds in which nothing is given up
SCORED = 0.1  # share of the evaluations, the last ones, of which the score is the mean

Curve = Mapping[int, float]
"""Values of the metric by round, NaN where it is not a number."""


class Trial(NamedTuple):
    """Values that were tried, and what came of it."""

    values: Values
    curve: Curve
    score: float  # mean of the metric over the last evaluations; NaN: not a number
    pruned: bool  # given up before the last round
    taken_from: Mapping[str, optuna.distributions.BaseDistribution]


class Proposal(NamedTuple):
    """Values to try next."""

    values: Values
    ranges: Ranges  # from which they were taken


def require_optuna() -> None:
    """Raise ValueError, which says what to install, where Optuna is missing."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise SettingsError("tune needs Optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def score_of(curve: Curve) -> float:
    """Return the mean of the last tenth of the evaluations after training began, at least of one."""
    values = [value for number, value in sorted(curve.items()) if number]
    last = values[-max(1, int(SCORED * len(values))) :]
    return float(np.mean(last)) if last else math.nan


@dataclass(frozen=True)
class SearchPlan:
    """How one method is searched: `count` trials, of which the first half is spread over the ranges."""

    ranges: Ranges
    count: int
    seed: int
    higher_is_better: bool = True

    @property
    def grid(self) -> list[Values]:
        """All combinations, if they are few enough to try each."""
        lists = [r.values for r in self.ranges.values() if isinstance(r, Among)]
        if len(lists) < len(self.ranges) or math.prod(map(len, lists)) > self.count:
            return []
        return [dict(zip(self.ranges, one, strict=True)) for one in itertools.product(*lists)]

    @property
    def begins(self) -> list[int]:
        """The number of the first trial of each batch, and in the end how many trials there are."""
        if self.grid:
            return [0, len(self.grid)]
        return [0, *range(self.half, self.count, BATCH), self.count]

    @property
    def half(self) -> int:
        """The number of trials in the first batch; later ones may be taken from wider ranges."""
        return -(-self.count // 2)

    def best(self, trials: Sequence[Trial]) -> Trial | None:
        """Return the first of the best trials that were not given up, if any has a score."""
        known = [trial for trial in trials if not trial.pruned and not math.isnan(trial.score)]
        return max(known, key=lambda trial: trial.score * (1 if self.higher_is_better else -1), default=None)

    def ends(self, trials: Sequence[Trial]) -> dict[str, str]:
        """Return at which end the best values are, "low" or "high", beyond which nothing was tried."""
        if (best := self.best(trials)) is None:
            return {}
        ends = {
            key: of.end(best.values[key], [trial.values[key] for trial in trials])
            for key, of in self.ranges.items()
        }
        return {key: end for key, end in ends.items() if end}

    def propose(self, trials: Sequence[Trial], wider: Ranges) -> list[Proposal]:
        """Return the next batch after some trials, those of whole batches; none if the search is over.

        `wider` are the ranges to search from the half on.
        """
        done = len(trials)
        if done >= self.begins[-1]:
            return []
        count = next(number for number in self.begins if number > done) - done
        if not done:
            return [Proposal(values, self.ranges) for values in self.grid or self._spread(count)]
        ranges = wider if done >= self.half else self.ranges
        first = self._between_old_and_new(trials, ranges) if done == self.half else []
        return [
            Proposal(values, ranges) for values in [*first, *self._suggest(trials, ranges, count)][:count]
        ]

    def _spread(self, count: int) -> list[Values]:
        """Return a Latin hypercube: the middles of as many equal parts of each range, each once."""
        rng = np.random.default_rng([self.seed, *b"tune-spread"])
        places = {key: (rng.permutation(count) + 0.5) / count for key in self.ranges}
        return [{key: of.at(places[key][i]) for key, of in self.ranges.items()} for i in range(count)]

    def _between_old_and_new(self, trials: Sequence[Trial], wider: Ranges) -> list[Values]:
        """Return the best values with those at an end moved into the middle of what is new there."""
        best = self.best(trials)
        moved: dict[str, Any] = {}
        for key, of in wider.items():
            old = self.ranges[key]
            if isinstance(of, Between) and isinstance(old, Between) and of != old:
                new = Between(*((of.low, old.low) if of.low < old.low else (old.high, of.high)), of.whole)
                moved[key] = new.at(0.5)
        return [{**best.values, **moved}] if best and moved else []

    def _suggest(self, trials: Sequence[Trial], ranges: Ranges, count: int) -> list[Values]:
        """Return what the tree-structured Parzen estimator proposes (Bergstra et al. 2011)."""
        import optuna

        found: list[Values] = []
        study = optuna.create_study(direction="maximize" if self.higher_is_better else "minimize")
        space = distributions(ranges)  # of all trials: narrower ones lie within
        for trial in trials:
            study.add_trial(frozen(trial._replace(taken_from=space), self.higher_is_better))
        for number in range(len(trials), len(trials) + count):
            drawn = int(np.random.default_rng([self.seed, *b"tune", number]).integers(2**32))
            study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=1, constant_liar=True, multivariate=True, seed=drawn
            )
            asked = study.ask(space).params
            found.append({key: rounded(ranges[key], value) for key, value in asked.items()})
        return found


def frozen(trial: Trial, higher_is_better: bool) -> optuna.trial.FrozenTrial:
    """Return a trial as Optuna stores it; one whose score is not a number is the worst."""
    import optuna

    state = optuna.trial.TrialState.PRUNED if trial.pruned else optuna.trial.TrialState.COMPLETE
    worst = -math.inf if higher_is_better else math.inf
    value = worst if math.isnan(trial.score) else trial.score
    return optuna.create_trial(
        params=dict(trial.values),
        distributions=dict(trial.taken_from),
        state=state,
        value=None if trial.pruned else value,
        intermediate_values=dict(trial.curve),
    )


def rounded(of: Between | Among, value: Any) -> Any:
    """Return what is tried in place of a proposed value: one with few digits."""
    return of.rounded(value) if isinstance(of, Between) else value


def distributions(ranges: Ranges) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return ranges as Optuna has them."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, of in ranges.items():
        if isinstance(of, Among):
            found[key] = CategoricalDistribution(of.values)
        elif of.whole:
            found[key] = IntDistribution(int(of.low), int(of.high), log=of.is_log)
        else:
            found[key] = FloatDistribution(of.low, of.high, log=of.is_log)
    return found


@dataclass(frozen=True)
class Pruning:
    """When a trial is given up: its best value so far is worse than the median of others at that round."""

    curves: Sequence[Curve]  # of the trials that were not given up
    key: str  # of the metric in records
    higher_is_better: bool
    rounds: int  # of a whole run


class Judge:
    """Follows one trial, and says whether it is given up."""

    def __init__(self, pruning: Pruning) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            direction="maximize" if pruning.higher_is_better else "minimize",
            pruner=optuna.pruners.MedianPruner(1, int(WARM_UP * pruning.rounds)),
        )
        study.add_trials(
            [optuna.create_trial(value=0.0, intermediate_values=dict(curve)) for curve in pruning.curves]
        )
        self.trial, self.key, self.rounds = study.ask(), pruning.key, pruning.rounds

    def is_hopeless(self, record: Mapping[str, Any]) -> bool:
        """Whether the trial is given up after the round of this record."""
        if self.key not in record or record["round"] >= self.rounds:  # not evaluated, or over anyway
            return False
        value = record[self.key]
        self.trial.report(math.nan if value is None else value, record["round"])
        return bool(self.trial.should_prune())
