"""Selection: who is asked in a round, on top of any method; one rule a file, and the registry."""

from __future__ import annotations

from collections.abc import Callable

from strategies import Selection
from strategies.core.selection import LongestAbsent, Uniform, of_method
from strategies.selection.min_separation import MinSeparation
from strategies.selection.oort import Oort
from strategies.selection.power_of_choice import PowerOfChoice
from strategies.selection.refl import REFL

SELECTIONS: dict[str, Callable[..., Selection | None]] = {
    "method": of_method,
    "uniform": Uniform,
    "longest-absent": LongestAbsent,
    "min-separation": MinSeparation,
    "power-of-choice": PowerOfChoice,
    "refl": REFL,
    "oort": Oort,
}
