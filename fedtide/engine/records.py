"""What the records and the summary of a run have to be, so that readers can rely on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedtide.base.files import parse_json
from fedtide.config.settings import MAX_COUNT, shown
from fedtide.engine.observers import Record


def parse_record(line: bytes) -> Record:
    """Return the record of a round; ValueError names its fault."""
    record = parse_json(line.decode("utf-8", errors="replace"))
    if not isinstance(record, dict):
        raise ValueError("not a record of a round")
    if not isinstance(number := record.get("round"), int) or not 0 <= number <= MAX_COUNT:
        raise ValueError("not a record of a round: it has no round number")
    for keys, kind, fits in _KINDS:
        for key in keys:
            if (value := record.get(key)) is not None and not fits(value):
                raise ValueError(f"{key} of round {number} is {shown(value)[:60]}, not {kind}")
    return record


def group_values(record: Record, separator: str = ".") -> dict[str, float | None]:
    """Return the numbers of groups of clients in a record, by names such as `groups.group.north.accuracy`."""
    return {
        separator.join(("groups", kind, name, key)): value
        for kind, of_kind in (record.get("groups") or {}).items()
        for name, group in of_kind.items()
        for key, value in group.items()
    }


def is_number(value: Any) -> bool:
    """Whether a value is a number, which True is not."""
    return type(value) in (int, float)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def _is_client(value: Any) -> bool:
    return _is_count(value) or isinstance(value, str)


def _is_steps(value: Any) -> bool:
    return _is_count(value) or value is None


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def is_summary(value: Any) -> bool:
    """Whether a value has the final numbers and the metrics of a run, as far as it has any."""
    if not isinstance(value, dict):
        return False
    found = metrics_in(value)
    numbers = _has_numbers(value.get("final", {})) and is_number(value.get("cycle", 0))
    return numbers and isinstance(found, list) and all(map(_is_metric, found))


def metrics_in(summary: dict[str, Any]) -> Any:
    """Return what a summary says of its metrics: a list, of earlier versions with one metric or none."""
    return summary.get("metrics", [one] if (one := summary.get("metric")) is not None else [])


def _is_metric(value: Any) -> bool:
    kinds = {"name": str, "higher_is_better": bool, "is_share": bool}
    return isinstance(value, dict) and {key: type(item) for key, item in value.items()} == kinds


def _has_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(item is None or is_number(item) for item in value.values())


def _are_groups(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(of_kind, dict) and all(map(_has_numbers, of_kind.values())) for of_kind in value.values()
    )


def _are_numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(is_number, value))


_KINDS: list[tuple[tuple[str, ...], str, Callable[[Any], bool]]] = [
    (("active", "selected"), "a list of clients", _list_of(_is_client)),
    (("steps",), "a list of numbers of steps", _list_of(_is_steps)),
    (("bytes_up", "bytes_down", "loss", "learning_rate", "virtual_seconds"), "a number", is_number),
    (("device_seconds", "begin", "idle"), "a number", is_number),
    (
        ("replied", "dropped", "stopped"),
        "a list of tasks with times",
        _list_of(lambda task: _are_numbers(task, 3)),
    ),
    (("withdrawn",), "a list of tasks", _list_of(lambda task: _are_numbers(task, 2))),
    (("failed",), "an object", lambda value: isinstance(value, dict)),
    (("seconds",), "an object of numbers", _has_numbers),
    (("groups",), "an object of groups", _are_groups),
    (("events", "late", "discarded"), "a list of objects", _list_of(lambda event: isinstance(event, dict))),
]
