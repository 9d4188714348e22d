"""Updates that are far larger than usual: reported, refused, or made smaller.

This protects a run from broken clients, not from malicious ones, which can stay below any such limit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from strategies.core.parameters import FloatVector
from strategies.core.round import RoundReport
from strategies.core.state import Stateful

MAX_NORM = 1e12  # of an update, scaled up to all steps: whatever comes of it stays below MAX_RESULT
MAX_RESULT = 1e15  # of a global weight: a thousand such updates away
USUAL = 20.0  # times the median norm
HISTORY = 200  # norms whose median is taken: the latest that were accepted
ENOUGH = 3  # norms for a median that says something: one of them may be anything


def is_norm_limit(text: str) -> bool:
    """Return whether this is a value of the option `max-update-norm`: a word, or a positive number."""
    if text in ("off", "warn", "auto"):
        return True
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


class NormLimit(Stateful):
    """Holds the norms of a round's updates against `Options.max_update_norm`; clips, or else refuses."""

    saved = ("_recent",)

    def __init__(self, limit: str, clip: bool) -> None:
        self.limit, self.clip = limit, clip
        self._recent = np.empty(0)

    def screen(
        self, clients: NDArray[np.intp], norms: NDArray[np.float64], report: RoundReport
    ) -> tuple[dict[int, str], dict[int, float]]:
        """Return which of a round's updates are refused and why, and by which factors others are scaled.

        Both are by the positions of the updates, which are given by their clients and norms.
        """
        refused, factors = dict[int, str](), dict[int, float]()
        if self.limit == "off" or not len(norms):
            return refused, factors
        usual = self._median(norms)
        most = USUAL * usual if self.limit in ("warn", "auto") else float(self.limit)
        accepted = norms
        if (large := np.flatnonzero(norms > most)).size:
            accepted = norms.copy()
        for k in large.tolist():
            size = float(norms[k])
            event = {"client": int(clients[k]), "update_norm": size}
            if self.limit == "warn":
                report.events.append({"event": "outlier", **event, "median": usual})
            elif self.clip:
                report.events.append({"event": "clipping", **event, "limit": most})
                accepted[k], factors[k] = most, most / size
            else:
                refused[k] = f"update of norm {size:.3g}, more than {most:.3g}"
        accepted = np.delete(accepted, [*refused])
        self._recent = np.concatenate([self._recent, accepted])[-HISTORY:]
        return refused, factors

    def _median(self, current: NDArray[np.float64]) -> float:
        """Return the median norm so far, or that of the present round where most would be refused by it.

        Refusing all would end training for good, as what is refused never becomes usual.
        """
        so_far, now = (median(norms[norms > 0]) for norms in (self._recent, current))
        if len(self._recent) < ENOUGH or USUAL * so_far < now < math.inf:
            return now
        return so_far


def median(norms: NDArray[np.float64]) -> float:
    """Return the median of enough norms, else infinity."""
    if (count := len(norms)) < ENOUGH:
        return math.inf
    ascending = np.sort(norms)  # `numpy.median` takes ten times as long
    return float(ascending[(count - 1) // 2] + ascending[count // 2]) / 2


def norm(update: FloatVector) -> float:
    """Return the Euclidean norm."""
    with np.errstate(over="ignore"):
        square = float(np.vdot(update, update))
    if not math.isfinite(square):  # in single precision
        square = float(np.square(update, dtype=np.float64).sum())
    return math.sqrt(square)
