"""Updates that are far larger than usual: reported, refused, or made smaller.

This protects a run from clients that are broken, such as one whose training diverged, not from clients that
mean harm: they can stay below any such limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from strategies.core.replies import Reply
from strategies.core.report import RoundReport
from strategies.core.state import Stateful

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
    """Compares the norms of a round's updates with those of earlier ones, or with a given limit.

    Parameters
    ----------
    limit
        `off`; `warn` reports updates that are more than 20 times as large as the median of those accepted
        lately, `auto` acts on them; a number acts on updates with a larger norm.
    clip
        Whether to act is to scale an update down to the limit; otherwise it is refused.
    """

    saved = ("_recent",)

    def __init__(self, limit: str, clip: bool) -> None:
        self.limit, self.clip = limit, clip
        self._recent = np.empty(0)

    def screen(
        self, replies: dict[int, Reply], names: Mapping[int, str], report: RoundReport
    ) -> dict[int, Reply]:
        """Return the replies of a round that count, by client; the report gives the names of the others."""
        if self.limit == "off" or not replies:
            return replies
        norms = {client: norm(replies[client]) for client in sorted(replies)}
        most, usual = self._most(np.array([*norms.values()]))
        kept = dict(replies)
        for client, size in norms.items():
            if size <= most:
                continue
            if self.limit == "warn":
                report.events.append(
                    {"event": "outlier", "client": client, "update_norm": size, "median": usual}
                )
            elif self.clip and math.isfinite(size):
                kept[client] = scaled(replies[client], most / size)
                told = {"client": client, "update_norm": size, "limit": most}
                report.events.append({"event": "clipping", **told})
                norms[client] = most
            else:
                del kept[client]
                reason = f"update of norm {size:.3g}, more than {most:.3g}"
                report.reject(names[client], reason)
        self._accept([norms[client] for client in norms if client in kept])
        return kept

    def let_pass(self, norms: NDArray[np.float64]) -> bool:
        """Accept the updates of a round, by their norms, if there is nothing to say about any of them."""
        if self.limit == "off" or not len(norms):
            return True
        passed = bool((norms <= self._most(norms)[0]).all())
        if passed:
            self._accept(norms)
        return passed

    def _most(self, norms: NDArray[np.float64]) -> tuple[float, float]:
        """Return the largest norm about which there is nothing to say, and the usual one."""
        usual = self._median(norms)
        return USUAL * usual if self.limit in ("warn", "auto") else float(self.limit), usual

    def _accept(self, norms: Sequence[float] | NDArray[np.float64]) -> None:
        self._recent = np.concatenate([self._recent, norms])[-HISTORY:]

    def _median(self, current: NDArray[np.float64]) -> float:
        """Return the median norm so far, or that of the present round where most would be refused by it.

        There it is the rate that has changed, or the earlier updates that were unusual: refusing all would
        end learning for good, as what is refused never becomes usual. Infinity if neither is known.
        """
        so_far, now = (median(norms[norms > 0]) for norms in (self._recent, current))
        if len(self._recent) < ENOUGH or USUAL * so_far < now < math.inf:
            return now
        return so_far


def median(norms: NDArray[np.float64]) -> float:
    """Return the median of enough norms, else infinity."""
    return float(np.median(norms)) if len(norms) >= ENOUGH else math.inf


def norm(reply: Reply) -> float:
    """Return the Euclidean norm of an update."""
    update = reply.vector if reply.origin is None else reply.vector - reply.origin
    with np.errstate(over="ignore"):
        square = float(np.vdot(update, update))
    if not math.isfinite(square):  # in single precision
        square = float(np.square(update, dtype=np.float64).sum())
    return math.sqrt(square)


def scaled(reply: Reply, factor: float) -> Reply:
    """Return a reply whose update is multiplied by a factor."""
    if reply.origin is None:
        return reply._replace(vector=reply.vector * factor)
    update = np.subtract(reply.vector, reply.origin, dtype=np.float64)
    return reply._replace(vector=(reply.origin + factor * update).astype(reply.vector.dtype))
