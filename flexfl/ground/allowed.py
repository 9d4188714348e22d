"""What an option may be, beside where it is declared: for the check, its message, and `--list`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

from flexfl.ground.specs import did_you_mean


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
        if self.above == 0 and self.most is None and self.below is None:
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
                hint = did_you_mean(str(value), self.choices)
                raise ValueError(f"{option} is {value!r}; choose one of {', '.join(self.choices)}{hint}")
            return
        if not isinstance(value, int) and not math.isfinite(value):  # an integer may be beyond the floats
            raise ValueError(f"{option} is {value}; it must be a finite number")
        inside = self.least is None or value >= self.least
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


def check_fields(options: Any, where: str = "") -> None:
    """Refuse an instance of a dataclass of which a field is not what `allowed` in its metadata says.

    Parameters
    ----------
    options
        The instance.
    where
        What stands before the name of the option in the message.

    Raises
    ------
    ValueError
        See `Allowed.check`.
    """
    for f in fields(options):
        if allowed := f.metadata.get("allowed"):
            allowed.check(where + f.name.replace("_", "-"), getattr(options, f.name))


def check_annotated(where: str, function: Callable[..., Any], **options: Any) -> None:
    """The same for arguments of a function whose parameters are `Annotated[float, Allowed(...)]`."""
    hints = get_type_hints(function, include_extras=True)
    for name, value in options.items():
        get_args(hints[name])[1].check(where + name, value)
