"""The benchmarks run in a tiny configuration; their timings are not checked."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measure
from benchmarks.scaling import hidden_units, weights_of
from benchmarks.tables import TABLES, command_of
from benchmarks.workloads import WORKLOADS, write_stand_in
from clients.gradients.oracles import ORACLES
from clients.rules import RULES

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a few images in MNIST's format."""
    directory = tmp_path_factory.mktemp("images")
    write_stand_in(directory, train=400, test=50)
    return directory


def run(script: str, data: Path, *flags: str, file: Path) -> tuple[dict[str, Any], str]:
    """Run a benchmark; returns its JSON and its standard output."""
    command = [
        sys.executable,
        f"benchmarks/{script}.py",
        *flags,
        "--data-dir",
        str(data),
        "--json",
        str(file),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert content["machine"]["cores"] == os.cpu_count()
    assert not [r for r in content["results"] if r.get("error")], done.stderr
    return content, done.stdout


def throughput(
    data: Path, tmp_path: Path, contenders: str, *flags: str, turns: int = 1
) -> list[dict[str, Any]]:
    tiny = (
        "--num-clients=20",
        "--clients-per-round=4",
        "--rounds=1",
        f"--turns={turns}",
        "--contenders",
        contenders,
    )
    content, shown = run("throughput", data, *tiny, *flags, file=tmp_path / "t.json")
    results: list[dict[str, Any]] = content["results"]
    assert [r["contender"] for r in results] == contenders.split(",")
    assert all(r["rounds"] == turns and r["clients_per_second"] > 0 for r in results)
    assert all(len(r["turns"]) == turns for r in results)
    assert shown.count("\n| 4 | ") == len(results)
    return results


def test_throughput_of_the_plain_loop(data: Path, tmp_path: Path) -> None:
    results = throughput(data, tmp_path, "bare-busy", "--workload", "2nn", turns=2)
    assert all(r["ratio"] is None for r in results)  # there is no run of flexfl to compare with
    if sys.platform == "linux":
        assert all(r["peak_bytes"] > 2**20 for r in results)


@pytest.mark.slow
def test_throughput_of_flexfl_on_ray_and_of_stock_flower(data: Path, tmp_path: Path) -> None:
    """The classic loop is left out: it differs from the tuned one by a single call."""
    results = throughput(data, tmp_path, "ray,flower-tuned,flower-message")
    assert results[0]["ratio"] == 1.0


@pytest.mark.slow
def test_throughput_of_convolutions_on_images_of_another_shape(data: Path, tmp_path: Path) -> None:
    throughput(data, tmp_path, "bare,inline", "--workload", "tutorial")


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("blazefl"), reason="needs blazefl, and that Python 3.12")
def test_throughput_of_blazefl(data: Path, tmp_path: Path) -> None:
    throughput(data, tmp_path, "blazefl,blazefl-threads")


@pytest.mark.slow
def test_limits(data: Path, tmp_path: Path) -> None:
    """The operations of a step are counted as they are by hand."""
    few = ("--workloads", "lenet,tutorial", "--turns", "2")
    content, shown = run("limits", data, *few, file=tmp_path / "l.json")
    assert content["matrix_product"] > 0
    for result, name in zip(content["results"], ("lenet", "tutorial"), strict=True):
        assert result["workload"] == name
        assert min(result[way] for way in ("plain", "flexfl", "layers")) > 0
    # Products, forward and to the weights and but for the first layer to the inputs, of 16 images: LeNet's
    # layers have 25 * 6 * 28^2, 150 * 16 * 10^2, 400 * 120, 120 * 84 and 84 * 10 multiplications an image.
    first, others = 25 * 6 * 28**2, 150 * 16 * 10**2 + 400 * 120 + 120 * 84 + 84 * 10
    assert content["results"][0]["flop_per_step"] == 2 * 16 * (2 * first + 3 * others)
    assert shown.count("(compiled-chain)") == 2


def test_throughput_names_an_unknown_contender(data: Path) -> None:
    command = [sys.executable, "benchmarks/throughput.py", "--contenders", "ray,nobody"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr.startswith("unknown contender 'nobody'; known: ray, inline")


@pytest.mark.slow
def test_scaling(data: Path, tmp_path: Path) -> None:
    sizes = ("--clients", "30", "--cohorts", "2", "--models", "1e4", "--workers", "1")
    few = ("--max-clients", "10", "--workloads", "fedlaavg", "--engine", "inline", "--rounds", "1")
    content, shown = run("scaling", data, *sizes, *few, file=tmp_path / "s.json")
    varied = [(r["section"], r["varied"]) for r in content["results"]]
    assert varied == [
        ("clients", {"N": 30}),
        ("cohort", {"K": 2}),
        ("workers", {"workload": "fedlaavg", "workers": 1}),
        ("models", {"M": weights_of(hidden_units(10_000)), "K": 10}),
    ]
    assert shown.count("ms per round") == 4


@pytest.mark.parametrize("num_weights", [10**4, 10**5, 10**6, 10**7])
def test_models_have_about_as_many_weights_as_requested(num_weights: int) -> None:
    assert weights_of(hidden_units(num_weights)) == pytest.approx(num_weights, rel=0.05)


def test_server_step(data: Path, tmp_path: Path) -> None:
    tiny = ("--num-clients", "8", "--clients-per-round", "4", "--rounds", "2")
    content, shown = run("server_step", data, *tiny, "--strategies", "fedavg,apfl", file=tmp_path / "s.json")
    for result, name in zip(content["results"], ("fedavg", "apfl"), strict=True):
        assert result["strategy"] == name
        assert result["numbers"] == 7850
        assert min(result[key] for key in ("configure_ms", "aggregate_ms", "aggregate_bytes_ms")) > 0
    assert "| fedavg | " in shown


@pytest.mark.slow
def test_server_step_of_large_models(data: Path, tmp_path: Path) -> None:
    tiny = ("--large", "--num-clients", "8", "--clients-per-round", "4", "--rounds", "2", "--hidden", "5")
    output = tmp_path / "table.md"
    flags = (*tiny, "--strategies", "mimic", "--output", str(output))
    content, shown = run("server_step", data, *flags, file=tmp_path / "s.json")
    assert [(r["strategy"], r["memory"]) for r in content["results"]] == [
        ("mimic", "server"),
        ("mimic", "client"),
    ]
    assert output.read_text(encoding="utf-8") in shown


def test_gradients(data: Path, tmp_path: Path) -> None:
    tiny = ("--num-clients", "5", "--pairs", "2", "--workloads", "fedlaavg,lenet")
    content, shown = run("gradients", data, *tiny, file=tmp_path / "g.json")
    compared = [(r["workload"], *r["ways"]) for r in content["results"]]
    assert compared == [
        ("fedlaavg", "compiled", "dual"),
        ("fedlaavg", "dual", "stacked"),
        ("fedlaavg", "stacked", "loop"),
        ("lenet", "compiled-chain", "chain"),
        ("lenet", "chain", "loop"),
    ]
    for result in content["results"]:
        assert 0 < result["range"][0] <= result["ratio"] <= result["range"][1]
        assert min(result["milliseconds"]) > 0
    assert "| lenet | chain (1) | loop (1) | " in shown


def test_gradients_names_an_unknown_workload() -> None:
    command = [sys.executable, "benchmarks/gradients.py", "--workloads", "2nn,3nn"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "unknown workload '3nn'; known: fedlaavg, 2nn, lenet, cnn" in done.stderr


def test_a_job_that_fails_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    job = {"module": "with_flexfl", "settings": {"task": "nothing"}, "rounds": 1}
    measured = measure.measure(job, 100)
    assert "unknown task 'nothing'" in measured.error
    assert measured.as_json()["seconds_per_round"] is None


def test_a_job_that_takes_too_long_is_stopped() -> None:
    settings = {"engine": "inline", "model": "logistic", "num-rounds": 10**6, "client-gpus": 0.0}
    job = {"module": "with_flexfl", "settings": settings, "seconds": 1e6}
    measured = measure.measure(job, 6.0)
    assert measured.error == "stopped after 6 s"


def test_table_formats_values() -> None:
    shown = measure.table(["a", "b", "c"], [[None, 1234.5, 0.012345]])
    assert shown == "| a | b | c |\n| --- | --- | --- |\n| - | 1,234 | 0.0123 |"


def test_what_checkpoints_cost(data: Path, tmp_path: Path) -> None:
    tiny = ("--num-clients", "4", "--num-rounds", "2", "--checkpoint-every", "1")
    content, shown = run("checkpoints", data, *tiny, file=tmp_path / "c.json")
    assert [len(result["checkpoint_seconds"]) for result in content["results"]] == [2, 2]
    assert shown.count("\n| ") == 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_short_soak(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    flags = ["--num-rounds", "300", "--num-clients", "20", "--kill-every", "50", "--json", str(file)]
    done = subprocess.run([sys.executable, "benchmarks/soak.py", *flags], cwd=ROOT, timeout=300)
    assert done.returncode == 0
    content = json.loads(file.read_text())
    assert content["exit_code"] == 0
    assert content["kills"] >= 1
    assert content["results"][-1]["round"] > 0


def test_a_device_is_checked_against_the_cpu(tmp_path: Path) -> None:
    """With the CPU for the device, the code that a GPU runs; Flower and Ray are out of reach."""
    arguments = ["gpu.py", "--device=cpu", "--quick", "--models=logistic", f"--json={tmp_path / 'gpu.json'}"]
    code = (
        "import runpy, sys; sys.modules |= {'flwr': None, 'ray': None}; "
        f"sys.argv = {arguments!r}; runpy.run_path('benchmarks/gpu.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert {result["rule"] for result in content["checked"]} == set(RULES)
    assert all(result["agrees"] for result in content["checked"])
    ways = {result["way"] for result in content["results"]}
    assert ways == {way + how for way in ORACLES for how in ("", ", recorded", ", 4 streams")}


def test_startup(tmp_path: Path) -> None:
    """Two checkouts in turns; a run counts from its start to the end of its first round."""
    file = tmp_path / "s.json"
    command = [sys.executable, "benchmarks/startup.py", "--commands", "list", "inline", "--turns", "1"]
    command += ["--against", str(ROOT), "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert [result["command"] for result in results] == ["list", "list", "inline", "inline"]
    assert {result["checkout"] for result in results} == {"this checkout", str(ROOT)}
    assert all(0 < seconds < 100 for result in results for seconds in result["seconds"])
    assert done.stdout.count("\n| ") == 3


def test_the_tables_of_readme_are_commands_that_exist(tmp_path: Path) -> None:
    commands = [command_of(name, str(tmp_path)) for name in TABLES]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for script in {command[0] for command in commands}:
        call = [sys.executable, script, "--help"]
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=100)
        known = set(done.stdout.replace("[", " ").split())
        for _, *flags in (command for command in commands if command[0] == script):
            assert {flag for flag in flags if flag.startswith("--")} <= known
        assert script in readme
    assert {c[c.index("--workload") + 1] for c in commands if "--workload" in c} <= WORKLOADS.keys()
