"""The benchmarks run in a tiny configuration; their timings are not checked."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts

from benchmarks import measure, with_torch
from benchmarks.absences import Fault, problems, summary
from benchmarks.gpu import LARGE
from benchmarks.gpu_bounds import of_a_step
from benchmarks.scaling import hidden_units, weights_of
from benchmarks.tables import TABLES, command_of
from benchmarks.workloads import WORKLOADS, job_of, write_stand_in
from clients.gradients.oracles import ORACLES
from clients.rules import RULES

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a few images in MNIST's format."""
    directory = tmp_path_factory.mktemp("images")
    write_stand_in(directory, train=400, test=50)
    return directory


def run(script: str, *flags: str | Path, file: Path) -> tuple[dict[str, Any], str]:
    """Run a benchmark in this process; returns its JSON and its standard output."""
    done = scripts.run(f"benchmarks/{script}.py", *flags, "--json", file)
    assert done.code == 0, done.err
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert content["machine"]["cores"] == os.cpu_count()
    assert not [r for r in content["results"] if r.get("error")], done.err
    return content, done.out


@pytest.mark.slow
def test_throughput(data: Path, tmp_path: Path) -> None:
    contenders = ["inline", "flower-message"]
    tiny = ("--num-clients=20", "--clients-per-round=4", "--rounds=1", "--turns=1")
    flags = (*tiny, f"--data-dir={data}", f"--contenders={','.join(contenders)}")
    content, shown = run("throughput", *flags, file=tmp_path / "t.json")
    results: list[dict[str, Any]] = content["results"]
    assert [r["contender"] for r in results] == contenders
    assert all(r["rounds"] == len(r["turns"]) == 1 and r["clients_per_second"] > 0 for r in results)
    assert results[0]["ratio"] == 1.0
    assert shown.count("\n| 4 | ") == len(results)
    if sys.platform == "linux":
        assert all(r["peak_bytes"] > 2**20 for r in results)


@pytest.mark.slow
@pytest.mark.parametrize("contender", ["c", "jax", "fedjax"])
def test_what_is_written_by_hand_does_the_steps_of_pytorch(
    contender: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is all examples of a client here, so that the order of the draws does not matter."""
    if contender == "c":
        if not shutil.which("cc"):
            pytest.skip("no C compiler")
    else:
        pytest.importorskip(contender)
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)  # other tests follow
    for name in ("fedlaavg", "2nn"):
        workload, folder = WORKLOADS[name], tmp_path / name
        folder.mkdir()
        ends, rng = np.arange(1, 5) * workload.batch_size, np.random.default_rng(0)
        np.save(folder / "x.npy", rng.normal(size=(ends[-1], 1, 28, 28)).astype(np.float32))
        np.save(folder / "y.npy", rng.integers(0, 10, ends[-1]))
        np.save(folder / "ends.npy", ends)
        job = {**job_of(replace(workload, learning_rate=0.1), 4, 4, str(folder)), "scratch": str(folder)}
        expected = with_torch.Loop(job)
        by_hand = importlib.import_module(f"benchmarks.with_{contender}").Loop(job)
        for loop in (expected, by_hand):
            loop.round()
            loop.round()
        for one, other in zip(by_hand.weights, expected.weights.values(), strict=True):
            np.testing.assert_allclose(np.asarray(one), other.numpy(), atol=1e-6)


@pytest.mark.slow
def test_event_time(data: Path, tmp_path: Path) -> None:
    tiny = ("--clients=20", "--at-work=4", "--replies=1", "--rounds=25", "--turns=1", f"--data-dir={data}")
    content, shown = run("event_time", *tiny, file=tmp_path / "e.json")
    assert [result["replies"] for result in content["results"]] == [0, 1]
    assert all(result["updates_per_second"] > 0 for result in content["results"])
    assert shown.count("\n| ") == 3


@pytest.mark.slow
def test_limits(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations of a step are counted as they are by hand."""
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)  # other tests follow
    few = ("--workloads", "lenet", "--turns", "1", "--data-dir", data)
    content, shown = run("limits", *few, file=tmp_path / "l.json")
    assert content["matrix_product"] > 0
    (result,) = content["results"]
    assert min(result[way] for way in ("plain", "fedtide", "layers")) > 0
    # Products, forward and to the weights and but for the first layer to the inputs, of 16 images: LeNet's
    # layers have 25 * 6 * 28^2, 150 * 16 * 10^2, 400 * 120, 120 * 84 and 84 * 10 multiplications an image.
    first, others = 25 * 6 * 28**2, 150 * 16 * 10**2 + 400 * 120 + 120 * 84 + 84 * 10
    assert result["flop_per_step"] == 2 * 16 * (2 * first + 3 * others)
    assert shown.count("(compiled-chain)") == 1


@pytest.mark.parametrize(
    ("script", "flags", "says"),
    [
        ("throughput", ("--contenders", "ray,nobody"), "unknown contender 'nobody'; known: ray, inline"),
        ("throughput", ("--contenders", "pfllib"), "pfllib needs a checkout: --pfllib FOLDER"),
        ("gradients", ("--workloads", "2nn,3nn"), "unknown workload '3nn'; known: fedlaavg, 2nn"),
    ],
)
def test_unknown_names(script: str, flags: tuple[str, ...], says: str) -> None:
    done = scripts.run(f"benchmarks/{script}.py", *flags)
    assert done.code
    assert says in done.err


@pytest.mark.slow
def test_memory(data: Path, tmp_path: Path) -> None:
    few = ("--models=logistic", "--clients=20", "--engines=inline", "--strategies=fedavg+adam", "--rounds=1")
    content, shown = run("memory", *few, f"--data-dir={data}", file=tmp_path / "m.json")
    (result,) = content["results"]
    assert result["rounds"] == 1
    assert result["weights_sha256"][:8] in shown


@pytest.mark.slow
def test_cluster(data: Path, tmp_path: Path) -> None:
    few = ("--nodes=2", "--store=0.1", "--weights=3e5", "--clients=8", "--strategies=fedavg", "--rounds=1")
    content, shown = run("cluster", *few, f"--data-dir={data}", file=tmp_path / "c.json")
    (result,) = content["results"]
    assert result["weights"] == weights_of(hidden_units(300_000))
    assert result["weights_sha256"][:8] in shown
    if sys.platform == "linux":
        assert result["network_bytes_per_round"] > result["weights"]


@pytest.mark.slow
def test_scaling(data: Path, tmp_path: Path) -> None:
    sizes = ("--sections", "clients,models", "--clients", "30", "--cohorts", "2", "--models", "1e4")
    few = ("--max-clients", "10", "--engine", "inline", "--rounds", "1", "--data-dir", data)
    for wanted in (10**4, 10**5, 10**6, 10**7):
        assert weights_of(hidden_units(wanted)) == pytest.approx(wanted, rel=0.05)
    content, shown = run("scaling", *sizes, *few, file=tmp_path / "s.json")
    varied = [(r["section"], r["varied"]) for r in content["results"]]
    assert varied == [("clients", {"N": 30}), ("models", {"M": weights_of(hidden_units(10_000)), "K": 10})]
    assert shown.count("ms per round") == 2


SERVER_STEP = ("--num-clients", "8", "--clients-per-round", "4", "--rounds", "2")


def test_server_step(data: Path, tmp_path: Path) -> None:
    flags = (*SERVER_STEP, "--strategies", "fedavg,apfl", "--data-dir", data)
    content, shown = run("server_step", *flags, file=tmp_path / "s.json")
    for result, name in zip(content["results"], ("fedavg", "apfl"), strict=True):
        assert result["strategy"] == name
        assert result["numbers"] == 7850
        assert min(result[key] for key in ("configure_ms", "aggregate_ms", "aggregate_bytes_ms")) > 0
    assert "| fedavg | " in shown


@pytest.mark.slow
def test_server_step_of_large_models(tmp_path: Path) -> None:
    output = tmp_path / "table.md"
    flags = (*SERVER_STEP, "--large", "--hidden", "5", "--strategies", "mimic", "--output", output)
    content, shown = run("server_step", *flags, file=tmp_path / "s.json")
    assert [(r["strategy"], r["memory"]) for r in content["results"]] == [
        ("mimic", "server"),
        ("mimic", "client"),
    ]
    assert output.read_text(encoding="utf-8") in shown


def test_gradients(data: Path, tmp_path: Path) -> None:
    tiny = ("--num-clients", "5", "--pairs", "2", "--workloads", "fedlaavg,lenet", "--data-dir", data)
    content, shown = run("gradients", *tiny, file=tmp_path / "g.json")
    compared = [(r["workload"], *r["ways"]) for r in content["results"]]
    assert compared == [
        ("fedlaavg", "compiled", "stacked"),
        ("fedlaavg", "stacked", "loop"),
        ("lenet", "compiled-chain", "chain"),
        ("lenet", "chain", "loop"),
    ]
    for result in content["results"]:
        assert 0 < result["range"][0] <= result["ratio"] <= result["range"][1]
        assert min(result["milliseconds"]) > 0
    assert "| lenet | chain (1) | loop (1) | " in shown


def test_a_job_that_fails_or_does_not_end_is_named() -> None:
    job = {"module": "with_fedtide", "settings": {"task": "nothing"}, "rounds": 1}
    measured = measure.measure(job, 1000)
    assert "unknown task 'nothing'" in measured.error
    assert measured.as_json()["seconds_per_round"] is None
    settings = {"engine": "inline", "model": "logistic", "num-rounds": 10**6, "client-gpus": 0.0}
    job = {"module": "with_fedtide", "settings": settings, "seconds": 1e6}
    assert measure.measure(job, 1.0).error == "stopped after 1 s"


def test_what_checkpoints_cost(data: Path, tmp_path: Path) -> None:
    tiny = ("--num-clients", "4", "--num-rounds", "2", "--checkpoint-every", "1", "--data-dir", data)
    content, shown = run("checkpoints", *tiny, file=tmp_path / "c.json")
    assert [len(result["checkpoint_seconds"]) for result in content["results"]] == [2, 2]
    assert shown.count("\n| ") == 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_short_soak(tmp_path: Path) -> None:
    flags = ["--num-rounds", "120", "--num-clients", "20", "--kill-every", "60"]
    content, _ = run("soak", *flags, file=tmp_path / "s.json")
    assert content["exit_code"] == 0
    assert content["kills"] >= 1
    assert content["results"][-1]["round"] > 0


@pytest.mark.slow
def test_a_device_is_checked_against_the_cpu(tmp_path: Path) -> None:
    """With the CPU for the device, the code that a GPU runs; Flower and Ray are out of reach."""
    arguments = ["gpu.py", "--device=cpu", "--quick", f"--out={tmp_path / 'gpu.jsonl'}"]
    code = (
        "import runpy, sys; sys.modules |= {'flwr': None, 'ray': None}; "
        f"sys.argv = {arguments!r}; runpy.run_path('benchmarks/gpu.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    checked = [result for result in results if result["kind"] == "numbers"]
    assert {result["rule"] for result in checked} == set(RULES)
    assert {result["way"].partition(",")[0] for result in checked} == set(ORACLES)
    assert all(result["agrees"] for result in checked)
    assert all(result["twice"] for result in results if result["kind"] == "bits")
    speeds = {result["way"]: result for result in results if result["kind"] == "speed"}
    assert {"fedtide", "by hand: vmap", "by hand: JAX", "recorded", "4 streams"} <= set(speeds)
    assert all("error" not in result for way, result in speeds.items() if way != "by hand: JAX")


def test_what_a_step_needs_is_counted() -> None:
    """Of 5 examples, 784 pixels, 10 classes: forwards, and backwards for the weights alone."""
    work = LARGE["logistic"]
    _, _, operations = of_a_step(work, "loop", 1)
    assert operations == 2 * 5 * 784 * 10 * 2
    alone, together = (of_a_step(work, "stacked", size) for size in (1, 4))
    assert together[0] == alone[0]  # calls, which a cohort shares
    assert together[1] == pytest.approx(4 * alone[1], rel=0.01)  # bytes, which it does not


def test_startup(tmp_path: Path) -> None:
    """Two checkouts in turns."""
    flags = ["--commands", "list", "--turns", "1", "--against", ROOT]
    content, shown = run("startup", *flags, file=tmp_path / "s.json")
    assert [result["command"] for result in content["results"]] == ["list", "list"]
    assert {result["checkout"] for result in content["results"]} == {"this checkout", str(ROOT)}
    assert all(seconds > 0 for result in content["results"] for seconds in result["seconds"])
    assert shown.count("\n| ") == 2


def test_absences_are_held_against_what_was_done() -> None:
    """Board 1 is killed in round 2 and back in round 4; what else is told of it does not fit."""
    always = {"available": [0, 1], "failed": {}, "at_work": [], "seconds": {"train": 10.0}}
    records: list[dict[str, Any]] = [
        always | {"round": t, "time": 20.0 * t, "active": [0, 1]} for t in range(1, 6)
    ]
    records[1] |= {"active": [0], "failed": {"1": "no reply within 20 s"}}
    records[2] |= {"active": [0], "available": [0]}
    killed = Fault("killed", [1], is_missed=True, begin=35.0, end=35.0)
    assert [*problems(records, [killed], 2)] == []
    assert "| killed | 1 | 2, 2 | 45, 45 | no reply within n s; offline |" in summary([killed], records)
    assert [*problems(records, [], 2)] == [
        "board 1 is missing in rounds 2 to 3 without a fault: no reply within 20 s, offline"
    ]
    other = Fault("restarted", [0], is_missed=True, begin=60.0, end=60.0)
    assert [*problems(records, [killed, other], 2)] == ["restarted: boards [0] take part in round 4"]
    records[3] |= {"late": [{"client": 1, "task": 1}]}
    assert [*problems(records, [killed], 2)] == ["counted twice (board, round): [(1, 1)]"]
    del records[2]
    assert "rounds are missing, or there twice" in [*problems(records, [killed], 2)]


def test_the_tables_of_docs_are_commands_that_exist(tmp_path: Path) -> None:
    commands = [command_of(name, str(tmp_path)) for name in TABLES]
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    for script in {command[0] for command in commands}:
        known = set(scripts.run(script, "--help").out.replace("[", " ").split())
        for _, *flags in (command for command in commands if command[0] == script):
            assert {flag for flag in flags if flag.startswith("--")} <= known
        assert script in page
    assert {c[c.index("--workload") + 1] for c in commands if "--workload" in c} <= WORKLOADS.keys()


@pytest.mark.slow
def test_hub() -> None:
    pytest.importorskip("datasets")
    done = scripts.run("benchmarks/hub.py", "--rows=300")
    assert done.code == 0, done.err
    assert [line.split()[1] for line in done.out.splitlines()[2:]] == ["table", "text", "image"]
