"""What a finished run did for each client: its share of the updates, and the score on its examples."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flexfl.ground.files import parse_json, read_text, replacing
from flexfl.report.records import MOST_LINE

FILE = "clients.json"
FORMAT = 2
SAMPLE = 1000  # clients, if there are more


@dataclass(frozen=True)
class ClientNumbers:
    """Numbers of some or all clients of a finished run, all in the order of `clients`.

    Attributes
    ----------
    clients
        Which ones.
    examples
        n_k.
    data_shares
        n_k / n, over all clients of the federation.
    rates
        Share of the run's rounds in which an update of the client counted.
    update_shares
        Share of everything that was applied to the weights; empty if it was not computed.
    metric, is_share
        What the task reports, in words, and whether that is from 0 to 1.
    scores
        That of the final global weights, None for a client without such examples; may be empty as well.
    scores_on
        Which examples these are of.
    notes
        Sentences on what is missing or a sample.
    """

    clients: list[int]
    examples: list[int]
    data_shares: list[float]
    rates: list[float]
    update_shares: list[float]
    metric: str
    is_share: bool
    scores: list[float | None]
    scores_on: str
    notes: list[str]


def read_numbers(path: Path) -> ClientNumbers | None:
    """Return what a run folder keeps; None if it has nothing or something else."""
    try:
        content = parse_json(read_text(path / FILE, MOST_LINE))
        return ClientNumbers(**content) if content.pop("format") == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep_numbers(path: Path, numbers: ClientNumbers) -> None:
    """Write the numbers into a run folder; one that cannot be written to does without."""
    try:
        with replacing(path / FILE) as temporary:
            temporary.write_text(json.dumps({"format": FORMAT} | asdict(numbers)) + "\n", encoding="utf-8")
    except OSError:
        return
