"""What an option may be, beside where it is declared: for the check, its message, and `--list`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


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
