"""Options that every strategy has; a method adds its own in a subclass."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexfl.contract.fit import planned_steps
from strategies.core.layers import LayerFactory
from strategies.core.norms import is_norm_limit
from strategies.core.schedules import Constant, Schedule


@dataclass(frozen=True)
class Allowed:
    """The values that an option may have: one of some words, or a finite number in a range.

    Attributes
    ----------
    choices
        The words; empty: the option is a number.
    least, above, most, below
        Bounds of the number: at least, more than, at most, less than.
    """

    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        if self.choices:
            return " | ".join(self.choices)
        if self.above == 0 and self.most is None:
            return "positive"
        if self.least is not None and self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        lower = (("above", self.above), ("at least", self.least))
        upper = (("at most", self.most), ("below", self.below))
        return " and ".join(f"{word} {bound:g}" for word, bound in lower + upper if bound is not None)

    def check(self, option: str, value: Any) -> None:
        """Refuse a value that is not allowed.

        Raises
        ------
        ValueError
            Names the option, the value and what is allowed.
        """
        if self.choices:
            if value not in self.choices:
                raise ValueError(f"{option} is {value!r}; choose one of {', '.join(self.choices)}")
            return
        inside = math.isfinite(value)
        inside &= self.least is None or value >= self.least
        inside &= self.above is None or value > self.above
        inside &= self.most is None or value <= self.most
        inside &= self.below is None or value < self.below
        if not inside:
            raise ValueError(f"{option} is {value}; it must be {self}")


def choice(default: str, *others: str) -> Any:
    """Field of an option that is one of some words."""
    return field(default=default, metadata={"allowed": Allowed((default, *others))})


def number(
    default: float, *, least: float | None = None, above: float | None = None, most: float | None = None
) -> Any:
    """Field of an option that is a number in a range, see `Allowed`."""
    return field(default=default, metadata={"allowed": Allowed((), least, above, most)})


def positive(default: float) -> Any:
    """Field of an option that is a positive number."""
    return number(default, above=0)


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
        Examples per step; 0 takes the client's whole set.
    learning_rate
        eta_0 of the schedule.
    lr_schedule
        Rate of a round, see `strategies.core.schedules`.
    num_rounds
        T, planned length of the training; 0 if unknown.
    seed
        Seed of the selection.
    layers
        On top of the method, the lowest one first: a server optimiser, amplification.
    max_update_norm
        What happens to updates that are far larger than usual: `warn` reports those with more than 20 times
        the median norm of the latest 200, `auto` refuses them, a number refuses those with a larger norm, and
        `off` does nothing. It guards against broken clients, not against malicious ones.
    outliers
        `clip` scales such an update down to the limit instead of refusing it.
    departure
        What becomes of a departing client's objective: `include` keeps it, `exclude` drops it, `auto` decides
        by the remaining time (Ruan et al., Corollary 4.0.3).
    departure_constant
        Factor in front of sqrt(Gamma_l tau_0) in that criterion, of which the paper gives the order only. 10
        to 20 fit SYNTHETIC(.1,.1) to (1,1) best, see experiments/README.md.

    Raises
    ------
    ValueError
        A value is not allowed; the message names it and says what is.
    """

    clients_per_round: int = number(0, least=0)
    local_steps: int = number(10, least=1)
    local_epochs: int = number(0, least=0)
    batch_size: int = number(10, least=0)
    learning_rate: float = positive(0.1)
    lr_schedule: Schedule = field(default_factory=Constant)
    num_rounds: int = number(0, least=0)
    seed: int = number(0, least=0)
    layers: tuple[LayerFactory, ...] = ()
    max_update_norm: str = "warn"
    outliers: str = choice("refuse", "clip")
    departure: str = choice("exclude", "include", "auto")
    departure_constant: float = positive(10.0)

    def __post_init__(self) -> None:
        for f in fields(self):
            if "allowed" in f.metadata:
                f.metadata["allowed"].check(f.name.replace("_", "-"), getattr(self, f.name))
        if not is_norm_limit(self.max_update_norm):
            known = "off, warn, auto or a positive number"
            raise ValueError(f"max-update-norm is {self.max_update_norm!r}; it must be {known}")

    def planned_steps(self, num_examples: int) -> int:
        """E_k, the steps of a complete client with this many examples."""
        return planned_steps(self.local_steps, self.local_epochs, self.batch_size, num_examples)

    def mean_steps(self, num_examples: NDArray[np.int64]) -> float:
        """Mean E_k of complete clients with these numbers of examples, shape (K,)."""
        if not self.local_epochs or not len(num_examples):
            return float(self.local_steps)
        return float(np.mean([self.planned_steps(n) for n in num_examples.tolist()]))
