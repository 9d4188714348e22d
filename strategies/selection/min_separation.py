"""Minimum separation: nobody is asked again before R rounds have passed.

The condition of DP-FTRL for bounded participation (Kairouz et al. 2021, "Practical and Private (Deep)
Learning without Sampling or Shuffling", ICML), and the sampler of Sun et al. 2025, "Debiasing Federated
Learning with Correlated Client Participation", ICLR.
"""

from __future__ import annotations

import numpy as np

from strategies import Clients, Count, Roster, Uniform


class MinSeparation(Uniform):
    """Uniformly of those with data who were not asked in the last R - 1 rounds: fewer than K, maybe nobody.

    Parameters
    ----------
    roster, seed
        See `Selection`.
    R
        A client that was asked in round t is asked in round t + R at the earliest, accepted or not.
    """

    def __init__(self, roster: Roster, seed: int, *, R: Count) -> None:
        super().__init__(roster, seed)
        self.R = R

    def eligible(self, available: Clients, server_round: int) -> Clients:
        """Return those with t - A_k >= R, and those who were never asked."""
        asked, data_less = self.roster.asked[available], self.roster.data_less[available]
        may = (asked == 0) | (server_round - asked >= self.R)
        return np.asarray(available[may & ~data_less])
