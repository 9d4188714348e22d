"""The search for the best values of one method with Optuna: proposals, and trials that are given up early.

A proposal follows from the seed, the number of the trial, and the trials of all earlier batches. It depends
neither on how many trials run at a time nor on when a search was interrupted.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedtide.base.errors import SettingsError
from fedtide.comparison.methods import shown_value
from fedtide.comparison.ranges import Among, Between, Ranges, Values, widened, with_values
from fedtide.config import Settings
from fedtide.config.grid import Cell
from fedtide.engine.read_run import Run
from fedtide.tasks import Metric

BATCH = 2  # trials of each batch after the first
WARM_UP = 0.25  # share of the rounds in which nothing is given up
PRUNED = "pruned"  # an empty file in the folder of a run that was given up

Curve = Mapping[int, float]
"""Values of the metric by round, NaN where it is not a number."""


class Tried(NamedTuple):
    """What came of values with one seed."""

    score: float  # see `Run.score`
    curve: Curve
    pruned: bool = False  # given up before the last round


class Trial(NamedTuple):
    """Values that were tried, and what came of them with each seed."""

    values: Values
    runs: Sequence[Tried]

    @property
    def score(self) -> float:
        """The mean over seeds; NaN: one has none."""
        return statistics.fmean(run.score for run in self.runs)

    @property
    def pruned(self) -> bool:
        """Whether one of the runs was given up."""
        return any(run.pruned for run in self.runs)

    @property
    def curve(self) -> Curve:
        """The mean over seeds, in the rounds that all have evaluated."""
        rounds = set.intersection(*(set(run.curve) for run in self.runs))
        return {t: statistics.fmean(run.curve[t] for run in self.runs) for t in sorted(rounds)}


def require_optuna() -> None:
    """Raise ValueError, which says what to install, where Optuna is missing."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise SettingsError("tune needs Optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass
class Search:
    """The search for the cells that differ in the seed only, in batches of trials.

    The first half of the trials is spread over the ranges; Optuna proposes the others.
    """

    cells: Sequence[Cell]
    bases: Sequence[Settings]  # of the runs of a trial, one for each seed, but for the values that are tried
    ranges: Ranges
    count: int  # trials, unless there are fewer combinations of values
    goal: str = ""  # key of the metric that is searched for; empty: the task's own
    metric: Metric | None = None  # known with the first trial
    trials: list[Trial] = field(default_factory=list)  # of the batches before this one
    batch: Sequence[Values] = ()
    known: dict[Settings, Tried] = field(default_factory=dict)
    failed: str = ""

    @property
    def base(self) -> Settings:
        """What the runs of all trials have in common, with the first of their seeds."""
        return self.bases[0]

    @property
    def name(self) -> str:
        """What distinguishes it from the others."""
        others = self.cells[0].others
        return ", ".join(f"{key} {shown_value(v)}" for key, v in others.items()) or self.base.strategy

    @property
    def grid(self) -> list[Values]:
        """All combinations, if they are few enough to try each."""
        lists = [r.values for r in self.ranges.values() if isinstance(r, Among)]
        if len(lists) < len(self.ranges) or math.prod(map(len, lists)) > self.count:
            return []
        return [dict(zip(self.ranges, one, strict=True)) for one in itertools.product(*lists)]

    @property
    def total(self) -> int:
        """How many trials there are in the end."""
        return len(self.grid) or self.count

    @property
    def half(self) -> int:
        """The number of trials in the first batch, unless it is the grid."""
        return -(-self.count // 2)

    @property
    def wider(self) -> Ranges:
        """The ranges that are searched from the half on: wider where the best value was at an end."""
        ends = self.ends(self.half) if len(self.trials) >= self.half else {}
        return {key: widened(self.base, key, of, ends.get(key, "")) for key, of in self.ranges.items()}

    @property
    def waiting(self) -> list[Settings]:
        """The settings of the runs of the batch that are not known yet, each once."""
        wanted = (settings for values in self.batch for settings in self.settings_of(values))
        return [settings for settings in dict.fromkeys(wanted) if settings not in self.known]

    def pruning(self, settings: Settings) -> Pruning | None:
        """Return when a run of the batch is given up; nothing before the first batch is over.

        It is compared with those of other trials with its seed.
        """
        if not self.trials or self.metric is None:
            return None
        place = [base.seed for base in self.bases].index(settings.seed)
        curves = [trial.runs[place].curve for trial in self.trials if not trial.pruned]
        return Pruning(curves, self.metric.key, self.metric.higher_is_better)

    def settings_of(self, values: Values) -> list[Settings]:
        """Return the settings of the runs of a trial, one for each seed."""
        return [with_values(base, values) for base in self.bases]

    def values_of(self, settings: Settings) -> Values:
        """Return what is tried by a run of the batch."""
        return next(values for values in self.batch if settings in self.settings_of(values))

    def take(self, settings: Settings, run: Run) -> Tried:
        """Take a run of the batch."""
        self.metric = next((m for m in run.measured if m.key == self.goal), run.metric)
        key = self.metric.key
        curve = {r["round"]: math.nan if r[key] is None else r[key] for r in run.records if key in r}
        self.known[settings] = Tried(run.score(key), curve, (run.path / PRUNED).exists())
        return self.known[settings]

    def go_on(self) -> None:
        """Propose the next batch, once all trials of this one are known; an empty one ends the search."""
        self.trials += map(self._trial, self.batch)
        done, grid = len(self.trials), self.grid
        if done >= self.total:
            self.batch = []
        elif not done:
            self.batch = grid or self._spread(self.half)
        else:
            count = min(BATCH, self.count - done)
            first = self._between_old_and_new() if done == self.half else []
            self.batch = [*first, *self._suggest(count)][:count]

    def best(self, among: Iterable[Trial] | None = None) -> Trial | None:
        """Return the best of some trials, or of all, that were not given up; None: none has a score.

        Of equal ones, it is that with the smaller values, such as the smaller learning rate.
        """
        trials = self.trials if among is None else among
        known = [t for t in trials if not t.pruned and not math.isnan(t.score)]
        sign = 1 if self._higher_is_better else -1

        def rank(trial: Trial) -> tuple[float, ...]:
            return sign * trial.score, *(-v for v in trial.values.values() if isinstance(v, int | float))

        return max(known, key=rank, default=None)

    @property
    def done(self) -> list[Trial]:
        """The trials that are over, those of the present batch included."""
        over = [v for v in self.batch if all(settings in self.known for settings in self.settings_of(v))]
        return [*self.trials, *map(self._trial, over)]

    def _trial(self, values: Values) -> Trial:
        return Trial(values, [self.known[settings] for settings in self.settings_of(values)])

    def ends(self, first: int | None = None) -> dict[str, str]:
        """Return "low" or "high" by key where the best value is at an end of all that was tried."""
        if (best := self.best(self.trials[:first])) is None:
            return {}
        ends = {
            key: of.end(best.values[key], [trial.values[key] for trial in self.trials[:first]])
            for key, of in self.ranges.items()
        }
        return {key: end for key, end in ends.items() if end}

    @property
    def _higher_is_better(self) -> bool:
        return self.metric is None or self.metric.higher_is_better

    def _spread(self, count: int) -> list[Values]:
        """Return a Latin hypercube: the middles of as many equal parts of each range, each once."""
        rng = np.random.default_rng([self.base.seed, *b"tune-spread"])
        places = {key: (rng.permutation(count) + 0.5) / count for key in self.ranges}
        return [{key: of.at(places[key][i]) for key, of in self.ranges.items()} for i in range(count)]

    def _between_old_and_new(self) -> list[Values]:
        """Return the best values with those at an end moved into the middle of what is new there."""
        best = self.best()
        moved: dict[str, Any] = {}
        for key, of in self.wider.items():
            old = self.ranges[key]
            if isinstance(of, Between) and isinstance(old, Between) and of != old:
                new = Between(*((of.low, old.low) if of.low < old.low else (old.high, of.high)), of.whole)
                moved[key] = new.at(0.5)
        return [{**best.values, **moved}] if best and moved else []

    def _suggest(self, count: int) -> list[Values]:
        """Return proposals of the tree-structured Parzen estimator (Bergstra et al. 2011)."""
        import optuna

        ranges = self.wider
        found: list[Values] = []
        study = optuna.create_study(direction="maximize" if self._higher_is_better else "minimize")
        worst = -math.inf if self._higher_is_better else math.inf
        space = {key: of.distribution for key, of in ranges.items()}  # in which those of all trials lie
        for trial in self.trials:
            state = optuna.trial.TrialState.PRUNED if trial.pruned else optuna.trial.TrialState.COMPLETE
            value = worst if math.isnan(trial.score) else trial.score
            study.add_trial(
                optuna.create_trial(
                    params=dict(trial.values),
                    distributions=space,
                    state=state,
                    value=None if trial.pruned else value,
                    intermediate_values=dict(trial.curve),
                )
            )
        for number in range(len(self.trials), len(self.trials) + count):
            drawn = int(np.random.default_rng([self.base.seed, *b"tune", number]).integers(2**32))
            study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=1, constant_liar=True, multivariate=True, seed=drawn
            )
            asked = study.ask(space).params
            found.append({key: ranges[key].rounded(value) for key, value in asked.items()})
        return found


@dataclass(frozen=True)
class Pruning:
    """When a trial is given up: its best value so far is worse than the median of others at that round."""

    curves: Sequence[Curve]  # of the trials that were not given up
    key: str  # of the metric in records
    higher_is_better: bool


def judge(pruning: Pruning) -> Callable[[Mapping[str, Any]], bool]:
    """Return what says of the records of one trial, in order, whether it is given up after that round."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Of a whole run; in event time, these may be less than those that are set.
    rounds = max((number for curve in pruning.curves for number in curve), default=0)
    study = optuna.create_study(
        direction="maximize" if pruning.higher_is_better else "minimize",
        pruner=optuna.pruners.MedianPruner(1, int(WARM_UP * rounds)),
    )
    study.add_trials(
        [optuna.create_trial(value=0.0, intermediate_values=dict(curve)) for curve in pruning.curves]
    )
    trial, key = study.ask(), pruning.key

    def is_hopeless(record: Mapping[str, Any]) -> bool:
        if key not in record or record["round"] >= rounds:  # not evaluated, or over anyway
            return False
        trial.report(math.nan if record[key] is None else record[key], record["round"])
        return bool(trial.should_prune())

    return is_hopeless
