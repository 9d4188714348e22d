"""The same runs under Flower's Simulation Runtime and inline.

One of them trains with `compiled`: each installed app would compile its steps anew.
"""

import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower import assert_same_run, copy_app, flwr_runs, outcome, processes_of, sim
from own_parts import Folder, of_the_page
from sklearn.datasets import load_diabetes
from test_metrics import KEYS, SPECS, by_hand

import fedtide

HEADER = ",".join([*(f"x{j}" for j in range(10)), "y"])

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]


def test_flwr_run_gives_the_same_result_as_sim(shared_flower: dict[str, str], tmp_path: Path) -> None:
    """Three runs at the same time on one SuperLink, each held against the inline one."""
    x, y = load_diabetes(return_X_y=True)
    file = tmp_path / "diabetes.csv"
    np.savetxt(file, np.column_stack([x[:90], y[:90]]), "%.6g", delimiter=",", header=HEADER, comments="")
    # Traces that read files, with failures, incomplete work, late replies, an arrival and a departure, and
    # BatchNorm's running means beside the vectors of clients that send no weights, and dropout.
    traces = "+".join(part.format(**trace_files(tmp_path)) for part in TRACES)
    changing = {"strategy": "mimic:memory=client", "model": "vgg11:norm=batch,width=1,hidden=4,dropout=0.5"}
    changing |= {"trace": traces, "arrivals": "1=2", "departures": "0=3", "seed": 4, "clients-per-round": 3}
    changing |= {"num-clients": 5, "num-rounds": 5, "local-steps": 6}
    changing |= {"log": "tensorboard" if find_spec("tensorboard") else ""}
    # Memory in Flower's Context, despite lost replies, for training and for evaluating personal models.
    memory = {"strategy": "apfl:alpha-mode=step", "task": f"csv:file={file},target=y,kind=regression"}
    memory |= {"model": "logistic", "learning-rate": 0.02, "trace": "bernoulli:p=0.7+lost:p=0.3"}
    memory |= {"evaluate-on": "objective", "num-clients": 3, "num-rounds": 3, "local-steps": 4}
    memory |= {"seed": 5}  # with it, replies are lost, one of them of a client that participates again
    # Event time: tasks wait until they have to reply, some never do, and a client leaves its task behind.
    events = {"strategy": "fedasync", "model": "logistic", "cohort": "stacked", "round-ends": 2, "seed": 6}
    events |= {
        "trace": f"recorded:file={tmp_path / 'log.csv'}+lost:p=0.1",
        "departures": "0=5",
    }
    events |= {"num-clients": 5, "clients-per-round": 4, "num-rounds": 20, "local-steps": 6}
    events |= {"stop-at": "accuracy=0.39"}  # which ends it before its last round
    events |= {"evaluate-clients": 4}
    events |= {"metrics": ",".join(specs for specs in SPECS if "." not in specs)}
    runs = {"changing": {**changing, "cpus": 1}, "memory": memory, "events": events}
    started = [run | {"run-dir": str(tmp_path / f"{key}-flower")} for key, run in runs.items()]
    outputs = flwr_runs(shared_flower, started)
    records = {}
    for (key, run), output in zip(runs.items(), outputs, strict=True):
        run.pop("cpus", None)
        sim({**run, "run-dir": tmp_path / key})
        records[key] = assert_same_run(tmp_path / f"{key}-flower", tmp_path / key, output)

    assert len([*(tmp_path / "changing-flower").glob("*/events.out.tfevents.*")]) == bool(changing["log"])
    here, (there, _) = records["changing"], outcome(tmp_path / "changing-flower")
    assert [e["event"] for r in here for e in r["events"] if e["event"] != "farewell"] == [
        "arrival",
        "departure",
    ]
    assert {0, 1} <= {k for r in here for k in r["active"]}
    assert any(step < 6 for r in here for step in r["steps"])
    assert any(reason == "no reply by the end of the round" for r in here for reason in r["failed"].values())
    assert [r["virtual_seconds"] for r in there] == [r["virtual_seconds"] for r in here]

    here, (there, _) = records["memory"], outcome(tmp_path / "memory-flower")
    assert any("reply lost" in record["failed"].values() for record in here)
    for record, expected in zip(there, here, strict=True):
        assert record.get("client_tested_clients") == expected.get("client_tested_clients")
        for key in ("client_loss", "client_mean_absolute_error"):
            assert record.get(key) == pytest.approx(expected.get(key), rel=1e-4)
    assert "client_mean_absolute_error" in here[-1]

    here, (there, _) = records["events"], outcome(tmp_path / "events-flower")
    for key in (
        "begin",
        "virtual_seconds",
        "device_seconds",
        "replied",
        "dropped",
        "withdrawn",
        "late",
        "groups",
    ):
        assert [r.get(key) for r in there] == [r.get(key) for r in here], key
    assert all(any(r.get(key) for r in here) for key in ("late", "dropped", "incomplete"))
    ends = [summary_of(tmp_path / f"events{kind}") for kind in ("", "-flower")]
    assert len({end["weights_sha256"] for end in ends}) == 1
    assert [end["stopped"].partition(" ")[0] for end in ends] == ["stop-at:"] * 2
    done = fedtide.load(next((tmp_path / "events-flower").glob("*/")))
    final = {key: done.summary["final"].get(key) for key in KEYS}
    assert final == pytest.approx(by_hand(done) | {"missed_4": None}, rel=1e-4)


TRACES = [
    "recorded:round-seconds=300,file={recorded}",
    "table:file={table}",
    "flash:round-seconds=300,speed=0.04,spread=0.5,file={flash}",
    "run:file={run}",
    "late:p=0.5,rounds=1",
]


def summary_of(run_dir: Path) -> dict[str, Any]:
    """The summary of the only run in a folder."""
    (path,) = run_dir.glob("*/summary.json")
    return json.loads(path.read_text())


def trace_files(folder: Path) -> dict[str, Path]:
    """Write small files in the formats that traces read, in which clients come and go."""
    sessions = [(0, 0, 900), (1, 0, 250), (1, 290, 900), (2, 0, 900), (3, 100, 900), (4, 0, 420)]
    log = "".join(f"{k},{a},{b},{0.02 + 0.01 * k:g}\n" for k, a, b in sessions)
    (folder / "log.csv").write_text("client,start,end,steps_per_second\n" + log)
    shares = [(t, k, 1 - 0.1 * k) for t in (1, 2, 3) for k in range(5) if t + k != 4]
    table = "".join(f"{t},{k},{share:g}\n" for t, k, share in shares)
    (folder / "rounds.csv").write_text("round,client,completion\n" + table)
    ready = ["2020-01-31 08:00:00\twifi", "2020-01-31 08:00:00\tbattery_charged_on"]
    phones = {}
    for k in range(5):
        events = [*ready, f"2020-01-31 08:0{k}:00\tscreen_lock", f"2020-01-31 08:3{k}:00\t4G"]
        phones[f"phone {k}"] = {"messages": "\n".join(events)}
    (folder / "flash.json").write_text(json.dumps(phones))
    record = {"members": [*range(5)], "available": [0, 1, 3, 4], "selected": [0, 1, 3], "active": [0, 1]}
    record |= {"steps": [5, 3], "planned": [5, 5], "failed": {"3": "its node has gone"}}
    rounds = [json.dumps(record | {"round": t}) + "\n" for t in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(rounds))
    return {
        "recorded": folder / "log.csv",
        "table": folder / "rounds.csv",
        "flash": folder / "flash.json",
        "run": folder / "metrics.jsonl",
    }


def test_a_killed_serverapp_goes_on_from_its_run_folder(
    shared_flower: dict[str, str], tmp_path: Path, own: Folder
) -> None:
    """With a method, a rule and a trace of one's own, from the folder of an app.

    Its process is killed in the middle of a round; `resume` goes on at once, with the same bits.
    """
    app = copy_app(tmp_path / "app")
    for name in ("my_methods.py", "my_traces.py"):
        own.write(name, of_the_page(name))
        shutil.copy(own.path / name, app)
    settings = {"strategy": "my_methods.Momentum:clip=0.1", "trace": "my_traces.Office:start=0,hours=12"}
    settings |= {"model": "logistic", "cohort": "stacked", "num-clients": 3, "num-rounds": 12}
    settings |= {"local-steps": 4, "checkpoint-every": 2}
    with ThreadPoolExecutor(1) as pool:
        killed = {**settings, "run-dir": str(tmp_path / "flwr")}
        output = pool.submit(flwr_runs, shared_flower, [killed], app=app)
        while not any(path.read_bytes().count(b"\n") > 5 for path in tmp_path.glob("flwr/*/metrics.jsonl")):
            assert not output.done(), output.result()
            time.sleep(0.05)
        # Flower takes a minute to notice that the run has died; nobody waits for that.
        for program in ("flwr-simulation", "flwr\0run\0"):
            for pid in processes_of(Path(shared_flower["FLWR_HOME"])):
                with suppress(OSError):  # it has ended since
                    if program in Path(f"/proc/{pid}/cmdline").read_text():
                        os.kill(pid, signal.SIGKILL)
        output.result()
    (folder,) = (tmp_path / "flwr").iterdir()
    assert not (folder / "summary.json").exists()
    (resumed,) = flwr_runs(shared_flower, [{**killed, "resume": str(folder)}], app=app)
    sim({**settings, "run-dir": tmp_path / "inline"})
    records = assert_same_run(tmp_path / "flwr", tmp_path / "inline", resumed)
    assert any(len(record["active"]) < 3 for record in records)
