"""The curves of a comparison: means over runs that differ only in the seed, by rounds and by their costs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.engine.history import Numbers
from fedtide.engine.read_run import Run


class Band(NamedTuple):
    """A curve of runs that differ only in the seed: mean over seeds, lowest and highest, shape (P,) each."""

    x: Mapping[str, Numbers]  # `rounds`, `uploads`, `megabytes` and `seconds` up to each point
    mean: Numbers
    low: Numbers
    high: Numbers


def band_of(runs: Sequence[Run], key: str, points: int) -> Band | None:
    """Return the curve of a metric or a loss, in at most so many points; None if it was never evaluated.

    It ends where the first of the runs has stopped: a mean over the others would be one of the slower runs.
    """
    columns = [_columns(run, key) for run in runs]
    end = min((run.history.rounds[-1] for run in runs if run.stopped and len(run.history)), default=np.inf)
    rounds = sorted({t for column in columns for t in column if t <= end})
    if not rounds:
        return None
    missing = np.full(5, np.nan)
    every = np.array([[column.get(t, missing) for t in rounds] for column in columns])  # seeds, rounds, 5
    starts, counts = bins(len(rounds), points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # without a clock, all seconds are NaN
        means = np.nanmean(every, axis=0)
        low, high = np.nanmin(every[..., 0], axis=0), np.nanmax(every[..., 0], axis=0)
    mean, *x = (np.add.reduceat(means, starts) / counts[:, None]).T
    by_axis = dict(zip(("rounds", "uploads", "megabytes", "seconds"), x, strict=True))
    return Band(by_axis, mean, np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts))


def _columns(run: Run, key: str) -> dict[int, Numbers]:
    """Return the value and the four places of each evaluation, by round."""
    history, rows = run.history, run.history.evaluated(key)
    costs = history.costs
    megabytes = costs["megabytes_up"] + costs["megabytes_down"]
    columns = [history.column(key), history.rounds, costs["uploads"], megabytes, history.clock]
    return dict(zip(history.rounds[rows].tolist(), np.stack(columns, axis=1)[rows], strict=True))


def bins(count: int, most: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the starts and lengths of at most `most` runs of neighbours that `count` values are put into."""
    starts = np.arange(min(count, most), dtype=np.intp) * count // max(1, min(count, most))
    return starts, np.diff([*starts, count])
