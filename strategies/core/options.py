"""Options that every strategy has; a method adds its own in a subclass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked, Count, CountOrZero, NotNegative, Positive, Range, check
from fedtide.base.contract.fit import planned_steps
from fedtide.base.errors import ResultError, SettingsError
from fedtide.base.wording import plain
from strategies.core.layers import InitialModelFactory, LayerFactory
from strategies.core.norms import is_norm_limit
from strategies.core.roster import Roster
from strategies.core.selection import SelectionFactory, of_method

Schedule = Callable[[float, int, int, float], float]
Units = Literal["gradient", "update"]
"""What a method remembers: sums of gradients, for the rate of the round, or changes of the weights."""
EmptyRound = Literal["skip", "move"]
"""What a method does in a round without replies: nothing, or a step by what it remembers."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The learning rate, unchanged in all rounds."""

    def __call__(self, learning_rate: float, server_round: int, shift: int, local_steps: float) -> float:
        return learning_rate


@dataclass(frozen=True, kw_only=True)
class Staircase:
    """eta_0 / (tau - tau_0): decays by round, restarts with each new objective (Ruan et al., 5.1)."""

    restart: bool = True

    def __call__(self, learning_rate: float, server_round: int, shift: int, local_steps: float) -> float:
        return learning_rate / (server_round - shift if self.restart else server_round)


@dataclass(frozen=True, kw_only=True)
class Geometric(Checked):
    """eta_0 * factor^(t-1) (MimiC, Table II)."""

    factor: Annotated[float, Range(above=0, most=1)] = 0.99

    def __call__(self, learning_rate: float, server_round: int, shift: int, local_steps: float) -> float:
        return learning_rate * self.factor ** (server_round - 1)


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Checked):
    """eta_0 / sqrt((t - 1) / scale + 1) (FedAWE's code, with scale 10)."""

    scale: Positive = 10.0

    def __call__(self, learning_rate: float, server_round: int, shift: int, local_steps: float) -> float:
        return learning_rate / math.sqrt((server_round - 1) / self.scale + 1)


@dataclass(frozen=True, kw_only=True)
class Theorem(Checked):
    """16 E / (mu E[sum p s]) / ((tau - tau_0) E + gamma) (Ruan et al., Theorem 3.1; ignores the base rate).

    Attributes
    ----------
    mu
        Strong convexity of the objective.
    gamma
        The offset of the theorem, max(32 E (1 + theta) L / mu, 4 E^2 theta) / E[sum p s].
    work
        E[sum_k p_k s_k], the expected weighted number of steps of a round; 0 takes E (nobody is incomplete).
    """

    mu: Positive = 0.1
    gamma: NotNegative = 1000.0
    work: NotNegative = 0.0

    def __call__(self, learning_rate: float, server_round: int, shift: int, local_steps: float) -> float:
        E = local_steps
        return 16 * E / (self.mu * (self.work or E)) / ((server_round - shift) * E + self.gamma)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": Constant,
    "staircase": Staircase,
    "geometric": Geometric,
    "inverse-sqrt": InverseSqrt,
    "theorem": Theorem,
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the clients of a round are asked to do.

    Attributes
    ----------
    clients_per_round
        K, how many of the available clients are selected; 0 selects all of them. In event time the most that
        are at work at a time.
    round_ends
        B of event time, in which a round ends when B replies have come, and those who have not replied stay
        at work; 0: the round's length does not depend on the replies.
    local_steps
        E, local SGD steps of a complete client.
    local_epochs
        If positive, E_k = local_epochs * ceil(n_k / batch_size) steps instead of `local_steps`.
    batch_size
        Examples per step; 0 takes the client's whole set.
    learning_rate
        eta_0 of the schedule.
    lr_schedule
        Rate of a round, see `strategies.core.options`.
    num_rounds
        T, planned length of the training; 0 if unknown.
    seed
        Seed of the selection.
    select
        Makes the selection, who is asked in a round, see `strategies.selection`.
    layers
        On top of the method, the lowest one first: a server optimiser, amplification.
    initial_model
        Makes what decides on the model to start from when the members have changed, see
        `strategies.parts.initial_model`.
    max_update_norm
        What happens to updates that are far larger than usual: `warn` reports those with more than 20 times
        the median norm of the latest 200, `auto` refuses them, a number refuses those with a larger norm, and
        `off` does nothing. It guards against broken clients, not against malicious ones.
    outliers
        `clip` scales such an update down to the limit instead of refusing it.
    max_lag
        Replies with a larger lag are discarded; -1: none is (Ringmaster ASGD, whose R is one more).
    stop_late
        In event time, stop each task whose lag exceeds that: its client can be asked at once.
    departure
        What becomes of a departing client's objective: `include` keeps it, `exclude` drops it, `auto` decides
        by the remaining time (Ruan et al., Corollary 4.0.3).
    departure_constant
        Factor in front of sqrt(Gamma_l tau_0) in that criterion, of which the paper gives the order only. 10
        to 20 fit SYNTHETIC(.1,.1) to (1,1) best, see experiments/ruan.md.

    Raises
    ------
    ValueError
        A value is not allowed; the message names it and the allowed ones.
    """

    clients_per_round: CountOrZero = 0
    round_ends: CountOrZero = 0
    local_steps: Count = 10
    local_epochs: CountOrZero = 0
    batch_size: CountOrZero = 10
    learning_rate: Positive = 0.1
    lr_schedule: Schedule = field(default_factory=Constant)
    num_rounds: CountOrZero = 0
    seed: CountOrZero = 0
    select: SelectionFactory = of_method
    layers: tuple[LayerFactory, ...] = ()
    initial_model: InitialModelFactory | None = None
    max_update_norm: str = "warn"
    outliers: Literal["refuse", "clip"] = "refuse"
    max_lag: Annotated[int, Range(least=-1)] = -1
    stop_late: bool = False
    departure: Literal["exclude", "include", "auto"] = "exclude"
    departure_constant: Positive = 10.0

    def __post_init__(self) -> None:
        check(self)
        if not callable(self.lr_schedule):
            raise SettingsError(f"lr-schedule is {self.lr_schedule!r}; give `make` a spec or a schedule")
        if not is_norm_limit(self.max_update_norm):
            known = "off, warn, auto or a positive number"
            raise SettingsError(f"max-update-norm is {self.max_update_norm!r}; it must be {known}")
        if self.stop_late and (self.max_lag < 0 or not self.round_ends):
            raise SettingsError(
                "stop-late stops tasks of event time beyond a lag: set round-ends and max-lag"
            )

    def planned_steps(self, num_examples: Any) -> Any:
        """E_k, the steps of complete clients with these numbers of examples: one, or an array of them."""
        return planned_steps(self.local_steps, self.local_epochs, self.batch_size, num_examples)

    def scheduled_rate(self, server_round: int, roster: Roster) -> float:
        """Return the learning rate of a round; with local epochs, E is the mean over the members."""
        E = float(self.local_steps)
        if self.local_epochs:
            E = self.mean_steps(roster.num_examples[roster.contributors])
        given = self.lr_schedule(self.learning_rate, server_round, roster.shift, E)
        try:
            rate = float(given)
        except (TypeError, ValueError):
            rate = math.nan
        if not math.isfinite(rate):
            raise ResultError(self.lr_schedule, f"gives {plain(given, 60)}, not a learning rate")
        return rate

    def mean_steps(self, num_examples: NDArray[np.int64]) -> float:
        """Mean E_k of complete clients with these numbers of examples, shape (K,)."""
        return float(np.mean(self.planned_steps(num_examples)) if len(num_examples) else self.local_steps)


@dataclass(frozen=True, kw_only=True)
class ServerRateOptions(Options):
    """Options of methods with a server rate.

    Attributes
    ----------
    server_rate
        eta_g, by which the update of a round is multiplied.
    """

    server_rate: Positive = 1.0
