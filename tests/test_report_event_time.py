"""Reports of event time: tasks by hand, real runs against rounds without training, what is drawn of many."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtide.config import Settings
from fedtide.engine.client_states import State
from fedtide.engine.run import simulate
from fedtide.engine.run_files import records_in
from fedtide.federation import Federation
from fedtide.plan import Plan
from fedtide.report.event_time import Outcome, TimedRun, play, tasks_of
from fedtide.report.event_time_figures import MAX_BARS, MAX_CLIENTS, gantt_figure, lag_figure, lags_by_client
from fedtide.report.make import page_of
from fedtide.report.participation import of_run
from fedtide.report.subject import read_subject

TWO = "client,start,end,steps_per_second\n0,0,100,1\n1,0,100,.25\n"  # a task of 10 steps: 10 s, 40 s


def log_of(path: Path, num_clients: int) -> str:
    """Write a log of clients that come and go, with their own speeds; return the trace that replays it."""
    rng = np.random.default_rng(num_clients)
    lines = ["device,start,end,steps_per_second"]
    for k in range(num_clients):
        start, speed = 10 * float(rng.random()), float(np.exp(rng.normal()))
        while start < 400:
            end = start + 1 + float(rng.exponential(60))
            lines.append(f"pi-{k},{start:.3f},{end:.3f},{speed:.4f}")
            start = end + 1 + float(rng.exponential(20))
    path.write_text("\n".join(lines) + "\n")
    return f"recorded:file={path},repeat=false+lost:p=0.1"


def record(t: int, begin: float, end: float, **more: Any) -> dict[str, Any]:
    return {"round": t, "begin": begin, "virtual_seconds": end, "idle": 0, "failed": {}, **more}


def test_tasks_by_hand() -> None:
    first = {"selected": [0, 1, 2, 3, 4, 5], "active": [0], "replied": [[0, 1, 2.0]]}
    refused = {"failed": {"1": "not finite"}, "replied": [[0, 1, 2.0], [1, 1, 2.0]]}
    second = {"selected": [0, 6], "events": [{"event": "farewell", "client": 6}], "withdrawn": [[4, 1]]}
    silent = {"failed": {"2": "reply lost", "3": "dropped in mid-round"}}
    silent |= {"dropped": [[2, 1, 2.5], [3, 1, 3.0]]}
    late = {"active": [5], "replied": [[5, 1, 4.0]], "late": [{"client": 5, "task": 1, "lag": 1}], "idle": 3}
    records = [{"round": 0}, record(1, 0.0, 2.0, **first | refused)]
    records.append(record(2, 2.0, 4.0, **second | silent | late))
    tasks = tasks_of(records, 6)
    assert tasks is not None
    found = zip(
        *(tasks.clients, tasks.given, tasks.ended, tasks.begin, tasks.end, tasks.outcomes, tasks.lag),
        strict=True,
    )
    shown = [(*map(float, numbers), Outcome(code), lag) for *numbers, code, lag in found]
    assert shown == [
        (0, 1, 1, 0, 2, Outcome.REPLIED, 0),
        (1, 1, 1, 0, 2, Outcome.REFUSED, pytest.approx(np.nan, nan_ok=True)),
        (4, 1, 2, 0, 2, Outcome.WITHDRAWN, pytest.approx(np.nan, nan_ok=True)),
        (5, 1, 2, 0, 4, Outcome.REPLIED, 1),
        (2, 1, 2, 0, 2.5, Outcome.LOST, pytest.approx(np.nan, nan_ok=True)),
        (3, 1, 2, 0, 3, Outcome.DROPPED, pytest.approx(np.nan, nan_ok=True)),
        (0, 2, 2, 2, 4, Outcome.OPEN, pytest.approx(np.nan, nan_ok=True)),
    ]
    assert tasks.idle_share == 0.25
    of = lags_by_client(tasks)
    assert of.clients.tolist() == [0, 1, 2, 3, 4, 5]
    assert of.replies.tolist() == [1, 0, 0, 0, 0, 1]
    assert (of.mean[[0, 5]].tolist(), of.seconds[0], of.silent.tolist()) == ([0, 1], 2, [0, 0, 1, 1, 0, 0])
    assert tasks_of([{"round": 1, "virtual_seconds": 5.0}], 6) is None


RUNS: list[dict[str, Any]] = [
    {"strategy": "fedbuff:buffer=1", "round_ends": 1, "clients_per_round": 6},
    {"strategy": "fedavg", "round_ends": 3, "departures": "0=4,2=9,5=12", "arrivals": "3=6", "until": 90.0},
]


@pytest.mark.parametrize("own", RUNS, ids=lambda own: str(own["strategy"]))
def test_a_run_has_the_rounds_that_are_shown_without_training(tmp_path: Path, own: dict[str, Any]) -> None:
    settings = Settings(
        **{
            "trace": log_of(tmp_path / "log.csv", 12),
            "num_clients": 12,
            "num_rounds": 60,
            "model": "logistic",
        },
        **{"engine": "inline", "client_gpus": 0.0, "run_dir": str(tmp_path / "runs"), **own},
    )
    _, folder, _ = simulate(Plan.of(settings))
    records = [*records_in(folder.path)][1:]
    trace = Federation.of(settings).trace
    played = json.loads(json.dumps(list(play(settings, trace))))
    keys = "round begin virtual_seconds selected active steps failed idle replied dropped withdrawn"
    for ran, shown in zip(records, played, strict=True):
        assert [ran[key] for key in keys.split()] == [shown[key] for key in keys.split()]
        assert ran.get("late", []) == shown["late"]
        assert ran.get("at_work", []) == shown["at_work"]
    assert any(ran["withdrawn"] for ran in records) == ("departures" in own)
    assert any("late" in ran for ran in records)
    found = of_run(records, settings, trace)
    assert found is not None
    assert found.hours is None
    for column, ran in enumerate(records):
        states = found.grid.states[:, column]
        assert (states == State.OFFLINE).sum() == ran["offline"]
        ended = {client for client, *_ in ran["replied"] + ran["dropped"] + ran["withdrawn"]}
        at_work = {*ran.get("at_work", []), *ran["selected"]} - ended
        assert {*np.flatnonzero(states == State.LATE).tolist()} == at_work
    page = page_of(read_subject([folder.path]), [folder.path], compute=False)
    names = [figure.name for figure in page.figures]
    assert names[:4] == ["curves", "gantt", "lag", "participation"]
    assert next(iter(page.figures[0].toggles[0].options)) == "seconds"
    (gantt,) = [figure for figure in page.figures if figure.name == "gantt"]
    (view,) = gantt.views.values()
    tasks = tasks_of(records, settings.clients_per_round or 12)
    assert tasks is not None
    assert sum(len(bars["x"]) for bars in view["data"]) == len(tasks.clients)
    assert {*view["layout"]["yaxis"]["ticktext"]} == {f"pi-{k}" for k in tasks.clients.tolist()}


def test_of_many_tasks_a_part_is_drawn_and_said(tmp_path: Path) -> None:
    trace = log_of(tmp_path / "log.csv", 80).replace("false", "true")
    settings = Settings(trace=trace, num_clients=80, clients_per_round=40, round_ends=10, num_rounds=400)
    made = Federation.of(settings).trace
    tasks = tasks_of(list(play(settings, made)), 40)
    assert tasks is not None
    figure = gantt_figure([TimedRun("", tasks, made.devices)])
    assert figure is not None
    assert [*figure.views] == ["beginning", "middle", "end"]
    notes = " ".join(figure.notes)
    assert f"{MAX_CLIENTS} of the 80 clients" in notes
    assert f"Of {len(tasks.clients):,} tasks, each part shows about {MAX_BARS}." in notes
    for view in figure.views.values():
        layout = view["layout"]
        assert len(layout["yaxis"]["tickvals"]) == MAX_CLIENTS
        bars = [(b, b + x) for of in view["data"] for b, x in zip(of["base"], of["x"], strict=True)]
        assert MAX_BARS <= len(bars) <= MAX_BARS + 2 * MAX_CLIENTS
        first, last = layout["xaxis"]["range"]
        assert all(begin <= last + 1e-6 and end >= first - 1e-6 for begin, end in bars)
    lag = lag_figure([TimedRun(name, tasks) for name in "ab"], ["a", "b"])
    assert lag is not None
    for key in ("lag", "idle"):
        assert sum(lag.views[key]["data"][0]["y"]) == pytest.approx(100, abs=0.1)
    assert len(lag.views["clients"]["data"]) == 2
    assert len(lag.table.rows if lag.table else []) == 2 * 80


def test_the_command_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Client 0 replies at 10, 20, 30 and 40 s, client 1 at 40 s, too: with a lag of 3."""
    (tmp_path / "two.csv").write_text(TWO)
    trace = f"recorded:file={tmp_path / 'two.csv'},repeat=false"
    event_time = ["--round-ends=1", "--num-clients=2", "--until=40", f"--run-dir={tmp_path / 'pages'}"]
    assert sim.main([f"--show-trace={trace}", *event_time, "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert (report["num_rounds"], report["replies"], report["virtual_seconds"]) == (4, 5, 40)
    assert report["lag"] == {"mean": 0.6, "median": 0, "ninetieth": pytest.approx(1.8), "largest": 3}
    assert (report["task_seconds"]["mean"], report["idle"], report["never_asked"]) == (16, 0, 0)
    assert report["online"] == [1, 1, 1, 1]
    assert "4, 360 per virtual hour" in printed.err
    text = Path(report["page"]).read_text()
    assert "event time, B = 1, C = 2 · up to 100 rounds or 40 s" in text
    assert sim.main([f"--show-trace={trace}", *event_time, "--clients-per-round=1"]) == 0
    assert "idle          0.0% of the 1 place " in capsys.readouterr().out
    assert len([*(tmp_path / "pages").iterdir()]) == 2
