"""Updates that are far larger than usual: reported, refused, or made smaller.

This protects a run from broken clients, not from malicious ones, which can stay below any such limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strategies.core.parameters import FloatVector
from strategies.core.replies import Replies
from strategies.core.report import RoundReport
from strategies.core.state import Stateful

MAX_NORM = 1e12  # of an update, scaled up to all steps: whatever comes of it stays below MAX_RESULT
MAX_RESULT = 1e15  # of a global weight: a thousand such updates away
USUAL = 20.0  # times the median norm
HISTORY = 200  # norms whose median is taken: the latest that were accepted
ENOUGH = 5  # norms for a median that says something


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
        self, replies: Replies, norms: NDArray[np.float64], names: Sequence[str], report: RoundReport
    ) -> Replies:
        """Return the replies that count, some of them scaled down, given their norms and clients' names."""
        if self.limit == "off" or not len(replies):
            return replies
        most, usual = self._most(norms)
        sizes, kept = norms.copy(), np.ones(len(norms), bool)
        for k in np.flatnonzero(norms > most).tolist():
            size = float(norms[k])
            event = {"client": int(replies.clients[k]), "update_norm": size}
            if self.limit == "warn":
                report.events.append({"event": "outlier", **event, "median": usual})
            elif self.clip:
                report.events.append({"event": "clipping", **event, "limit": most})
                replies.scale(k, most / size)
                sizes[k] = most
            else:
                kept[k] = False
                report.reject(names[k], f"update of norm {size:.3g}, more than {most:.3g}")
        self._accept(sizes[kept])
        return replies if kept.all() else replies.kept(kept)

    def accept_if_usual(self, norms: NDArray[np.float64]) -> bool:
        """Accept the updates of a round, by their norms, unless one of them is larger than usual."""
        if self.limit == "off" or not len(norms):
            return True
        usual = bool((norms <= self._most(norms)[0]).all())
        if usual:
            self._accept(norms)
        return usual

    def _most(self, norms: NDArray[np.float64]) -> tuple[float, float]:
        """Return the largest norm that is accepted silently, and the usual one."""
        usual = self._median(norms)
        return USUAL * usual if self.limit in ("warn", "auto") else float(self.limit), usual

    def _accept(self, norms: NDArray[np.float64]) -> None:
        self._recent = np.concatenate([self._recent, norms])[-HISTORY:]

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
