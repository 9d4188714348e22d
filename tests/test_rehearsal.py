"""`--rehearse`: which method suits the devices of a log, and the command that deploys it."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

import sim
from fedtide.cli.fleet import STATE, Deployment, deployment, describe_log, rehearsal_values
from fedtide.cli.rehearsal import forecast
from fedtide.config import Settings
from fedtide.engine.client_numbers import ClientNumbers, keep_numbers

SMALL = ["--model=logistic", "--local-steps=4", "--num-rounds=6", "--num-workers=1", "--client-gpus=0"]
# Five devices, one of which is there in the first of six rounds only.
LOG = """device,start,end,steps_per_second
pi-1,2026-03-01T08:00,2026-03-01T09:00,0.5
pi-2,2026-03-01T08:00,2026-03-01T09:00,1
pi-3,2026-03-01T08:00,2026-03-01T09:00,
pi-4,2026-03-01T08:10,2026-03-01T08:50,2
"shelf, left",2026-03-01T08:00,2026-03-01T08:05,0.01
"""


def run_config(command: str) -> Settings:
    """Return what Flower makes of the run configuration of a command line."""
    *start, config = shlex.split(command)
    assert start == ["flwr", "run", ".", "lab", "--stream", "--run-config"]
    return Settings.from_mapping(parse_config_args([config]), "run-config")


def test_methods_are_ranked_on_a_log(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"--run-dir={tmp_path / 'runs'}", "--json", "--partition=classes:m=2"]
    arguments = [*SMALL, *options, f"--rehearse={write(LOG)}", "--strategy", "fedavg", "mifa"]
    assert sim.main([*arguments, "--seed", "0", "1"]) == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    told = json.loads(line)
    assert told["participation"]["devices"] == ["pi-1", "pi-2", "pi-3", "pi-4", "shelf, left"]
    assert len(told["comparison"]["rows"]) == 2

    ranking = {entry["strategy"]: entry for entry in told["ranking"]}
    means = [entry["accuracy"]["mean"] for entry in told["ranking"]]
    assert means == sorted(means, reverse=True)
    assert [entry["to_best"] is None for entry in told["ranking"]] == [True, False]
    assert told["ranking"][1]["to_best"]["mean"] == pytest.approx(means[1] - means[0])
    # The device that is there once counts little with FedAvg; MIFA remembers its update.
    assert ranking["fedavg"]["forecast"]["least"] == 4
    assert ranking["fedavg"]["forecast"]["ratio"] < 0.3
    assert ranking["mifa"]["forecast"]["bias"] < ranking["fedavg"]["forecast"]["bias"] / 2

    deployed = run_config(told["command"])
    best = told["ranking"][0]["strategy"]
    assert (deployed.strategy, deployed.num_clients) == (best, 5)
    assert (deployed.min_nodes, deployed.round_deadline) == (4, 600.0)  # in four of six rounds
    assert "trace" not in told["deploy"]  # on devices, one that is named would be replayed
    assert (deployed.partition, deployed.num_rounds, deployed.seed) == ("classes:m=2", 6, 0)
    assert told["command"] in err.splitlines()[-1]
    assert "the rounds cover 1.0 of 1.0 hours" in err
    assert "ranking on digits" in err
    (kept,) = (tmp_path / "runs").glob("compare-*/rehearsal.json")
    assert json.loads(kept.read_text()) == told
    assert re.search(
        r"^local steps +0.75 per second \(median of 4 devices\), from 0.01 to 2$", err, re.MULTILINE
    )
    assert "shelf" in err.partition("ranking")[2]


def test_what_follows_from_the_log(write: Any) -> None:
    """The clients, and speeds for sessions without one: those of the devices that have some."""
    path = write(LOG)
    values = rehearsal_values(f"{path},round-seconds=60+lost:p=0.1", {"num-rounds": 3})
    assert values["trace"].startswith(f"recorded:file={path},round-seconds=60,speed=0.75,spread=")
    assert values["trace"].endswith("+lost:p=0.1")
    assert (values["num-clients"], values["seed"], len(values["strategy"])) == (5, [0, 1, 2], 4)
    values = rehearsal_values(write("client,start,end\n6,0,5\n2,0,5\n"), {"strategy": "mifa", "seed": [3, 4]})
    assert (values["num-clients"], values["seed"], values["strategy"]) == (7, [3, 4], "mifa")
    assert "speed" not in values["trace"]


def test_all_devices_of_a_folder_of_logs_count(tmp_path: Path) -> None:
    """Also one that was never there for longer than a moment, and none of a file that macOS leaves."""
    (tmp_path / "a.csv").write_text("device,start,end\na,0,60\nb,0,60\nc,60,60\n")
    (tmp_path / "._a.csv").write_bytes(b"\x00\x05\x16\x07")
    values = rehearsal_values(str(tmp_path), {})
    assert values["num-clients"] == 3
    assert describe_log(Settings(num_clients=3, trace=values["trace"]), 60)


def test_rounds_that_cover_a_part_of_the_log_are_said_to(write: Any) -> None:
    settings = Settings(trace=f"recorded:file={write(LOG)},round-seconds=60", num_clients=5, num_rounds=6)
    (_, said), _ = describe_log(settings, 360)
    assert "0.1 of 1.0 hours, 10%" in said
    assert "--num-rounds 60 or FILE,round-seconds=600" in said


def test_a_forecast_is_half_the_sum_of_the_differences(tmp_path: Path) -> None:
    data, notes = [0.25, 0.25, 0.5], ["Shares of the updates: a part."]
    for name, shares in (("a", [0.5, 0.2, 0.3]), ("b", [0.3, 0.2, 0.5])):
        (tmp_path / name).mkdir()
        numbers = ([3, 5, 8], [1, 1, 2], data, [1, 1, 1], shares, "accuracy", True, [], "", notes)
        keep_numbers(tmp_path / name, ClientNumbers(*numbers))
    found = forecast([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert found is not None
    assert (found.bias, found.least, found.ratio) == pytest.approx((0.15, 5, 0.8))
    assert found.notes == notes
    assert forecast([tmp_path / "c"]) is None


def test_the_bias_of_a_sample_is_that_of_all(tmp_path: Path) -> None:
    """Of eight clients, of which every other one has all updates, four are in the sample."""
    data, note = [1 / 8] * 4, "A sample of 4 of the 8 clients is shown."
    shares = [0.25, 0.0, 0.25, 0.0]
    numbers = ([0, 1, 6, 7], [1] * 4, data, [1] * 4, shares, "accuracy", True, [], "", [note])
    keep_numbers(tmp_path, ClientNumbers(*numbers))
    found = forecast([tmp_path])
    assert found is not None
    assert found.bias == pytest.approx(0.5)
    assert found.notes == [note]


def test_nothing_is_deployed_where_no_reply_ever_counted(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first device is too slow for a single step, the other is never there when a round starts."""
    log = write("client,start,end,steps_per_second\n0,0,600,0.001\n1,10,20,1\n")
    own = [f"--run-dir={tmp_path / 'runs'}", f"--rehearse={log}", "--strategy=mifa", "--seed=0", "--json"]
    assert sim.main([*SMALL, *own]) == 3
    out, err = capsys.readouterr()
    assert (json.loads(out)["deploy"], json.loads(out)["command"]) == (None, None)
    assert "no reply ever counted: there is nothing to deploy" in err
    assert "flwr run" not in err


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy": "my_methods.Momentum:beta=0.9", "option": ("departure=include", "reboot=off")},
        {"task": "csv:file=it's not here.csv,target=price", "learning_rate": 1e-5, "report": "none"},
        {"model": 'my_models.Net:name="a\\b"', "num_workers": 3, "engine": "inline", "seed": 7},
        {"task": "mnist", "data_dir": "images", "arrivals": "3=4", "train_loss": True},
    ],
)
def test_flower_reads_the_settings_that_were_meant(changes: dict[str, Any]) -> None:
    meant = {**changes, "num_workers": 0, "engine": "auto", "arrivals": "", "min_nodes": 2}
    meant["run_dir"] = f"{STATE}/runs"
    meant |= {"data_dir": f"{STATE}/data"} if "data_dir" in changes else {}
    found = deployment(Settings(**{"trace": "phones", **changes}), min_nodes=2)
    assert run_config(found.command) == Settings(**meant)
    assert "engine" not in found.values
    assert not found.files


def test_paths_are_those_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files in this folder and elsewhere; what only looks like a path stays."""
    monkeypatch.chdir(tmp_path)
    for path in ("own.csv", "more/own.csv", "target", "visits/data.arrow"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).touch()
    changes = {"task": "csv:file=own.csv,target=target", "partition": "indices:file=more/own.csv"}
    changes |= {"initial_model": f"own.Mixture:first={tmp_path}/visits", "run_dir": str(tmp_path / "runs")}
    found = deployment(Settings(**changes, option=("table-folder=more/none", "weights=more/own.csv")))
    other = f"{STATE}/{'-'.join((tmp_path / 'own.csv').parts[1:])}"
    assert found == Deployment(
        {
            "option": f"table-folder=more/none,weights={STATE}/own.csv",
            "task": f"csv:file={other},target=target",
            "partition": f"indices:file={STATE}/own.csv",
            "initial-model": f"own.Mixture:first={STATE}/visits",
            "run-dir": f"{STATE}/runs",
        },
        {
            f"{STATE}/own.csv": str(tmp_path / "more/own.csv"),
            other: str(tmp_path / "own.csv"),
            f"{STATE}/visits": str(tmp_path / "visits"),
        },
    )
    assert (
        deployment(Settings(task="hf:visits,label=target")).values["task"]
        == f"hf:{STATE}/visits,label=target"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rehearse=nowhere.csv"], "nowhere.csv"),
        (["--rehearse={log},cost=0"], "cost is 0"),
        (["--rehearse={log},costs=2"], "'costs'"),
        (["--rehearse={log}", "--trace=always"], "trace"),
        (["--rehearse={log}", "--resume=runs"], "resume"),
        (["--rehearse={log}", "--num-clients=3"], "5 devices for 3 clients"),
        (["--rehearse={log}", "--partition=label"], "num-clients=5"),
        (["--rehearse={log}", "--strategy", "mifa", "nonesuch"], "'nonesuch'"),
    ],
)
def test_errors_are_one_line(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    log = write(LOG)
    with pytest.raises(SystemExit) as caught:
        sim.main([*SMALL, f"--run-dir={tmp_path / 'runs'}", *(part.format(log=log) for part in arguments)])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "runs").exists()
