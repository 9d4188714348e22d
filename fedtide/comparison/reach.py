"""The targets to which a comparison counts the costs, and whether its runs can reach them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedtide.config.grid import Cell
from fedtide.config.target import LOSSES, Target
from fedtide.federation import Federation
from fedtide.ground.errors import SettingsError
from fedtide.tasks import ACCURACY


def parse_targets(given: Iterable[float | str]) -> list[Target]:
    """Read values of the metric, such as 0.8, and targets such as `loss=0.5`; ValueError: it is neither."""
    targets = [Target.parse(str(text), "reach", needs_name=False) for text in given]
    for target in targets:
        if target.value < 0 and not target.name:
            raise SettingsError(f"reach is {target}; it must be at least 0, or NAME=VALUE")
    return list(dict.fromkeys(targets))


def targets_of(cells: Sequence[Cell], reach: Sequence[Target]) -> list[Target]:
    """Return the targets of a comparison: those given, else the one at which all of its cells stop.

    ValueError: its runs do not evaluate one of them, or some stop before they can reach it.
    """
    stops = {cell.settings.stop_at for cell in cells}
    reach = [*reach] or [Target.parse(stop, "stop-at") for stop in stops if len(stops) == 1 and stop]
    for cell in cells:
        for target in reach:
            target.check(cell.settings, "reach")
    for cell in {cell.settings.task: cell for cell in reversed(cells)}.values():
        _check(cell, reach, [Target.parse(stop, "stop-at") for stop in sorted(stops) if stop])
    return reach


def _check(cell: Cell, reach: Sequence[Target], stops: Sequence[Target]) -> None:
    """Check targets for a task, whose data are loaded if that needs its metric."""
    named = {target.name for target in (*reach, *stops)} - {"", *LOSSES}
    metric = Federation.of(cell.settings).data.criterion.metric if named else ACCURACY
    measured = {target: target.measured(metric, "reach") for target in reach}
    for stop in stops:
        own = stop.measured(metric, "stop-at")
        for target, its in measured.items():
            if its.key == own.key and not its.reaches(stop.value, target.value):
                raise SettingsError(f"reach {target}: runs end before, at stop-at {stop}; give one of them")
