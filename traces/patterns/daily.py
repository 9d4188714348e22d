"""Availability that follows the time of day."""

import math
from typing import Annotated

import numpy as np

from traces.base import RoundAvailability, check_round, complete_if_online
from traces.seeded import (
    Count,
    Positive,
    Probability,
    SeededTrace,
    check_at_least,
    check_positive,
    check_probability,
)


class Diurnal(SeededTrace):
    """Two alternating shifts: the first groups of clients are online for E rounds, then all others for E.

    Yan et al., "FedLaAvg", 6.1.3: the clients that hold digits 0..D-1 are online in the first shift. A trace
    does not see labels: as in the authors' code, the clients are divided into `of` equal groups by index, and
    the first `groups` of these form the first shift. With ten groups, `groups` is the paper's D if the
    clients are ordered by label (partition `label:order=sorted`). Online clients complete all their steps.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Not used: nothing is drawn.
    period : int
        E, the length of a shift in rounds.
    groups : int
        D, the number of groups in the first shift, 1..of.
    of : int
        Number of groups; client k belongs to group floor(k of / N).
    rest_period : int
        Length of the second shift in rounds; 0: the same as the first. Different lengths are t_1 and t_2 of
        the paper's Example 1.

    Raises
    ------
    ValueError
        If a period is below 1 or `groups` is outside 1..of.
    """

    def __init__(
        self,
        num_clients: int,
        seed: int,
        *,
        period: Count = 100,
        groups: Count = 1,
        of: Count = 10,
        rest_period: Annotated[int, "at least 0"] = 0,
    ) -> None:
        super().__init__(num_clients, seed)
        check_at_least("diurnal", "period", period, 1)
        check_at_least("diurnal", "of", of, 1)
        check_at_least("diurnal", "rest-period", rest_period, 0)
        if not 1 <= groups <= of:
            raise ValueError(f"trace diurnal: groups is {groups}, give a number from 1 to {of} (of)")
        self.first_shift = np.arange(num_clients) * of // num_clients < groups
        self._shifts = period, rest_period or period

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        first, second = self._shifts
        return complete_if_online(self.first_shift == ((t - 1) % (first + second) < first))


class Sine(SeededTrace):
    """Every client is online with a probability that oscillates: mean + amplitude sin(2 pi (t-1) / T).

    All clients are in phase and drawn independently; online clients complete all their steps. FLGo's mode
    `SLN` has T = 24, mean 0.5 and amplitude 0.4, times a probability per client: combine it with `+levels`.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    period : float
        T in rounds, positive.
    mean, amplitude : float
        Mean and amplitude of the probability, which must stay within 0..1.

    Raises
    ------
    ValueError
        If the period is not positive or the probability leaves 0..1.
    """

    def __init__(
        self,
        num_clients: int,
        seed: int,
        *,
        period: Positive = 24.0,
        mean: Probability = 0.5,
        amplitude: float = 0.4,
    ) -> None:
        super().__init__(num_clients, seed)
        check_positive("sine", "period", period)
        check_probability("sine", "mean - amplitude", mean - abs(amplitude))
        check_probability("sine", "mean + amplitude", mean + abs(amplitude))
        self.period, self.mean, self.amplitude = period, mean, amplitude

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        p = self.mean + self.amplitude * math.sin(2 * math.pi * (((t - 1) / self.period) % 1))
        return complete_if_online(self.rng("sine", t).random(self.num_clients) < p)
