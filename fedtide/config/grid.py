"""Several values of a setting make a comparison: its cells are all combinations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fedtide.base import dotted
from fedtide.base.errors import SettingsError
from fedtide.base.specs import split_specs
from fedtide.config.settings import MAX_COUNT, Settings, shown

MAX_CELLS = 10_000
TUNE_TRIALS = 12  # of the search for each method, unless `--tune-trials` says otherwise
_LISTS = {f.name.replace("_", "-") for f in fields(Settings) if isinstance(f.default, tuple)}


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    settings: Settings
    varied: Mapping[str, Any]  # its settings, by kebab-case key, in which the cells of the comparison differ
    paper: float | None = None  # the number that a paper reports for it
    tuned: Mapping[str, Any] = field(
        default_factory=dict
    )  # what a search chose; empty: it has no such option

    @property
    def others(self) -> dict[str, Any]:
        """The varied settings other than the seed."""
        return {key: value for key, value in self.varied.items() if key != "seed"}


def at_scale(values: Mapping[str, Any], scale: str, source: str) -> dict[str, Any]:
    """Return what a file says about an experiment at one of its scales, `full` or `small`.

    Under `small` it may have settings that replace others where minutes have to do. `source` is where the
    values come from, for messages; likewise below.
    """
    small = values.get("small", {})
    if not isinstance(small, dict):
        raise SettingsError(
            f"{source}: small is {shown(small)}; it must be a table of settings, under [small]"
        )
    if scale == "small" and not small:
        raise SettingsError(f"{source} has no [small] table; leave --scale out")
    full = {key: value for key, value in values.items() if key != "small"}
    return full | small if scale == "small" else full


def overridden(values: Mapping[str, Any], flags: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return what a file says, and what flags say instead, by kebab-case key: one value, or a list.

    Of settings that the file's `[[cell]]` tables set, flags choose the tables: with a number of a paper in
    it, a table is not changed. ValueError: no cell has what a flag says.
    """
    tables = values.get("cell")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        return {**values, **flags}  # `cells` says what is wrong with them
    rest = {}
    for key, given in flags.items():
        wanted = given if _is_varied(key, given) else [given]
        known = list(dict.fromkeys(str(table[key]) for table in tables if key in table))
        if not known:
            rest[key] = given
            continue
        tables = [table for table in tables if key in table and _as_list(key, table[key]) in wanted]
        if not tables:
            raise SettingsError(f"{source}: no cell left has {key}={wanted[0]}; there are {', '.join(known)}")
    return {**values, **rest, "cell": tables}


def is_comparison(values: Mapping[str, Any]) -> bool:
    """Whether a setting has several values, or there are `[[cell]]` tables."""
    return "cell" in values or any(_is_varied(key, value) for key, value in values.items())


def cells(values: Mapping[str, Any], source: str) -> list[Cell]:
    """Return the cells of a comparison, all combinations of several values.

    Under `cell` is a list of tables with settings that go together, each once, and in them `paper`, the
    number that a paper reports. ValueError: a setting is invalid, a list is empty, two cells are the same, or
    there are too many.
    """
    lists = {key: value for key, value in values.items() if _is_varied(key, value)}
    for key, several in lists.items():
        if not several:
            raise SettingsError(f"{source}: {key} has no value, give at least one")
    tables = _tables(values.get("cell", [{}]), lists, source)
    count = len(tables) * math.prod(map(len, lists.values()))
    if count > MAX_CELLS:
        raise SettingsError(f"{source}: {count} cells, which is more than {MAX_CELLS}")
    fixed = {key: value for key, value in values.items() if key not in lists and key != "cell"}
    together = list(dict.fromkeys(key for table in tables for key in table if key != "paper"))
    found: dict[Settings, Cell] = {}
    for table in tables:
        own = {key: value for key, value in table.items() if key != "paper"}
        for combination in itertools.product(*lists.values()):
            chosen = {**fixed, **own, **dict(zip(lists, combination, strict=True))}
            settings = Settings.from_mapping(chosen, source)
            everything = settings.as_mapping()
            dotted.trust(everything)
            varied = {key: everything[key] for key in (*together, *lists)}
            if settings in found:
                same = ", ".join(f"{key}={value}" for key, value in varied.items())
                raise SettingsError(f"{source}: the cell {same} occurs twice, name it once")
            found[settings] = Cell(settings, varied, table.get("paper"))
    return list(found.values())


def _as_list(key: str, value: Any) -> Any:
    """Return a value of a table as a flag has it: `option` is a list, though a text will do in a file."""
    if key not in _LISTS or not isinstance(value, str):
        return value
    return value.split(",") if key == "option" else split_specs(value)


def _is_varied(key: str, value: Any) -> bool:
    return isinstance(value, list) and key not in _LISTS and key != "cell"


def _tables(given: Any, lists: Mapping[str, Sequence[Any]], source: str) -> list[dict[str, Any]]:
    """Check the `[[cell]]` tables."""
    if not isinstance(given, list) or not given or not all(isinstance(table, dict) for table in given):
        raise SettingsError(f"{source}: cell must be tables, each under [[cell]]")
    for number, table in enumerate(given, start=1):
        if both := sorted(table.keys() & lists.keys()):
            raise SettingsError(f"{source}: cell {number} sets {both[0]}, of which a list is given as well")
        paper = table.get("paper", 0.0)
        if isinstance(paper, bool) or not isinstance(paper, int | float) or not abs(paper) <= MAX_COUNT:
            raise SettingsError(f"{source}: paper of cell {number} is {shown(paper)}; it must be a number")
    return given
