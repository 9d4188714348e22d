"""Speeds that are drawn: how long tasks take where no recording says it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Count, NotNegative, Positive
from fedtide.base.errors import SettingsError
from traces.base import Draws, RoundAvailability, SeededTrace, check_kind

_OWN = {"lognormal": ("median", "spread"), "exponential": ("seconds",), "uniform": ("low", "high")}


@dataclass(frozen=True, kw_only=True)
class Speeds(SeededTrace, name="speeds"):
    """Speeds of clients, for a trace with a clock as in `phones+speeds`: lognormal, exponential or uniform.

    With `lognormal`, a client has the same speed in all rounds. With `exponential` and `uniform`, the time
    that a task of E steps takes is drawn for each client and round. They hold where a recording has no speed
    of its own; the factors of `groups` hold for those recorded, too. Without any other trace with a clock,
    all clients are always online in event time (see `traces.compose.timeline`); in rounds, where such speeds
    would have no effect, they are refused.

    Attributes
    ----------
    kind
        How speeds are drawn.
    median, spread
        Median in steps per second, and standard deviation of the logarithm, for `lognormal`.
    seconds
        Mean time of a task of E steps, for `exponential`.
    low, high
        Shortest and longest time of a task of E steps, in seconds, for `uniform`.
    groups
        Shares of the clients, which are assigned to groups by index, such as .8/.2; empty: one group.
    factors
        What the speeds of each group are multiplied by, such as 2/1.
    local_steps
        E, if there is no other trace with a clock; the run's --local-steps unless given.
    """

    role = "speeds"
    kind: Literal["lognormal", "exponential", "uniform"] = "lognormal"
    median: Positive = 1.0
    spread: NotNegative = 0.5
    seconds: Positive = 10.0
    low: Positive = 1.0
    high: Positive = 2.0
    groups: str = ""
    factors: str = ""
    local_steps: Count = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind(self, self.kind, _OWN)
        if self.low > self.high:
            raise SettingsError(f"trace speeds: low is {self.low:g}; it must be at most high, {self.high:g}")
        _ = self.factor  # reads groups and factors

    @cached_property
    def factor(self) -> NDArray[np.float64]:
        """What each client's speeds are multiplied by, shape (N,)."""
        shares, by_group = _numbers("groups", self.groups), _numbers("factors", self.factors)
        if len(shares) != len(by_group):
            found = f"there are {len(shares)} groups and {len(by_group)} factors"
            raise SettingsError(f"trace speeds: {found}, give a factor for each group")
        if abs(shares.sum() - 1) > 1e-6:
            raise SettingsError(f"trace speeds: groups is {self.groups!r:.40}; the shares must add up to 1")
        ends = np.rint(np.cumsum(shares) * self.num_clients)
        return by_group[np.searchsorted(ends[:-1], np.arange(self.num_clients), side="right")]

    @cached_property
    def _own(self) -> NDArray[np.float64]:
        return self.median * np.exp(self.spread * self.rng("speeds", 0).standard_normal(self.num_clients))

    def availability(self, t: int) -> RoundAvailability:
        """Raise ValueError: without a clock, speeds have no meaning in rounds."""
        raise SettingsError(
            "trace speeds: in rounds, speeds need a trace with a clock, such as sessions+speeds or "
            "phones+speeds; or set round-ends for event time, in which all clients are online"
        )

    def drawn(self, t: int, clients: NDArray[np.intp], steps: int) -> NDArray[np.float64]:
        """Return speeds for tasks of E steps of round t, without factors, in steps per second, shape (K,)."""
        if self.kind == "lognormal":
            return self._own[clients]
        uniform = Draws(self.seed, "speeds").uniform(clients, np.full(len(clients), t))
        if self.kind == "exponential":
            return steps / (-np.log(uniform) * self.seconds)
        return steps / (self.low + (self.high - self.low) * uniform)


def _numbers(name: str, text: str) -> NDArray[np.float64]:
    """Return the numbers of an option such as .8/.2; 1 if it is empty."""
    try:
        numbers = np.array([float(number) for number in (text or "1").split("/")])
    except ValueError:
        numbers = np.zeros(1)
    if not ((numbers > 0) & (numbers < np.inf)).all():
        raise SettingsError(f"trace speeds: {name} is {text!r:.40}; give positive numbers such as .8/.2")
    return numbers
