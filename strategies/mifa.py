"""MIFA: the mean of every client's latest update, also of those who are away.

Gu et al. 2021, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability", NeurIPS,
Algorithm 1, with memory-augmented impatience: each round moves by the newest that is known of each client,

    G_i := (w_t - w_i) / eta_t  for i in S_t,     w := w - eta_t (1/N) sum_i G_i.

The entries are in units of gradients, so that old ones are applied with the current rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies.core.options import choose
from strategies.core.replies import Replies
from strategies.core.strategy import FlexibleStrategy
from strategies.memory.table import SummedTable, TableOptions


def gradient_factors(
    steps: NDArray[np.int64], planned: NDArray[np.int64], learning_rate: float, normalize: bool
) -> NDArray[np.float64]:
    """G_i / delta_i: -1 / eta_t, times E / s_i for a client that did only s_i of its E steps. Shape (K,)."""
    return -(planned / steps if normalize else np.ones(len(steps))) / learning_rate


def divisor(first_round: str, seen: int, members: int) -> int:
    """N, or with `seen` the number of clients that the sum is made of."""
    return max(1, seen if first_round == "seen" else members)


@dataclass(frozen=True, kw_only=True)
class MIFAOptions(TableOptions):
    """Options of MIFA.

    Attributes
    ----------
    first_round
        The paper has all clients reply in the first round. Otherwise: `zeros` divides by N from the start, as
        if a client never seen had sent 0; `wait` does not move before every member was seen once (the
        authors' FDUTrainer, without training all of them once more); `seen` divides by the clients seen.
    normalize
        Scale incomplete work by E / s_i; the paper knows no incomplete clients, `false` takes it as it is.
    empty
        In a round without replies: `skip` rests, `move` applies the memory once more (the paper).
    """

    first_round: str = "zeros"
    normalize: bool = True
    empty: str = "skip"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("first-round", self.first_round, ("zeros", "wait", "seen"))
        choose("empty", self.empty, ("skip", "move"))


class MIFA(FlexibleStrategy):
    """Mean of all clients' latest updates, kept at the server, whoever replies: w -= eta (1/N) sum_i G_i."""

    options_type = MIFAOptions
    options: MIFAOptions
    saved: ClassVar[tuple[str, ...]] = (*FlexibleStrategy.saved, "latest", "waiting")

    def setup(self) -> None:
        """Start without any entry."""
        self.latest = SummedTable(self.layout, self.options)  # G_i
        self.waiting = self.options.first_round == "wait"

    def update(self, replies: Replies) -> None:
        """Overwrite the entries of those who replied, and move by the mean of all."""
        factors = gradient_factors(replies.steps, replies.planned, self.learning_rate, self.options.normalize)
        self.latest.replace(replies, factors)
        self._move()

    def empty_round(self) -> bool:
        """Move by the mean of the old entries, with `move`."""
        return self.options.empty == "move" and self._move()

    def on_departure(self, client: int, keep: bool) -> None:
        """Forget the entry of a client that leaves the objective."""
        if not keep:
            self.latest.drop(client)

    def _move(self) -> bool:
        """Apply w -= eta_t (1/N) sum_i G_i, unless the first entry of a member is being waited for."""
        members = self.roster.num_contributors
        self.waiting = self.waiting and len(self.latest) < members
        if self.waiting or not len(self.latest):
            return False
        count = divisor(self.options.first_round, len(self.latest), members)
        self.weights -= self.learning_rate / count * self.latest.total
        return True
