"""What a run prints while it goes on."""

import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

import sim
from fedtide import runs
from fedtide.base.memory import held_memory
from fedtide.base.wording import duration
from fedtide.config import Settings
from fedtide.engine.observers import observing
from fedtide.loggers.progress import ProgressReport, final_table


def printed(records: list[dict[str, Any]], **settings: Any) -> list[str]:
    """The lines in a pipe."""
    file = io.StringIO()
    progress = ProgressReport(Console(file=file, width=60))
    with observing([progress], Settings(**{"num_rounds": len(records)} | settings)):
        for record in records:
            progress.round({"failed": {}, "offline": 0, **record})
    return file.getvalue().splitlines()


def test_an_old_accuracy_is_not_shown_as_a_new_one() -> None:
    rounds = ({"active": []}, {"active": [0, 1], "loss": 2.0, "accuracy": 0.5}, {"active": [0]})
    assert printed([{"round": t, **record} for t, record in enumerate(rounds, start=1)]) == [
        "round 1/3    0 clients",
        "round 2/3  accuracy 0.5000  loss 2.0000  2 clients",
        "round 3/3  (round 2: accuracy 0.5000  loss 2.0000)  1 client",
    ]


def test_a_reason_is_shown_when_clients_first_fail_for_it() -> None:
    failed: list[dict[str, str]] = [{"1": "no data"}, {"1": "no data", "0": "no [time]"}]
    assert printed([{"round": t, "active": [], "failed": own} for t, own in enumerate(failed, start=1)]) == [
        "round 1: failed: no data",
        "round 1/2    0 clients, 1 failed (1)",
        "round 2: failed: no [time]",
        "round 2/2    0 clients, 2 failed (1, 0)",
    ]


def test_event_time_is_shown_and_divides_the_run() -> None:
    """Of rounds of 3 minutes, about one in forty of the run's 8 hours is shown: every fourth, after 12."""
    records = [
        {"round": t, "active": [0], "begin": 180.0 * (t - 1), "virtual_seconds": 180.0 * t}
        for t in range(1, 46)
    ]
    lines = printed(records, num_rounds=10**6, until=8 * 3600.0)
    assert lines[:2] == [
        "round 4/1000000    1 client, 12 min",
        "round 8/1000000    1 client, 24 min",
    ]
    assert lines[-1].endswith("1 client, 2 h 12 min")
    assert len(lines) == 11


def test_durations() -> None:
    shown = {0.0123: "0.0123 s", 59.4: "59.4 s", 59.6: "1 min", 150.0: "2 min 30 s", 7260.0: "2 h 1 min"}
    assert {seconds: duration(seconds) for seconds in shown} == shown
    assert [duration(hours * 3600) for hours in (24, 49.99, 1e6)] == ["1 d", "2 d 1 h", "41666 d 16 h"]


@pytest.mark.parametrize("width", [40, 60, 120])
def test_on_a_narrow_terminal_round_bar_and_time_left_survive(width: int) -> None:
    """What is cut is the description."""
    file = io.StringIO()
    progress = ProgressReport(Console(file=file, width=width, force_terminal=True))
    with observing([progress], Settings(num_rounds=1000)):
        for number in (998, 999):
            record = {"round": number, "active": [0], "failed": {}, "offline": 7}
            progress.round(record | ({"loss": 2.0, "accuracy": 0.5} if number == 998 else {}))
    line = Text.from_ansi(file.getvalue()).plain.splitlines()[-1]
    assert len(line) <= width
    assert re.match(r"round 999/1000 ━{9}.+ (-:--|\d:\d\d):(--|\d\d) \(roun", line), line
    whole = r"7 offline  \d\.\d GB\s*$" if held_memory() else r"7 offline\s*$"
    assert re.search(whole if width == 120 else "…$", line), line


def test_the_path_of_the_run_folder_can_be_copied_from_a_narrow_terminal() -> None:
    file = io.StringIO()
    path = "/somewhere/" + "long-" * 20
    final = {"accuracy": 0.5, "loss": 1.0, "train_loss": 1.0, "tested_examples": 1, "tested_clients": 1}
    summary = {"strategy": "fedavg", "task": "digits", "model": "mlp", "rounds": 3, "client_fits": 2}
    summary |= {"metrics": [{"name": "accuracy"}]}
    table = final_table(summary | {"final": final, "seconds": 1.0, "run_dir": path}, Counter())
    Console(file=file, width=60).print(table)
    cells = [line.split("│")[2].strip() for line in file.getvalue().splitlines() if "│" in line]
    assert path in "".join(cells)
    assert "1 example of 1 client" in cells


def test_a_loss_that_has_exploded_is_said_once(tmp_path: Path, capsys: Any) -> None:
    """On the console, in the summary, and again in neither when the run is resumed."""
    arguments = ["--num-clients=4", "--model=logistic", "--engine=inline", "--trace=always", "--json"]
    assert sim.main([*arguments, "--num-rounds=3", "--learning-rate=1000", f"--run-dir={tmp_path}"]) == 0
    shown = capsys.readouterr()
    hint = json.loads(shown.out)["hint"]
    assert re.fullmatch(
        r"learning-rate 1000 may be too large: loss \S+ in round 1, at first 2\.\S+; "
        r"--tune learning-rate=10\.\.1000 searches for a better one",
        hint,
    )
    assert shown.err.splitlines().count(hint) == 1
    folder = json.loads(shown.out)["run_dir"]
    assert sim.main(["--resume", folder, "--num-rounds=4", "--json"]) == 0
    shown = capsys.readouterr()
    assert (json.loads(shown.out)["hint"], hint in shown.err) == (hint, False)
    assert sim.main([*arguments, "--num-rounds=3", f"--run-dir={tmp_path}"]) == 0
    assert "too large" not in "".join(capsys.readouterr())


def test_what_is_no_terminal_is_not_wrapped(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless COLUMNS says how wide it is."""
    monkeypatch.delenv("COLUMNS", raising=False)
    place = tmp_path / "a-long-name-of-a-folder" / "and-another-one-that-is-even-longer-than-the-first"
    arguments = ["--num-clients=4", "--model=logistic", "--trace=always", "--num-rounds=1", "--no-report"]
    arguments += ["--num-workers=1", f"--run-dir={place}"]
    assert sim.main(arguments) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "run folder" in line)
    assert Path(row.split()[-2]).parent == place
    assert runs.main([str(place)]) == 0
    shown = capsys.readouterr().out
    assert any(line.rstrip().endswith(next(place.iterdir()).name) for line in shown.splitlines())
    assert sim.main([*arguments, "--strategy", "fedavg", "fedau:estimator=none", "--seed", "0", "1"]) == 0
    assert max(len(line.rstrip()) for line in capsys.readouterr().out.splitlines()) > 80
    monkeypatch.setenv("COLUMNS", "60")
    assert runs.main([str(place)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60
