"""Numbers of the clients of a finished run, as the run folder keeps them in `clients.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedtide.base.files import parse_json, read_text, replacing
from fedtide.engine.run_files import MAX_LINE

FILE = "clients.json"
FORMAT = 2
SAMPLE = 1000  # clients, if there are more


@dataclass(frozen=True)
class ClientNumbers:
    """Numbers of some or all clients of a finished run, all in the order of `clients`."""

    clients: list[int]
    examples: list[int]  # n_k
    data_shares: list[float]  # n_k / n, over all clients of the federation
    rates: list[float]  # share of the run's rounds in which an update of the client counted
    update_shares: list[float]  # share of everything that was applied to the weights; empty if not computed
    metric: str  # title of the task's metric
    is_share: bool  # whether it is from 0 to 1
    scores: list[float | None]  # of the final global weights; None without such examples; may be empty
    scores_on: str  # which examples, in words
    notes: list[str]  # sentences for the reader, for example about a sample
    spread: dict[str, float | None] = field(
        default_factory=dict
    )  # of the scores, see `fedtide.engine.groups`
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)  # of clients, on held-out examples only


def read_numbers(path: Path) -> ClientNumbers | None:
    """Return the numbers kept in a run folder; None if it has none that can be read."""
    try:
        content = parse_json(read_text(path / FILE, MAX_LINE))
        return ClientNumbers(**content) if content.pop("format") == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep_numbers(path: Path, numbers: ClientNumbers) -> None:
    """Write the numbers into a run folder, unless it cannot be written to."""
    try:
        with replacing(path / FILE) as temporary:
            temporary.write_text(json.dumps({"format": FORMAT} | asdict(numbers)) + "\n", encoding="utf-8")
    except OSError:
        return
