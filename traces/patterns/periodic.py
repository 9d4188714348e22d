"""Groups of clients that take turns."""

import numpy as np

from traces.base import RoundAvailability, check_round, complete_if_online
from traces.seeded import Count, SeededTrace, check_at_least


class Periodic(SeededTrace):
    """Groups of clients take turns: each of the G groups is online for P / G rounds of every period of P.

    Wang and Ji, NeurIPS 2022 ("arbitrary client participation"; P = 500), and Crawshaw and Liu, NeurIPS 2024
    ("Amplified SCAFFOLD"; P = 20 and 50), with 250 clients in 5 groups. As in their code, the clients are
    divided by index, and the first turn is shorter by an offset drawn uniformly from 0..P/G-1, so that runs
    with different seeds are not synchronised. Online clients complete all their steps.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    groups : int
        G; client k belongs to group floor(k G / N).
    period : int
        P in rounds, a multiple of G.

    Attributes
    ----------
    group : (N,) int64
        Each client's group.
    offset : int
        Rounds by which the first turn is shorter.

    Raises
    ------
    ValueError
        If there is no group, or the period is no positive multiple of the number of groups.
    """

    def __init__(self, num_clients: int, seed: int, *, groups: Count = 5, period: Count = 20) -> None:
        super().__init__(num_clients, seed)
        check_at_least("periodic", "groups", groups, 1)
        if period < groups or period % groups:
            raise ValueError(f"trace periodic: period is {period}, give a multiple of groups ({groups})")
        self.group = np.arange(num_clients) * groups // num_clients
        self._groups, self._turn = groups, period // groups
        self.offset = int(self.rng("periodic", 0).integers(self._turn))

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        return complete_if_online(self.group == (t - 1 + self.offset) // self._turn % self._groups)
