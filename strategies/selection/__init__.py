"""Selection: who is asked in a round, on top of any method; one rule a file, and the registry."""

from __future__ import annotations

from collections.abc import Callable

from fedtide.ground import dotted
from fedtide.ground.specs import Part
from strategies import Roster, Selection
from strategies.core.selection import LongestAbsent, SelectionFactory, Uniform, of_method
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


def selection_of(part: Part) -> SelectionFactory:
    """Return a function that makes the selection that a part stands for."""

    def make(roster: Roster, seed: int) -> Selection | None:
        made = part.build(roster, seed)
        if part.factory is not of_method:
            dotted.expect("select", part.name, made, Selection, "derive it from strategies.Selection")
        return made  # type: ignore[no-any-return]

    return make
