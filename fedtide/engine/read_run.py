"""Runs as their folders have them: unfinished, old, or edited by hand."""

from __future__ import annotations

import csv
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base import dotted
from fedtide.base.errors import SettingsError, why
from fedtide.base.files import read_arrays, read_text
from fedtide.base.specs import bind
from fedtide.config import Settings
from fedtide.config.settings import RECORDED
from fedtide.engine.history import History
from fedtide.engine.observers import Record
from fedtide.engine.records import group_values, metrics_in
from fedtide.engine.run_files import MAX_LINE, NAMES, read_config, read_summary, records_in, weights_file
from fedtide.engine.run_folder import frozen_sha256
from fedtide.engine.score import score
from fedtide.federation import Federation, ModelEnds, model_maker
from fedtide.tasks import ACCURACY, MODELS, Metric

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from torch import nn

SETTINGS = {f.name.replace("_", "-") for f in fields(Settings)} - set(RECORDED)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A run, finished or not, and its results.

    Attributes
    ----------
    path : Path
        Its folder, with `report.html` and all else that docs/run-folder.md describes.
    config : dict
        The content of `config.toml`.
    summary : dict
        The content of `summary.json`; empty if there is none, as after its process was killed.
    records : list of dict
        A record per round, starting with round 0; see docs/run-folder.md.
    """

    path: Path
    config: Mapping[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)
    records: Sequence[Record] = ()
    columns: History | None = field(default=None, compare=False)  # of the records, where these are not kept

    def with_records(self) -> Run:
        """Return the run with the records of its rounds, read from its folder if necessary."""
        if self.records:
            return self
        run = replace(self, records=[*records_in(self.path, lenient=True)])
        if self.summary.get("rounds") and not run.is_whole:
            log.warning("%s: metrics.jsonl lacks some of %s rounds", self.path, self.summary["rounds"])
        return run

    @cached_property
    def history(self) -> History:
        """Its records as columns, read from its folder if necessary."""
        if self.columns is not None:
            return self.columns
        return History.of(self.records or records_in(self.path, lenient=True))

    @property
    def is_whole(self) -> bool:
        """Whether there is a record of each round that its summary counts, as far as it has one."""
        rounds, numbers = self.summary.get("rounds"), [record["round"] for record in self.records]
        return rounds is None or (len(numbers) - 1 == rounds and numbers == [*range(len(numbers))])

    @property
    def metrics(self) -> pandas.DataFrame:
        """A row per round; seconds of phases and groups of clients have names such as `seconds.train`."""
        import pandas

        rows = [
            {key: value for key, value in record.items() if key not in ("seconds", "groups")}
            | {f"seconds.{phase}": taken for phase, taken in (record.get("seconds") or {}).items()}
            | group_values(record)
            for record in self.records
        ]
        return pandas.DataFrame(rows, columns=None if rows else ["round"]).set_index("round")

    def client(self, client: int | str) -> pandas.DataFrame:
        """Return the history of one client, by number or name: a row per round after round 0.

        Its columns are `state`, one of `State` in words; `steps`, the local steps of a reply that counted;
        `lag`, how often the global weights had changed since the task of a late reply; and `reason`, why a
        reply did not count. Offline rounds are known from the trace, which may need the data.
        SettingsError: there is no such client.
        """
        from fedtide.engine.client_states import history_of

        return history_of(self, client)

    def plot(self, value: str = "", x: str = "", ax: Axes | None = None) -> Axes:
        """Draw a curve, by default the metric, and return the axes of matplotlib.

        Parameters
        ----------
        value
            What its evaluations have, as in `metrics`: `accuracy`, `loss`, `train_loss`.
        x
            `rounds` (the default), `uploads`, `bytes` or `time`.
        ax
            Axes to draw on; by default those of a new figure of pyplot.

        Raises
        ------
        SettingsError
            matplotlib is missing, or the run has no such value or axis.
        """
        from fedtide.report.plotting import plot
        from fedtide.report.subject import subject_of

        return plot(subject_of(self), value, x, ax)[0]

    @cached_property
    def settings(self) -> Settings:
        """Its settings; those that an older version did not record have their defaults.

        Parts that are not of fedtide are not imported, unless the user has named or trusted them.
        ValueError: `config.toml` has values that no run can have.
        """
        values, file = {k: v for k, v in self.config.items() if k in SETTINGS}, self.path / "config.toml"
        settings = Settings.from_mapping(values, str(file))
        dotted.distrust(settings.as_mapping(), str(file))  # not the file's, where a text may be several
        return settings

    @property
    def versions(self) -> Mapping[str, Any]:
        """The versions of Python, fedtide and the packages that results may depend on."""
        return self._recorded("versions")

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The specs of its parts with every option; empty for runs of older versions."""
        return self._recorded("resolved")

    def _recorded(self, key: str) -> Mapping[str, Any]:
        found = self.config.get(key)
        return found if isinstance(found, dict) else {}

    @property
    def version(self) -> str:
        return str(self.versions.get("fedtide", "unknown"))

    @property
    def measured(self) -> tuple[Metric, ...]:
        """What its evaluations measured: the metric of its task, and those of the setting `metrics`."""
        return tuple(Metric(**metric) for metric in metrics_in(self.summary)) or (ACCURACY,)

    @property
    def metric(self) -> Metric:
        """The metric of its task; accuracy where an older version did not record it."""
        return self.measured[0]

    def score(self, key: str = "") -> float:
        """Return the score of a value, by default the task's metric; NaN if there is none.

        That is its mean over the last cycle of the trace, or over the last tenth of the run if the trace has
        no cycle or the run was to be shorter than two; NaN: it was no number in one of these evaluations, or
        the run has ended before the first cycle.
        """
        return next(self.scores(key or self.metric.key), (0, math.nan))[1]

    def scores(self, key: str) -> Iterator[tuple[int, float]]:
        """Yield the row of each evaluation that measured a value, the last one first, and the score there."""
        history, measured = self.history, {"loss", *(metric.key for metric in self.measured)}
        tested = history.column("tested_examples")
        rows = history.evaluated(key, *(["tested_examples"] if key in measured else []))
        rows = rows[tested[rows] != 0]
        at = np.fmax.accumulate(history.clock) if history.has_clock else history.rounds
        when, values = at[rows].tolist(), history.column(key)[rows].tolist()
        for place, row in reversed([*enumerate(rows.tolist())]):
            yield row, score(when, values, self.summary.get("cycle", 0), place)

    @property
    def final(self) -> float:
        """The final value of the task's metric; NaN if there is none."""
        return self._final(self.metric.key)

    @property
    def accuracy(self) -> float:
        """The final accuracy, from 0 to 1; NaN if there is none."""
        return self._final("accuracy")

    def _final(self, key: str) -> float:
        value = self.summary.get("final", {}).get(key)
        return math.nan if value is None else float(value)

    @cached_property
    def last_values(self) -> Mapping[str, Any]:
        """The final values by key; of a run that did not end, those of its last evaluation."""
        if self.summary:
            return dict(self.summary.get("final", {}))
        rows = self.history.evaluated("loss")
        keys = [*(metric.key for metric in self.measured), "loss"]
        values = {key: self.history.column(key)[rows[-1:]].tolist() for key in keys}
        return {key: value[0] for key, value in values.items() if value}

    @property
    def last_round(self) -> int:
        """The last round with a record; 0 without any."""
        return int(self.history.rounds[-1]) if len(self.history) else 0

    @property
    def stopped(self) -> str:
        """The setting that ended it before its last round; empty if none did."""
        return str(self.summary.get("stopped", ""))

    @property
    def status(self) -> Literal["finished", "interrupted", "failed", "unfinished"]:
        """How it ended; `unfinished`: it is running, or its process was killed."""
        if not self.summary:
            return "unfinished"
        if "failed" in self.summary:
            return "failed"
        return "interrupted" if self.summary.get("interrupted") else "finished"

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The names of its clients, by number; () if they have none or these cannot be read."""
        try:
            rows = [*csv.reader(StringIO(read_text(self.path / NAMES, MAX_LINE), newline=""))]
            return tuple(name.removeprefix("'") for _, name in rows[1:])  # see `csv_text`
        except (OSError, ValueError, csv.Error):
            return ()

    @property
    def problem(self) -> str:
        """Why it did not finish, such as "failed: No space left on device"; empty if it did."""
        if self.status == "failed":
            return f"failed: {self.summary['failed']}"
        if self.status == "interrupted":
            return f"was interrupted by {self.summary.get('signal', 'a signal')}"
        return "" if self.summary else "did not finish: there is no summary.json"

    @property
    def weights(self) -> list[NDArray[Any]]:
        """The final weights: the model's trained parameters in order, then its floating-point buffers.

        Frozen weights are not among them: see `model`. SettingsError: the run has not ended, or its
        `weights.npz` cannot be read.
        """
        if not self.summary and weights_file(self.path).exists():
            raise SettingsError(f"{self.path} goes on or was killed: its weights are those of an earlier end")
        return self._weights(None, f"the run is {self.status}")

    def weights_after(self, server_round: int) -> list[NDArray[Any]]:
        """Return the weights after a round, in the order of `weights`, of a run with `keep-weights`.

        SettingsError: they were not kept, or cannot be read.
        """
        if not 0 <= server_round <= self.last_round:
            raise SettingsError(f"{self.path} has rounds 0 to {self.last_round}, and no round {server_round}")
        return self._weights(server_round, f"--keep-weights {server_round or 1} would have kept them")

    @property
    def kept_rounds(self) -> list[int]:
        """The rounds after which the weights were kept, in order."""
        numbers = (path.stem.removeprefix("weights-") for path in self.path.glob("weights-*.npz"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _weights(self, after: int | None, otherwise: str) -> list[NDArray[Any]]:
        file = weights_file(self.path, after)
        try:
            return [*read_arrays(file).values()]
        except FileNotFoundError:
            of_round = "" if after is None else f" of round {after}"
            raise SettingsError(f"{self.path} has no weights{of_round}: {otherwise}") from None
        except (OSError, ValueError) as error:
            raise SettingsError(f"{file}: {error}") from None

    def model(self, after: int | None = None) -> nn.Module:
        """Return the model with the final weights, or with those after a round: see `weights_after`.

        Of a run of an older version, the data are loaded. SettingsError: the run has not ended, its files do
        not fit together, or its folder names a model or other parts that are not of fedtide: then `load` it
        with ``trust=True``, if it is yours.
        """
        import torch

        from clients.gradients.flat import exchanged

        model = self.initial_model()
        if (whole := self.path / "model.safetensors").exists():  # frozen weights are from elsewhere
            from safetensors.torch import load_file

            model.load_state_dict(load_file(whole))
        elif self.summary.get("frozen_sha256") not in (None, frozen_sha256(model)):
            named = dotted.shown(self.settings.model or str(self.summary.get("model")))
            raise SettingsError(
                f"{self.path}: the frozen weights of {named} are not those of the run: restore its files, or "
                "name the commit (revision=) in config.toml"
            )
        arrays = self.weights if after is None else self.weights_after(after)
        tensors = [*exchanged(model).values()]
        if [tensor.shape for tensor in tensors] != [array.shape for array in arrays]:
            name = weights_file(self.path, after).name
            raise SettingsError(f"{self.path}: {name} does not fit the model of config.toml")
        with torch.no_grad():
            for tensor, array in zip(tensors, arrays, strict=True):
                tensor.copy_(torch.from_numpy(array))
        return model.eval()

    def initial_model(self) -> nn.Module:
        """Return the model with the weights from which the run started."""
        named = self.settings.model or str(self.summary.get("model", ""))  # the latter if it is the task's
        known = self.settings.model or named.partition(":")[0] in MODELS  # a summary names no code to import
        part = bind("model", MODELS, named) if known else self._federation.model
        return model_maker(part, self.settings.seed, self.ends)()

    @cached_property
    def _federation(self) -> Federation:
        return Federation.of(self.settings.for_clients())

    @cached_property
    def ends(self) -> ModelEnds:
        """What the model takes and gives; an older version did not record it, and the data are loaded."""
        try:
            found = self.summary["ends"]
            shape = tuple(map(int, found["input_shape"]))
            ends = ModelEnds(shape, int(found["num_outputs"]), int(found["vocabulary"]))
            return ends if min(*shape, ends.num_outputs) > 0 else self._federation.model_ends
        except (KeyError, TypeError, ValueError):
            return self._federation.model_ends

    def __repr__(self) -> str:
        value = "" if math.isnan(self.final) else f", {self.metric.title} {self.final:.4f}"
        named = dotted.shown(f"{self.settings.strategy} on {self.settings.task}")
        return f"<Run {named}: {self.status}{value}; {self.path}>"


def read_run(path: Path, trust: bool = False, records: bool = False) -> Run:
    """Read a run folder; a summary that is not one is left out.

    `trust`: whether the parts that it names may be imported; `records`: whether to read the records of its
    rounds, see `records_in`. ValueError: the folder has no `config.toml`, or it cannot be read.
    """
    file = path / "config.toml"
    try:
        config = read_config(path)
    except (FileNotFoundError, NotADirectoryError):
        raise SettingsError(f"{path} is not a run folder: it has no config.toml") from None
    except OSError as error:
        raise SettingsError(f"{file}: {why(error)}") from None
    except ValueError as error:
        raise SettingsError(f"{file}: not TOML: {error}") from None
    if trust:
        dotted.trust(config)
    run = Run(path, config, read_summary(path / "summary.json"))
    return run.with_records() if records else run


@contextmanager
def consistent(folders: Sequence[Path | str]) -> Iterator[None]:
    """Raise SettingsError where the files of run folders, read within, contradict each other."""
    try:
        yield
    except SettingsError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
        named = ", ".join(map(str, folders))
        said = f"{named}: the files there do not fit together; were they changed? ({error!r})"
        raise SettingsError(said) from error


def find_runs(folder: Path) -> list[Run]:
    """Return the runs in a folder, ordered by name; folders that cannot be read are left out."""
    runs = []
    for path in sorted(folder.iterdir()):
        try:
            runs.append(read_run(path))
        except ValueError:
            continue
    return runs
