"""Options that every strategy has; a method adds its own in a subclass."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strategies.core.schedules import Constant, Schedule


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the clients of a round are asked to do.

    Attributes
    ----------
    clients_per_round
        K, how many of the available clients are selected; 0 selects all of them.
    local_steps
        E, local SGD steps of a complete client.
    local_epochs
        If positive, E_k = local_epochs * ceil(n_k / batch_size) steps instead of `local_steps`.
    batch_size
        Examples a step; 0 takes the client's whole set.
    learning_rate
        eta_0 of the schedule.
    lr_schedule
        Rate of a round, see `strategies.core.schedules`.
    num_rounds
        T, planned length of the training; 0 if unknown.
    seed
        Seed of the selection.
    departure
        What becomes of a departing client's objective: `include` keeps it, `exclude` drops it, `auto` decides
        by the remaining time (Ruan et al., Corollary 4.0.3).
    departure_constant
        Factor in front of sqrt(Gamma_l tau_0) in that criterion, of which the paper gives the order only. 10
        to 20 fit SYNTHETIC(.1,.1) to (1,1) best, see experiments/README.md.
    """

    clients_per_round: int = 0
    local_steps: int = 10
    local_epochs: int = 0
    batch_size: int = 10
    learning_rate: float = 0.1
    lr_schedule: Schedule = field(default_factory=Constant)
    num_rounds: int = 0
    seed: int = 0
    departure: str = "exclude"
    departure_constant: float = 10.0

    def __post_init__(self) -> None:
        for name in ("clients_per_round", "local_epochs", "batch_size", "num_rounds", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name.replace('_', '-')} is {getattr(self, name)}; it cannot be negative")
        if self.local_steps < 1:
            raise ValueError(f"local-steps is {self.local_steps}; a client must do at least 1 step")
        positive("learning-rate", self.learning_rate)
        positive("departure-constant", self.departure_constant)
        choose("departure", self.departure, ("include", "exclude", "auto"))

    def planned_steps(self, num_examples: int) -> int:
        """E_k, the steps of a complete client with this many examples."""
        if not self.local_epochs:
            return self.local_steps
        batches = -(-num_examples // self.batch_size) if self.batch_size else 1
        return self.local_epochs * batches

    def mean_steps(self, num_examples: NDArray[np.int64]) -> float:
        """Mean E_k of complete clients with these numbers of examples, shape (K,)."""
        if not self.local_epochs or not len(num_examples):
            return float(self.local_steps)
        return float(np.mean([self.planned_steps(n) for n in num_examples.tolist()]))


def choose(option: str, value: str, known: Collection[str]) -> None:
    """Refuse a value that an option does not know.

    Raises
    ------
    ValueError
        Names the option, the value and what is known.
    """
    if value not in known:
        raise ValueError(f"{option} is {value!r}; choose one of {', '.join(known)}")


def positive(option: str, value: float) -> None:
    """Refuse a value that is not a positive finite number.

    Raises
    ------
    ValueError
        Names the option and the value.
    """
    if not 0 < value < math.inf:
        raise ValueError(f"{option} is {value}; it must be positive and finite")
