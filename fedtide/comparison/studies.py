"""Optuna's storage of the searches of a comparison: a study for each, in one SQLite file in its folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtide.comparison.search import SearchPlan, Trial, frozen, score_of
from fedtide.comparison.store import identity
from fedtide.config import Settings
from fedtide.engine.run_folder import slug
from fedtide.ground.errors import SettingsError
from fedtide.plan import Plan
from fedtide.tasks import Metric

if TYPE_CHECKING:
    import optuna

FILE = "optuna.db"


class Studies:
    """The studies of the comparison in `folder`; the file is made when the first trials are added."""

    def __init__(self, folder: Path, name: str) -> None:
        self.file, self.comparison = folder / FILE, name
        self._opened: optuna.storages.RDBStorage | None = None

    def load(self, base: Settings, plan: SearchPlan) -> tuple[Metric | None, list[Trial]]:
        """Return the metric and the trials of a search as far as they are stored.

        ValueError: the file is not a storage, or it is that of another comparison.
        """
        if not self.file.exists():
            return None, []
        import optuna

        with self._errors():
            studies = {study.study_name: study for study in optuna.get_all_study_summaries(self._storage)}
            for study in studies.values():
                if study.user_attrs.get("comparison") != self.comparison:
                    raise SettingsError(f"{self.file} is the storage of another comparison: move it away")
            if (found := studies.get(self._name(base))) is None:
                return None, []
            if any(found.user_attrs.get(key) != value for key, value in self._about(base, plan).items()):
                raise SettingsError(
                    f"{self.file}: seeds, ranges or your own parts have changed since the search of "
                    f"{base.strategy}; --fresh searches again"
                )
            loaded = optuna.load_study(study_name=self._name(base), storage=self._storage)
            return Metric(**found.user_attrs["metric"]), [*map(_thawed, loaded.trials)]

    def add(
        self, base: Settings, plan: SearchPlan, metric: Metric, trials: Sequence[tuple[int, Trial]]
    ) -> None:
        """Store trials with their numbers, but for those that are stored already."""
        import optuna

        with self._errors():
            study = optuna.create_study(
                study_name=self._name(base),
                storage=self._storage,
                direction="maximize" if metric.higher_is_better else "minimize",
                load_if_exists=True,
            )
            if not study.user_attrs:
                for key, value in (self._about(base, plan) | {"metric": metric._asdict()}).items():
                    study.set_user_attr(key, value)
            known = len(study.trials)
            study.add_trials([frozen(trial, metric.higher_is_better) for n, trial in trials if n >= known])

    @property
    def _storage(self) -> optuna.storages.RDBStorage:
        import optuna

        if self._opened is None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._opened = optuna.storages.RDBStorage(f"sqlite:///{self.file}")
        return self._opened

    def _name(self, base: Settings) -> str:
        return f"{slug((base.strategy, base.task, base.trace), 80)}-{identity(base, ('seed',))}"

    def _about(self, base: Settings, plan: SearchPlan) -> dict[str, Any]:
        """Return what a search depends on besides its settings."""
        ranges = {key: str(of) for key, of in plan.ranges.items()}
        about = {"comparison": self.comparison, "seed": plan.seed, "trials": plan.count, "ranges": ranges}
        return about | {"parts": dict(Plan.of(base).sources)}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of the storage as ValueError in one line."""
        import optuna
        from sqlalchemy.exc import SQLAlchemyError  # which Optuna needs

        try:
            yield
        except (SQLAlchemyError, optuna.exceptions.OptunaError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise SettingsError(f"{self.file} cannot be used: {reason}; move it away") from None


def _thawed(trial: optuna.trial.FrozenTrial) -> Trial:
    import optuna

    curve = dict(trial.intermediate_values)
    pruned = trial.state == optuna.trial.TrialState.PRUNED
    return Trial(trial.params, curve, score_of(curve), pruned, trial.distributions)
