"""Learning-rate schedules: the rate that every client uses in a round.

A schedule is a callable `(learning_rate, server_round, shift, local_steps) -> rate`. Rounds count from 1;
`shift` is the last round of the previous objective (tau_0 of Ruan et al., 0 before any arrival or departure),
so that `server_round - shift` is 1 in the first round of the current objective. `local_steps` is E,
with local epochs the mean over the clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fedtide.ground.allowed import Checked, NotNegative, Positive, Range

Schedule = Callable[[float, int, int, float], float]


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The learning rate, unchanged in all rounds."""

    def __call__(self, learning_rate: float, server_round: int, shift: int, local_steps: float) -> float:
        """Rate of a round."""
        return learning_rate


@dataclass(frozen=True, kw_only=True)
class Staircase:
    """eta_0 / (tau - tau_0): decays by round, restarts with each new objective (Ruan et al., 5.1)."""

    restart: bool = True

    def __call__(self, learning_rate: float, server_round: int, shift: int, local_steps: float) -> float:
        """Rate of a round."""
        return learning_rate / (server_round - shift if self.restart else server_round)


@dataclass(frozen=True, kw_only=True)
class Geometric(Checked):
    """eta_0 * factor^(t-1) (MimiC, Table II)."""

    factor: Annotated[float, Range(above=0, most=1)] = 0.99

    def __call__(self, learning_rate: float, server_round: int, shift: int, local_steps: float) -> float:
        """Rate of a round."""
        return learning_rate * self.factor ** (server_round - 1)


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Checked):
    """eta_0 / sqrt((t - 1) / scale + 1) (FedAWE's code, with scale 10)."""

    scale: Positive = 10.0

    def __call__(self, learning_rate: float, server_round: int, shift: int, local_steps: float) -> float:
        """Rate of a round."""
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
        """Rate of a round."""
        E = local_steps
        return 16 * E / (self.mu * (self.work or E)) / ((server_round - shift) * E + self.gamma)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": Constant,
    "staircase": Staircase,
    "geometric": Geometric,
    "inverse-sqrt": InverseSqrt,
    "theorem": Theorem,
}
