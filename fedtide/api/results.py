"""What runs and comparisons return, and what is read from their folders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtide.api.notebook import comparison_html
from fedtide.comparison import tables
from fedtide.comparison.claims import rankings_of, sentences
from fedtide.comparison.ranking import Ranking
from fedtide.comparison.results import CellRun, Row, rows_of
from fedtide.engine import read_run
from fedtide.federation import Federation
from fedtide.ground.errors import SettingsError
from fedtide.ground.files import read_arrays
from fedtide.report.subject import CELLS, read_subject

if TYPE_CHECKING:
    import pandas
    from torch import nn


class Run(read_run.Run):
    """A run, finished or not, and its results.

    Attributes
    ----------
    path : Path
        Its folder, with `report.html` and all else that docs/run-folder.md describes.
    settings : Settings
        Its settings, defaults included.
    status : str
        `finished`, `interrupted`, `failed`, or `unfinished`: it is running, or its process was killed.
    summary : dict
        The content of `summary.json`.
    records : list of dict
        A record per round, starting with round 0; see docs/run-folder.md.
    final : float
        The final value of the task's metric, NaN if there is none.
    """

    @property
    def accuracy(self) -> float:
        """The final accuracy, from 0 to 1; NaN if there is none."""
        value = self.summary.get("final", {}).get("accuracy")
        return float("nan") if value is None else float(value)

    @property
    def metrics(self) -> pandas.DataFrame:
        """A row per round; values inside values have names such as `seconds.train`."""
        import pandas

        return pandas.json_normalize(list(self.records)).set_index("round")

    @property
    def weights(self) -> list[NDArray[Any]]:
        """The final weights: the model's trained parameters in order, then its floating-point buffers.

        Frozen weights are not among them: see `model`. SettingsError: the run has not ended, or its
        `weights.npz` cannot be read.
        """
        file = self.path / "weights.npz"
        try:
            return [*read_arrays(file).values()]
        except FileNotFoundError:
            raise SettingsError(f"{self.path} has no weights: the run is {self.status}") from None
        except (OSError, ValueError) as error:
            raise SettingsError(f"{file}: {error}") from None

    def model(self) -> nn.Module:
        """Return the model with the final weights; its data are loaded, which say how large it is.

        SettingsError: the run has not ended, its files do not fit together, or its folder names a model or
        other parts that are not of fedtide: then `load` it with ``trust=True``, if it is yours.
        """
        import torch

        from clients.gradients.flat import exchanged

        model = Federation.of(self.settings.for_clients()).model_builder()()
        if (whole := self.path / "model.safetensors").exists():  # frozen weights are from elsewhere
            from safetensors.torch import load_file

            model.load_state_dict(load_file(whole))
            return model.eval()
        tensors, arrays = [*exchanged(model).values()], self.weights
        if [tensor.shape for tensor in tensors] != [array.shape for array in arrays]:
            raise SettingsError(f"{self.path}: weights.npz does not fit the model of config.toml")
        with torch.no_grad():
            for tensor, array in zip(tensors, arrays, strict=True):
                tensor.copy_(torch.from_numpy(array))
        return model.eval()

    def __repr__(self) -> str:
        value = "" if np.isnan(self.final) else f", {self.metric.title} {self.final:.4f}"
        return f"<Run {self.settings.strategy} on {self.settings.task}: {self.status}{value}; {self.path}>"


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison.

    Attributes
    ----------
    runs
        The finished runs, with the settings that the comparison varies.
    rows
        The runs that differ in the seed only, and their numbers.
    folder
        With the tables and `report.html`.
    rankings
        How the methods rank over settings: by the final metric, and by what it took to reach each target.
    """

    runs: Sequence[CellRun]
    rows: Sequence[Row]
    folder: Path
    rankings: Sequence[Ranking] = ()

    @property
    def claims(self) -> list[str]:
        """Which methods are told apart, in words."""
        return sentences(self.rankings)

    @property
    def frame(self) -> pandas.DataFrame:
        """A row per combination of settings: mean, deviation and margin over seeds, costs."""
        import pandas

        return pandas.DataFrame([tables.numbers(row) for row in self.rows])

    def __repr__(self) -> str:
        return tables.markdown([tables.columns(row) for row in self.rows])

    def _repr_html_(self) -> str:
        return comparison_html(self.rows)


def read(folder: Path, trust: bool = False) -> Run | Comparison:
    """Read a folder of the command line, as `fedtide.load` does."""
    folder = folder.absolute()
    if os.path.exists(folder / CELLS):
        subject = read_subject([folder], trust)
        runs = [CellRun(cell, with_records(run)) for cell, run in subject.runs]
        rows = rows_of(runs, runs[0].cell.settings.strategy, subject.reach)
        return Comparison(runs, rows, folder, rankings_of(rows, subject.lacking))
    return with_records(read_run.read_run(folder, trust))


def with_records(run: read_run.Run) -> Run:
    """Return a run with the records of its rounds, to be found from any working directory."""
    own: Mapping[str, Any] = {field.name: getattr(run, field.name) for field in fields(read_run.Run)}
    records = run.records or [*read_run.records_in(run.path, lenient=True)]
    return Run(**{**own, "path": run.path.absolute(), "records": records})
