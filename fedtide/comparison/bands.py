"""Curves of runs that differ in the seed only: the mean over seeds, with the lowest and the highest."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtide.engine.history import Numbers, bins
from fedtide.engine.read_run import Run

AXES = ("rounds", "uploads", "megabytes", "seconds")


class Band(NamedTuple):
    """A curve over one axis, shape (P,) each."""

    x: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers


def bands_of(runs: Sequence[Run], key: str, points: int) -> dict[str, Band]:
    """Return the curve of what evaluations have, by axis, in at most so many points.

    There is none if it was never evaluated, and none over `seconds` without a clock. Curves end where the
    first of the runs has stopped: a mean over the others would be one of the slower runs. Seeds that were
    evaluated after the same rounds are averaged by round, also their places on the axis; of others, as in
    event time, values between evaluations are on the line that joins these.
    """
    tables = [table for run in runs if len(table := _evaluations(run, key))]
    if not tables:
        return {}
    stops = [_places(run)[-1:] for run in runs if run.stopped and len(run.history)]
    ends = np.min(np.concatenate([np.full((1, len(AXES)), np.inf), *stops]), axis=0)  # NaN: there is no clock
    every = np.unique(np.concatenate([table[:, 1] for table in tables]))
    by_round = all(np.array_equal(table[:, 1], every[every <= table[-1, 1]]) for table in tables)
    found = {}
    for i, axis in enumerate(AXES):
        if by_round:
            x, values = _by_round(tables, every[every <= ends[0]], i)
        else:
            x, values = _between(tables, ends[i], i)
        if np.isfinite(x).any():
            found[axis] = _band(x, values, points)
    return found


def _by_round(tables: Sequence[Numbers], rounds: Numbers, axis: int) -> tuple[Numbers, Numbers]:
    """Return the mean place of each round, shape (R,), and the values of the seeds there, shape (S, R)."""
    places, values = np.full((2, len(tables), len(rounds)), np.nan)
    for i, table in enumerate(tables):
        own = table[table[:, 1] <= rounds[-1]]
        places[i, : len(own)], values[i, : len(own)] = own[:, 1 + axis], own[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # without a clock, all are NaN
        return np.nanmean(places, axis=0), values


def _between(tables: Sequence[Numbers], end: float, axis: int) -> tuple[Numbers, Numbers]:
    """Return all places at which a seed was evaluated, and the values of the seeds there, likewise."""
    x = np.unique(np.concatenate([table[:, 1 + axis] for table in tables]))
    x = x[~(x > end)]
    values = [np.interp(x, table[:, 1 + axis], table[:, 0], np.nan, np.nan) for table in tables]
    return x, np.stack(values)


def _band(x: Numbers, values: Numbers, points: int) -> Band:
    """Return the curve of the values of the seeds; neighbours share a point where there are too many."""
    starts, counts = bins(len(x), points)
    low, high = np.fmin.reduce(values), np.fmax.reduce(values)
    places, mean = (np.add.reduceat(each, starts) / counts for each in (x, np.nanmean(values, axis=0)))
    return Band(places, mean, np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts))


def _evaluations(run: Run, key: str) -> Numbers:
    """Return the value and the places of each evaluation, shape (E, 5)."""
    rows = run.history.evaluated(key)
    return np.column_stack([run.history.column(key), _places(run)])[rows]


def _places(run: Run) -> Numbers:
    """Return the places of each round on the axes, shape (R, 4)."""
    history, costs = run.history, run.history.costs
    megabytes = costs["megabytes_up"] + costs["megabytes_down"]
    return np.column_stack([history.rounds, costs["uploads"], megabytes, history.clock]).astype(np.float64)
