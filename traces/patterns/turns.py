"""Groups of clients that take turns: in two shifts, or one group after the other."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Count, CountOrZero
from fedtide.base.errors import SettingsError
from traces.base import RoundAvailability, SeededTrace, complete_if_online


@dataclass(frozen=True, kw_only=True)
class Diurnal(SeededTrace, name="diurnal"):
    """Two alternating shifts: the first groups of clients are online for E rounds, then all others for E.

    Yan et al., "FedLaAvg", 6.1.3: the clients that hold digits 0..D-1 are online in the first shift. A trace
    does not see labels: as in the authors' code, the clients are divided into `of` equal groups by index, and
    the first `groups` of these form the first shift. With ten groups, `groups` is the paper's D if the
    clients are ordered by label (partition `label:order=sorted`). Online clients complete all their steps.

    Attributes
    ----------
    period
        E, the length of a shift in rounds.
    groups
        D, the number of groups in the first shift, at most `of`.
    of
        Number of groups; client k belongs to group floor(k of / N).
    rest_period
        Length of the second shift in rounds; 0: the same as the first. Different lengths are t_1 and t_2 of
        the paper's Example 1.
    """

    period: Count = 100
    groups: Count = 1
    of: Count = 10
    rest_period: CountOrZero = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups > self.of:
            raise SettingsError(f"trace diurnal: groups is {self.groups}; it must be at most of, {self.of}")

    @cached_property
    def first_shift(self) -> NDArray[np.bool_]:
        """Which clients are online in the first shift, shape (N,)."""
        return np.arange(self.num_clients) * self.of // self.num_clients < self.groups

    @property
    def repeats_after(self) -> int:
        return self.period + (self.rest_period or self.period)

    def availability(self, t: int) -> RoundAvailability:
        return complete_if_online(self.first_shift == ((t - 1) % self.repeats_after < self.period))


@dataclass(frozen=True, kw_only=True)
class Periodic(SeededTrace, name="periodic"):
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
            raise SettingsError(
                f"trace periodic: period is {self.period}; it must be a multiple of groups, {self.groups}"
            )

    @property
    def repeats_after(self) -> int:
        return self.period

    @cached_property
    def group(self) -> NDArray[np.int64]:
        """Each client's group."""
        return np.arange(self.num_clients) * self.groups // self.num_clients

    @cached_property
    def offset(self) -> int:
        """Rounds by which the first turn is shorter."""
        return int(self.rng("periodic", 0).integers(self.period // self.groups))

    def availability(self, t: int) -> RoundAvailability:
        turn = self.period // self.groups
        return complete_if_online(self.group == (t - 1 + self.offset) // turn % self.groups)
