"""What a run prints while it goes on."""

import io
from typing import Any

from rich.console import Console

from flexfl.config import Settings
from flexfl.engine.observers import observing
from flexfl.engine.progress import ProgressReport


def printed(records: list[dict[str, Any]]) -> list[str]:
    """The lines in a pipe."""
    file = io.StringIO()
    progress = ProgressReport(Console(file=file, width=60))
    with observing([progress], Settings(num_rounds=len(records))):
        for record in records:
            progress.round({"failed": {}, "offline": 0, **record})
    return file.getvalue().splitlines()


def test_an_old_accuracy_is_not_shown_as_a_new_one() -> None:
    lines = printed(
        [
            {"round": 1, "active": [0, 1], "loss": 2.0, "accuracy": 0.5},
            {"round": 2, "active": [0]},
            {"round": 3, "active": [], "loss": 1.0, "accuracy": 0.75},
        ]
    )
    assert lines == [
        "round 1/3  accuracy 0.5000  loss 2.0000  2 clients",
        "round 2/3  accuracy 0.5000  loss 2.0000 (round 1)  1 client",
        "round 3/3  accuracy 0.7500  loss 1.0000  0 clients",
    ]


def test_rounds_before_the_first_evaluation() -> None:
    assert printed([{"round": 1, "active": [0]}]) == ["round 1/1    1 client"]
