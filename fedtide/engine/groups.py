"""Groups of clients, of the data and by how often they take part, and how well a model does for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.simulated.evaluation import PartScores
from fedtide.base.errors import described, own_places
from fedtide.base.wording import plain
from fedtide.engine.observers import Observer, Record
from fedtide.tasks import FederatedData
from fedtide.tasks.data import client_groups
from fedtide.tasks.metrics import MetricFunction, Views, positions_of, targets_of

Groups = Mapping[str, Mapping[str, NDArray[np.bool_]]]
"""Masks of clients by the kind and the name of their group."""
GroupNumbers = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By kind and name, the numbers of its clients and examples, and its metrics; None: one has no value."""

OF_DATA, BY_PARTICIPATION = "group", "participation"
NEVER = "never took part"
QUARTERS = ("rarest quarter", "second quarter", "third quarter", "most frequent quarter")


class TimesActive(Observer):
    """Counts in how many rounds an update of each of N clients counted."""

    def __init__(self, num_clients: int) -> None:
        self.counts = np.zeros(num_clients, np.int64)

    def round(self, record: Record) -> None:
        active = (k for k in record.get("active", ()) if isinstance(k, int) and 0 <= k < len(self.counts))
        self.counts[[*active]] += 1

    recall = round


def groups_of(data: FederatedData, counts: NDArray[np.int64]) -> Groups:
    """Return the groups of N clients, given in how many rounds an update of each counted.

    Those that took part at all are divided at the quartiles of these numbers: clients with equal numbers are
    in the same quarter, and a quarter may have no clients.
    """
    names = np.array(client_groups(data), str)
    of_data = {name: names == name for name in np.unique(names[names != ""]).tolist()}
    edges = np.quantile(counts[counts > 0], (0.25, 0.5, 0.75)) if counts.any() else np.zeros(3)
    quarters = np.searchsorted(edges, counts)
    by_participation = {NEVER: counts == 0}
    by_participation |= {name: (quarters == i) & (counts > 0) for i, name in enumerate(QUARTERS)}
    return ({OF_DATA: of_data} if of_data else {}) | {BY_PARTICIPATION: by_participation}


def group_numbers(
    groups: Groups,
    found: PartScores,
    clients: NDArray[np.intp],
    data: FederatedData,
    functions: Sequence[MetricFunction],
) -> GroupNumbers:
    """Return the numbers of each group of which examples count; `found` has a part for each client."""
    true = targets_of(data.criterion, found.targets)
    positions = positions_of(found.targets)
    numbers: dict[str, dict[str, Any]] = {}
    for kind, of_kind in groups.items():
        for name, mask in of_kind.items():
            chosen = mask[clients] & found.counted
            if not chosen.any():
                continue
            examples = chosen[found.owners]
            rows = np.repeat(examples, positions)
            values: dict[str, Any] = {"clients": int(chosen.sum()), "examples": int(examples.sum())}
            values[data.criterion.metric.key] = float(
                np.average(found.scores[examples], weights=found.weights[examples])
            )
            views = {view: array[rows] for view, array in found.views.items()}
            values |= values_of(functions, true[rows], views, data.num_outputs)
            numbers.setdefault(kind, {})[name] = values
    return numbers


def values_of(
    functions: Sequence[MetricFunction],
    targets: NDArray[Any],
    views: Views,
    num_classes: int,
    undefined: Callable[[str, str], object] = lambda key, reason: None,
) -> dict[str, Any]:
    """Return the values of metrics, by key; NaN where one has none, as all of a model that has diverged.

    `undefined` is called with the key of a metric that has no value, and the reason.
    """
    found = {function.metric.key: math.nan for function in functions}
    if not len(targets) or not all(np.isfinite(view).all() for view in views.values()):
        return found
    for function in functions:
        key = function.metric.key
        try:
            found[key] = function.value(targets, views[function.view], num_classes)
        except Exception as error:  # the run goes on: training does not depend on it
            undefined(key, reason_of(error))
    return found


def reason_of(error: Exception) -> str:
    """Return why a metric has no value, and where in the user's own code that is said."""
    return " ".join(map(str, (plain(" ".join(described(error).split()), 300), *own_places(error)[-1:])))


def spread(scores: NDArray[np.float64], higher_is_better: bool) -> dict[str, float]:
    """Return how scores are distributed over clients; empty without clients.

    Jain's index is 1 where all are equal, and 1/n where one client has everything (Jain, Chiu and Hawe 1984).
    """
    if not len(scores):
        return {}
    worst, tenth = (0, 10) if higher_is_better else (100, 90)
    squares = float(np.square(scores).sum())
    return {
        "mean": float(scores.mean()),
        "deviation": float(scores.std()),
        "worst": float(np.percentile(scores, worst)),
        "tenth_percentile": float(np.percentile(scores, tenth)),
        "jain_index": float(scores.sum()) ** 2 / (len(scores) * squares) if squares else math.nan,
    }
