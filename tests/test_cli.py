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
from flexfl.config import Settings

ROOT = Path(__file__).parents[1]
SMALL = ["--engine=inline", "--client-gpus=0", "--model=logistic", "--num-clients=4", "--num-rounds=3"]
SMALL += ["--local-steps=4", "--batch-size=5"]
KEYS = [
    "strategy",
    "task",
    "model",
    "rounds",
    "client_fits",
    "seconds",
    "metric",
    "final",
    "run_dir",
    "weights_sha256",
    "no_reply_counted",
    "interrupted",
]


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Call the program as a user does, in a process of its own."""
    call = [sys.executable, "sim.py", *map(str, arguments)]
    return subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=120)


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
    done = command(*SMALL, "--trace=always", "--run-dir", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    summary = strict_json(done.stdout.splitlines()[-1])
    assert list(summary) == KEYS
    assert list(summary["final"]) == ["accuracy", "loss", "train_loss", "tested_examples"]
    assert (summary["strategy"], summary["task"]) == ("scheme-c", "digits")
    assert (summary["rounds"], summary["client_fits"]) == (3, 12)
    assert summary["final"]["tested_examples"] == 359

    folder = Path(summary["run_dir"])
    assert [folder] == list(tmp_path.iterdir())
    assert re.fullmatch(r"\d{8}-\d{6}-scheme-c-digits-always-seed=0", folder.name)
    assert {p.name for p in folder.iterdir()} >= {
        "config.toml",
        "metrics.jsonl",
        "weights.npz",
        "summary.json",
    }
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
    assert not re.search("warning|traceback|core_worker", done.stderr, re.IGNORECASE)


def test_the_config_of_a_run_folder_repeats_the_run(run: Any, tmp_path: Path) -> None:
    settings = ["--strategy=fedavg:weights=uniform", "--option=departure=include", "--seed=7"]
    first = run(*settings, "--arrivals=1=2", "--departures=0=3")
    again = run("--config", Path(first["run_dir"]) / "config.toml", base=[])
    assert again["run_dir"] != first["run_dir"]
    for key in ("strategy", "rounds", "client_fits", "final", "weights_sha256"):
        assert again[key] == first[key], key


def test_the_seed_determines_the_weights(run: Any) -> None:
    first, same, other = run("--seed=1"), run("--seed=1"), run("--seed=2")
    assert same["weights_sha256"] == first["weights_sha256"] != other["weights_sha256"]
    assert len({summary["run_dir"] for summary in (first, same, other)}) == 3


def test_flags_override_the_file(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('strategy = "fedavg"\nnum-rounds = 5\noption = "weights=uniform"\ntrain-loss = true\n')
    summary = run("--config", file, "--num-rounds=2", "--no-train-loss", base=SMALL[:4])
    config = tomllib.loads((Path(summary["run_dir"]) / "config.toml").read_text())
    assert (summary["strategy"], summary["rounds"]) == ("fedavg", 2)
    assert (config["option"], config["train-loss"]) == (["weights=uniform"], False)


def test_layers_change_the_run_and_are_repeated_with_it(run: Any) -> None:
    plain, adam, both = run(), run("--server-opt=adam:rate=0.05"), run("--server-opt=adam", "--amplify=2,1.5")
    assert len({summary["weights_sha256"] for summary in (plain, adam, both)}) == 3
    again = run("--config", Path(both["run_dir"]) / "config.toml", base=[])
    assert again["weights_sha256"] == both["weights_sha256"]
    assert run("--server-opt=sgd", "--amplify=1,1")["final"]["loss"] == pytest.approx(plain["final"]["loss"])


def test_options_can_be_repeated(run: Any) -> None:
    summary = run("--option=departure=include", "--option", "reboot=off")
    config = tomllib.loads((Path(summary["run_dir"]) / "config.toml").read_text())
    assert config["option"] == ["departure=include", "reboot=off"]


def test_the_value_of_an_option_may_have_commas_and_equals_signs(run: Any, tmp_path: Path) -> None:
    """The value is everything after the first `=`: here the folder for the table's file."""
    folder = tmp_path / "tables" / "a,b=c"
    options = ["--strategy=mimic", f"--option=table-folder={folder}", "--option=table-memory=0"]
    first = run(*options)
    assert folder.is_dir()
    folder.rmdir()
    again = run("--config", Path(first["run_dir"]) / "config.toml", base=[])
    assert folder.is_dir()
    assert again["weights_sha256"] == first["weights_sha256"]


@pytest.mark.parametrize("extra", [[], ["--evaluate-on=objective"]])
def test_a_federation_that_all_clients_leave(run: Any, extra: list[str]) -> None:
    summary = run("--departures=0-3=2", *extra)
    assert summary["rounds"] == 3
    assert summary["final"]["train_loss"] is None
    assert (summary["final"]["loss"] is None) == bool(extra)
    for line in (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines():
        strict_json(line)


def test_a_trace_with_a_clock_adds_virtual_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def records(trace: str) -> list[dict[str, Any]]:
        assert sim.main([*SMALL, f"--trace={trace}", f"--run-dir={tmp_path}", "--json"]) == 0
        out, err = capsys.readouterr()
        assert ("virtual seconds" in err) == ("phones" in trace)
        summary = strict_json(out)
        assert list(summary) == KEYS
        lines = (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines()
        return [strict_json(line) for line in lines]

    phones = records("phones:round-seconds=300+lost:p=0.1")
    assert [record.get("virtual_seconds") for record in phones] == [None, 300, 600, 900]
    assert not any("virtual_seconds" in record for record in records("always"))


def test_help_has_the_settings_in_groups_with_what_they_may_be() -> None:
    shown = sim.make_parser().format_help()
    titles = [
        "task and method",
        "the federation",
        "participation",
        "training",
        "engine",
        "evaluation and output",
    ]
    assert re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE) == ["options", *titles]
    assert "--trace" in shown.partition("\nparticipation:")[2].partition("\ntraining:")[0]
    text = " ".join(shown.split())
    assert "(auto | compiled | stacked | vmap | compiled-chain | chain | loop; default: auto)" in text
    assert "N, clients in the federation (at least 1; default: 20)" in text
    assert "the clients' learning rate (positive; default: 0.2)" in text
    assert "(test | present | objective | everybody; default: test)" in text


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


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    """In a process of its own: where Ray runs already, it is taken."""
    done = command("--engine=ray", "--ray-address=127.0.0.1:1", f"--run-dir={tmp_path}")
    assert done.returncode == 2
    assert re.search("ray-address 127.0.0.1:1: .*refused", done.stderr)


@pytest.mark.parametrize("runs", [["--seed=0"], ["--seed", "0", "1"]])
def test_without_ray_it_says_so(tmp_path: Path, runs: list[str]) -> None:
    """Neither does a run that shall be on Ray nor a comparison begin."""
    arguments = ["--engine=ray", "--num-rounds=1", "--num-clients=2", f"--run-dir={tmp_path}", *runs]
    code = f"import sys; sys.modules['ray'] = None; import sim; sim.main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert re.search(
        "error: Ray is not installed: pip install ray, or take --(engine inline|num-workers 1)", line
    )


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
        assert lines[0].startswith("sim.py: error: ")
        assert not list(tmp_path.glob("runs/*"))
        return lines[0]

    return call


@pytest.mark.parametrize("flag", KNOWN)
def test_unknown_names_list_the_known_ones(refused: Any, flag: str) -> None:
    line = refused(flag, "nonesuch")
    assert "'nonesuch'" in line
    assert ", ".join(KNOWN[flag]) in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--option=nonesuch=1", "strategy scheme-c has no option 'nonesuch'; known: .*departure.*reboot"),
        ("--strategy=fedavg:nonesuch=1", "strategy fedavg has no option 'nonesuch'; known: .*weights"),
        ("--strategy=fedavg:weights=all", "weights is 'all'; choose one of n, uniform"),
        ("--strategy=fedavg:weights", "'weights' at character 8 is not key=value"),
        ("--strategy=fedavg:", "an option is missing at character 8"),
        ("--strategy=", "a name is missing at character 1"),
        ("--strategy=scheme-d", "did you mean scheme-"),
        ("--strategy=fedau:cutof=3", "did you mean cutoff?"),
        ("--arrivals=3=40 --num-rounds=20", "client 3 has round 40, but the run has only 20 rounds"),
        ("--strategy=fedavg:seed=3", "set seed by --seed"),
        ("--option=weights", "option 'weights' is not KEY=VALUE"),
        ("--option=departure=maybe", "departure is 'maybe'; choose one of exclude, include, auto"),
        ("--trace=pools:first=two", "trace pools: first is 'two'; it must be a whole number"),
        ("--trace=pools:first=9", "first is 9"),
        ("--trace=bernoulli:p=2", "p is 2"),
        ("--partition=classes:m=11", "m must be between 1 and the data's 10 classes"),
        ("--partition=dirichlet:alpha=x", "alpha is 'x'; it must be a number"),
        ("--lr-schedule=geometric:factor=0", "factor is 0.0; it must be above 0 and at most 1"),
        ("--lr-schedule=inverse-sqrt:scale=0", "scale is 0.0; it must be positive"),
        ("--trace=late:p=2", "late: p is 2"),
        ("--trace=always+late:rounds=0", "late: rounds is 0, give 1 or more"),
        ("--trace=always+late --strategy=sequential-sgd", "sequential-sgd has no use for late replies"),
        ("--strategy=fedau:cutoff=-1", "cutoff is -1; it must be at least 0"),
        ("--strategy=fedau:estimator=known --trace=pools", "use a trace that has them"),
        ("--strategy=fedbuff:buffer=0", "buffer is 0; it must be at least 1"),
        ("--strategy=fedawe --server-opt=adam", "fedawe takes neither"),
        ("--server-opt=adam:rate=0", "server-opt adam: rate is 0.0; it must be positive"),
        ("--server-opt=adam:bias=some", "bias is 'some'; choose one of none, adam, flower"),
        ("--server-opt=adam:rate", "'rate' at character 6 is not key=value"),
        (
            "--model=mlp:hidden=100000000",
            r"with 10,000,\d{3},.* weights, a run needs .* GB, but this",
        ),
        ("--model=mlp:hidden=1000000000", r"a run needs [\d,.]+ GB, but this machine has [\d,.]+ GB"),
        ("--model=mlp:hidden=10000000000", "it has more weights than any machine can hold"),
        ("--num-clients=1000000000000000", "num-clients is 10+; it must be at most 1,000,000,000"),
        ("--stategy=fedavg", "unrecognized arguments: --stategy=fedavg; did you mean --strategy?"),
        ("--num_clients 3", "did you mean --num-clients?"),
        ("--fresh fedavg", "unrecognized arguments: fedavg; settings are written --NAME VALUE"),
        ("--strategy=FedAvg", "did you mean fedavg?"),
        ("--trace=bernoulli:0.3", "'0.3' at character 11 is not key=value; write bernoulli:p=0.5, say"),
        ("--trace bernoulli p=0.3", "unknown trace 'p=0.3'; .*options follow a name and a colon"),
        ("--strategy=fedavg,mifa", "several values are separated by spaces"),
        ("--run-dir a b", "run-dir: give one value, as it does not change the results"),
        ("--amplify=3", "amplify '3' is not PERIOD,FACTOR such as 10,2.0"),
        ("--amplify=0,2", "amplify: the period is 0 rounds; it must be at least 1"),
        ("--amplify=2,0.5", "amplify: the factor is 0.5; it must be at least 1"),
        ("--amplify=1000,2", "amplify: the period is 1000 of only"),
        ("--strategy=efl --amplify=2,2", "strategy efl takes neither --server-opt nor --amplify"),
        ("--strategy=sequential-sgd --server-opt=adam", "sequential-sgd takes neither"),
        ("--task=synthetic --partition=iid", "leave the partition out"),
        ("--task=synthetic --model=cnn", "inputs must be images"),
        ("--num-clients=5000", "5000 clients for 1438 examples.*at most 1438"),
        ("--num-clients=0", "num-clients is 0; it must be at least 1"),
        ("--clients-per-round=5", "clients-per-round is 5; it must be at most num-clients, 4"),
        ("--clients-per-round=-1", "clients-per-round is -1"),
        ("--local-steps=0", "local-steps is 0; it must be at least 1"),
        ("--local-epochs=-1", "local-epochs is -1"),
        ("--batch-size=-1", "batch-size is -1"),
        ("--learning-rate=-0.1", "learning-rate is -0.1; it must be positive"),
        ("--learning-rate=0", "learning-rate is 0.0; it must be positive"),
        ("--learning-rate=nan", "learning-rate is nan"),
        ("--learning-rate=inf", "learning-rate is inf"),
        ("--seed=-1", "seed is -1; it must be at least 0"),
        ("--num-rounds=0", "num-rounds is 0; it must be at least 1"),
        ("--num-rounds=many", "--num-rounds: invalid int value: 'many'"),
        ("--evaluate-every=0", "evaluate-every is 0"),
        ("--holdout=1 --evaluate-on=objective", "holdout is 1.0"),
        ("--arrivals=9=2", "arrivals: client 9 does not exist, give clients from 0 to 3"),
        ("--arrivals=2", r"arrivals: part 1 \('2'\)"),
        ("--departures=1=0", "departures: client 1 has round 0"),
        ("--arrivals=1=5 --departures=1=3", "client 1 departs in round 3 but arrives in round 5"),
        ("--nonesuch=1", "unrecognized arguments: --nonesuch=1"),
        ("--num-round=1", "unrecognized arguments"),
        ("--run-dir=/dev/null", "run-dir /dev/null: Not a directory"),
        (
            "--task=mnist --data-dir=nonesuch --cohort=nonesuch",
            "cohort is 'nonesuch'; choose one of auto, compiled, stacked",
        ),
        ("--model=lenet --cohort=stacked", "cohort stacked: the model is not a sequence of linear layers"),
        ("--config=nonesuch.toml", "config nonesuch.toml: No such file or directory"),
    ],
)
def test_invalid_values(refused: Any, arguments: str, says: str) -> None:
    assert re.search(says, refused(*arguments.split()))


@pytest.mark.parametrize("task", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_data_directory_without_the_data(refused: Any, tmp_path: Path, task: str, exists: bool) -> None:
    data = tmp_path / "images"
    if exists:
        data.mkdir()
    assert str(data) in refused(f"--task={task}", "--data-dir", data)


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


def test_an_error_in_the_shell() -> None:
    done = command("--strategy", "nonesuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_help_lists_and_mistakes_do_not_wait_for_pytorch(tmp_path: Path) -> None:
    code = (
        "import sys, sim\n"
        "try: code = sim.main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code\n"
        "sys.exit('imported' if {'torch', 'ray'} & {*sys.modules} else code)"
    )
    for arguments, expected, told in (
        ("--help", 0, "--strategy"),
        ("--strategi=mimic", 2, "--strategy"),
        ("--strategy nonesuch", 2, "unknown strategy"),
        ("--strategy mimic nonesuch", 2, "unknown strategy"),
        ("--list", 0, "mimic"),
        (
            f"--show-trace phones --num-clients 5 --num-rounds 20 --run-dir {tmp_path}",
            0,
            "p^k by the examples",
        ),
    ):
        call = [sys.executable, "-c", code, *arguments.split()]
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == expected, done.stderr
        assert told in done.stdout + done.stderr
