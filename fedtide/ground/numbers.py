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
