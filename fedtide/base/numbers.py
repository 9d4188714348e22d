"""Numbers that others have written as text: in ASCII digits, without the liberties that Python takes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def finite(text: str) -> float | None:
    """Return the number that a text is, None if it is not one: unlike for `float`, 1_000 and inf are none."""
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def exact(texts: Sequence[str]) -> list[Decimal] | None:
    """Return the numbers that texts are, so that 1, 1.0 and 01 are equal; None if one of them is none."""
    return [Decimal(text) for text in texts] if all(map(_NUMBER.fullmatch, texts)) else None


class Decimals:
    """Reads the numbers of one file: with decimal points or, if `commas` are allowed, with decimal commas.

    A file with both is refused: 1.234 may be a thousand there.
    """

    def __init__(self, commas: bool = False) -> None:
        self._commas, self._mark = commas, ""

    def __call__(self, text: str) -> float:
        """Return the number that a text is; ValueError: it is none, or its decimals are marked otherwise."""
        if (value := finite(self.pointed(text))) is None:
            raise ValueError(f"{text[:40]!r} is not a finite number")
        return value

    def pointed(self, text: str) -> str:
        """Return a number with a decimal point, and any other text as it is; ValueError as above."""
        if not self._commas or not ("," in text or "." in text):
            return text
        mark, with_point = ("," if "," in text else "."), text.replace(",", ".")
        if finite(with_point) is None:
            return text
        if (self._mark or mark) != mark:
            raise ValueError(f"{text[:40]!r}: other decimals are marked by {self._mark!r}; write all alike")
        self._mark = mark
        return with_point
