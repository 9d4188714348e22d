"""Groups of clients that take turns."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flexfl.ground.allowed import Count
from traces.base import RoundAvailability, complete_if_online
from traces.seeded import SeededTrace


@dataclass(frozen=True, kw_only=True)
class Periodic(SeededTrace):
    """Groups of clients take turns: each of the G groups is online for P / G rounds of every period of P.

    Wang and Ji, NeurIPS 2022 ("arbitrary client participation"; P = 500), and Crawshaw and Liu, NeurIPS 2024
    ("Amplified SCAFFOLD"; P = 20 and 50), with 250 clients in 5 groups. As in their code, the clients are
    divided by index, and the first turn is shorter by an offset drawn uniformly from 0..P/G-1, so that runs
    with different seeds are not synchronised. Online clients complete all their steps.

    Attributes
    ----------
    groups
        G; client k belongs to group floor(k G / N).
    period
        P in rounds, a multiple of G.
    """

    groups: Count = 5
    period: Count = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period % self.groups:
            raise ValueError(
                f"trace periodic: period is {self.period}; it must be a multiple of groups, {self.groups}"
            )

    @cached_property
    def group(self) -> NDArray[np.int64]:
        """Each client's group."""
        return np.arange(self.num_clients) * self.groups // self.num_clients

    @cached_property
    def offset(self) -> int:
        """Rounds by which the first turn is shorter."""
        return int(self.rng("periodic", 0).integers(self.period // self.groups))

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        turn = self.period // self.groups
        return complete_if_online(self.group == (t - 1 + self.offset) // turn % self.groups)
