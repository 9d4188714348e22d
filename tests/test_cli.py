"""The command line: its output, its run folder, and its errors."""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from registries import KNOWN

import sim
from fedtide.cli.flags import make_parser
from fedtide.config import Settings

ROOT = Path(__file__).parents[1]
SMALL = ["--engine=inline", "--client-gpus=0", "--model=logistic", "--num-clients=4", "--num-rounds=3"]
SMALL += ["--local-steps=4", "--batch-size=5"]
KEYS = "strategy task model rounds client_fits ends weights state_bytes seconds cycle metrics final run_dir"
KEYS += " weights_sha256 no_reply_counted interrupted"


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs in this process and returns the summary that `--json` prints."""

    def call(*arguments: str | Path, base: list[str] = SMALL) -> dict[str, Any]:
        capsys.readouterr()
        assert sim.main([*base, f"--run-dir={tmp_path / 'runs'}", "--json", *map(str, arguments)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 1  # all else goes to standard error
        return strict_json(lines[0])

    return call


# A run and its folder


def test_a_run_from_the_shell(tmp_path: Path) -> None:
    log, runs = tmp_path / "log.csv", tmp_path / "runs"
    log.write_text("client,start,end\n" + "".join(f"{k},0,9000\n" for k in (0, 1, 2, 3, 3)))  # all online
    trace = f"--trace=recorded:file={log}"
    call = [sys.executable, "sim.py", *SMALL, trace, "--run-dir", str(runs), "--json"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pattern = r"^warning: trace recorded: .*, line 6: .* overlaps .*$"
    rest, warnings = re.subn(pattern, "", done.stderr, flags=re.MULTILINE)
    assert warnings == 1
    summary = strict_json(done.stdout.splitlines()[-1])
    assert list(summary) == KEYS.split()
    assert list(summary["final"]) == ["accuracy", "loss", "train_loss", "tested_examples"]
    assert (summary["strategy"], summary["task"]) == ("scheme-c", "digits")
    assert (summary["rounds"], summary["client_fits"]) == (3, 12)
    assert summary["final"]["tested_examples"] == 359

    folder = Path(summary["run_dir"])
    assert [folder] == list(runs.iterdir())
    assert re.fullmatch(r"\d{8}-\d{6}-scheme-c-digits-recorded-file=.*-seed=0", folder.name)
    assert strict_json((folder / "summary.json").read_text()) == summary
    records = [strict_json(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [0, 1, 2, 3]
    assert records[-1]["loss"] == summary["final"]["loss"]
    with np.load(folder / "weights.npz") as arrays:
        content = b"".join(arrays[name].astype("<f4").tobytes() for name in arrays.files)
    assert hashlib.sha256(content).hexdigest() == summary["weights_sha256"]
    config = tomllib.loads((folder / "config.toml").read_text())
    assert set(Settings().as_mapping()) < set(config)
    assert (config["num-rounds"], config["engine"], config["seed"]) == (3, "inline", 0)
    assert {"python", "flwr", "torch"} <= set(config["versions"])
    assert config["command"][0] == "sim.py"
    # The progress, and no warnings of libraries.
    assert "round 3/3  accuracy" in done.stderr
    assert not re.search("warning|traceback|core_worker", rest, re.IGNORECASE)


def test_the_config_of_a_run_folder_repeats_the_run(run: Any, tmp_path: Path) -> None:
    """Also layers, and an option's value with commas and equals signs, here the folder for a table's file."""
    folder = tmp_path / "tables" / "a,b=c"
    options = [
        "--strategy=mimic:table-memory=0",
        "--option=departure=include",
        f"--option=table-folder={folder}",
    ]
    layers = ["--server-opt=adam", "--amplify=2,1.5", "--arrivals=1=2", "--departures=0=3", "--seed=7"]
    first = run(*options, *layers)
    folder.rmdir()
    again = run("--config", Path(first["run_dir"]) / "config.toml", base=[])
    assert folder.is_dir()
    assert again["run_dir"] != first["run_dir"]
    for key in ("strategy", "rounds", "client_fits", "final", "weights_sha256"):
        assert again[key] == first[key], key


def test_flags_override_the_file(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('strategy = "fedavg"\nnum-rounds = 5\noption = "weights=uniform"\ntrain-loss = true\n')
    own = ("--num-rounds=2", "--no-train-loss", "--option=departure=include", "--option", "weights=n")
    summary = run("--config", file, *own, base=SMALL[:4])
    config = tomllib.loads((Path(summary["run_dir"]) / "config.toml").read_text())
    assert (summary["strategy"], summary["rounds"]) == ("fedavg", 2)
    assert (config["option"], config["train-loss"]) == (["departure=include", "weights=n"], False)


@pytest.mark.parametrize("extra", [[], ["--evaluate-on=objective"]])
def test_a_federation_that_all_clients_leave(run: Any, extra: list[str]) -> None:
    summary = run("--departures=0-3=2", *extra)
    assert summary["rounds"] == 3
    assert summary["final"]["train_loss"] is None
    assert (summary["final"]["loss"] is None) == bool(extra)
    for line in (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines():
        strict_json(line)


def test_virtual_seconds(tmp_path: Path, capsys: Any) -> None:
    assert sim.main([*SMALL, "--trace=phones:round-seconds=300", f"--run-dir={tmp_path}", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "virtual seconds" in err
    lines = (Path(strict_json(out)["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    assert [strict_json(line).get("virtual_seconds") for line in lines] == [None, 300, 600, 900]


def test_help_has_the_settings_in_groups_with_what_they_may_be() -> None:
    shown = make_parser().format_help()
    titles = re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE)
    expected = (
        "options, task and method, the federation, participation, training, engine, evaluation and output"
    )
    assert ", ".join(titles) == expected
    assert "--trace" in shown.partition("\nparticipation:")[2].partition("\ntraining:")[0]
    text = " ".join(shown.split())
    assert "(auto | compiled | stacked | vmap | compiled-chain | chain | loop; default: auto)" in text
    assert "N, clients in the federation (at least 1; default: 20)" in text
    assert "the clients' learning rate; 0: what suits the model (at least 0; default: 0.0)" in text


def test_the_name_of_a_run_folder_tells_runs_apart_and_is_bounded(run: Any, tmp_path: Path) -> None:
    table = tmp_path / "a long name of a file" / ("x" * 100) / "rounds.csv"
    table.parent.mkdir(parents=True)
    table.write_text("round,client,completion\n1,0,1\n")
    short = run("--strategy=fedau:cutoff=0", "--trace=bernoulli:p=0.5+lost", "--seed=7")
    long = run(f"--trace=table:file={table}+lost", f"--seed={2**62}", "--num-rounds=1")
    assert Path(short["run_dir"]).name[16:] == "fedau-cutoff=0-digits-bernoulli-p=0.5-lost-seed=7"
    assert Path(long["run_dir"]).name.endswith(f"-seed={2**62}")
    assert len(Path(long["run_dir"]).name) < 150


# Errors


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a call with an error and returns its message, one line."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # downloads fail

    def call(*arguments: str | Path) -> str:
        with pytest.raises(SystemExit) as caught:
            sim.main([*SMALL, f"--run-dir={tmp_path / 'runs'}", *map(str, arguments)])
        assert caught.value.code == 2
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if line]
        assert out == ""
        assert len(lines) == 1, err
        assert lines[0].startswith("fedtide: error: ")
        assert not [path for path in tmp_path.glob("runs/**/*") if path.is_file()]
        return lines[0]

    return call


@pytest.mark.parametrize("runs", [["--seed=0"], ["--seed", "0", "1"]])
def test_without_ray_it_says_so(refused: Any, monkeypatch: pytest.MonkeyPatch, runs: list[str]) -> None:
    """Neither does a run that shall be on Ray nor a comparison begin."""
    monkeypatch.setitem(sys.modules, "ray", None)
    line = refused("--engine=ray", *runs)
    assert re.search("Ray is not installed: .*--(engine inline|num-workers 1)", line)


@pytest.mark.parametrize("flag", KNOWN)
def test_unknown_names_list_the_known_ones(refused: Any, flag: str) -> None:
    line = refused(flag, "nonesuch")
    assert "'nonesuch'" in line
    assert ", ".join(KNOWN[flag]) in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        # names and options
        ("--strategy=fedau:cutof=3", "did you mean cutoff"),
        ("--strategy=fedavg:seed=3", "--seed"),
        ("--option=weights", "KEY=VALUE"),
        ("--partition=classes:m=11", "m .*10 classes"),
        ("--stategy=fedavg", "--stategy=fedavg; did you mean --strategy"),
        ("--num_clients 3", "did you mean --num-clients"),
        ("--lr=0.1", "did you mean --learning-rate"),
        ("--rounds=5", "did you mean --num-rounds"),
        ("--batch=5", "did you mean --batch-size"),
        ("--strategy=fedprox:mu=0.1 --option=mu=0.2", "fedprox:mu=0.1 has mu, which option or tune sets aga"),
        ("--fresh fedavg", "fedavg; .*--NAME VALUE"),
        ("--trace=bernoulli:0.3", "character 11 .*key=value.*bernoulli:p=0.5"),
        ("--task=csv:homes.csv", "character 5 is not key=value; for example csv:file=[.]{3}$"),
        ("--trace bernoulli p=0.3", "unknown trace 'p=0.3'; .*colon"),
        ("--strategy=fedavg,mifa", "spaces"),
        # numbers
        ("--num-rounds=many", "--num-rounds: .*'many'"),
        ("--model=mlp:hidden=10000000000", "more weights than any machine"),
        # settings that do not go together
        ("--arrivals=3=40 --num-rounds=20", "client 3 .*round 40.* 20 rounds"),
        ("--arrivals=1=5 --departures=1=3", "client 1 departs in round 3 .*round 5"),
        ("--departures=1=never", "departures: client 1 departs never; leave it out"),
        ("--trace=always+late --strategy=sequential-sgd", "sequential-sgd .*late"),
        ("--strategy=fedau:estimator=known --trace=pools", "use a trace that has them"),
        ("--initial-model=two-norm:V=0", "initial-model two-norm: V is 0; it must be at least 1"),
        ("--strategy=efl --amplify=2,2", "efl takes no --server-opt or --amplify"),
        ("--task=synthetic --partition=iid", "leave the partition out"),
        ("--model=lenet --cohort=stacked", "cohort stacked: .*linear layers"),
        ("--num-clients=5000", "5000 clients .*1438"),
        ("--task=mnist --data-dir=nonesuch --cohort=nonesuch", "cohort is 'nonesuch'; "),
        # when it ends
        ("--stop-at=0.9", "stop-at is '0.9'; it must be NAME=VALUE"),
        ("--stop-at=acuracy=0.9", "no 'acuracy'; they have accuracy, loss"),
        ("--stop-at=accuracy=90", "accuracy is a share, .*80 % is 0.8"),
        ("--stop-at=worst-client=0.5", "worst-client is not evaluated; give --evaluate-clients"),
        ("--stop-at=train-loss=0.5", "give --train-loss"),
        ("--stop-at=client=0.5 --evaluate-on=everybody", "scheme-c evaluates nothing at the clients"),
        # files
        ("--run-dir=/dev/null", "run-dir /dev/null: Not a directory"),
        pytest.param(f"--run-dir=/proc/{'a/' * 1990}", "run-dir /proc/a.*: (too many|No such)", id="deep"),
        ("--config=nonesuch.toml", "nonesuch.toml: No such file"),
        pytest.param(f"--resume={'a' * 5000}", "^[^ ]* error: resume a+: not a run folder", id="long"),
        pytest.param("--run-dir=a\0b", r"run-dir is 'a\\x00b': no file can hold or have", id="NUL"),
        pytest.param("--task=csv:file=\0", r"task is 'csv:file=\\x00': no file can", id="NUL in a spec"),
        pytest.param("--data-dir=\udcff", r"data-dir is '\\udcff': no file can", id="not UTF-8"),
        pytest.param("--rehearse=\0", r"trace recorded: file is .\\x00.: no file can", id="NUL of a log"),
    ],
)
def test_invalid_values(refused: Any, arguments: str, says: str) -> None:
    assert re.search(says, refused(*arguments.split()))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("num-rounds =", "not TOML"),
        ("num-round = 3", "unknown setting 'num-round'; known: strategy"),
        ('seed = "3"', "own.toml: seed is '3'; it must be of type int"),
        ('strategy = "nonesuch"', "unknown strategy 'nonesuch'; known: fedavg"),
    ],
)
def test_invalid_configuration_files(refused: Any, tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(content)
    assert says in refused("--config", file)


def test_help_lists_and_mistakes_do_not_wait_for_pytorch(tmp_path: Path) -> None:
    """All in one process, which has not imported it at the end."""
    calls = [
        ("--help", 0),
        ("--list", 0),
        ("--strategi=mimic", 2),
        ("--strategy nonesuch", 2),
        ("--strategy mimic nonesuch", 2),
        (f"--show-trace phones --num-clients 5 --num-rounds 20 --run-dir {tmp_path}", 0),
    ]
    code = (
        "import sys, sim\n"
        f"for arguments, expected in {calls!r}:\n"
        "    try: code = sim.main(arguments.split())\n"
        "    except SystemExit as end: code = end.code\n"
        "    assert (code or 0) == expected, arguments\n"
        "    assert not {'torch', 'ray'} & {*sys.modules}, arguments\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("--strategy", "mimic", "p^k by the examples"))
    assert len(done.stderr.splitlines()) == 3  # one for each mistake
