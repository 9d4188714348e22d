"""The model of a run as a file for other programs."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL

import fedtide
from clients.device.local_data import DataSpec, read
from fedtide.api import export
from fedtide.api.export import FOLDERS, FORMATS, SUFFIXES, main

PAGE = Path(__file__).parents[1] / "docs" / "inference.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
CSV = "a,b,c,kind\n1,2,u,x\n2,1,v,y\n3,5,u,x\n5,3,v,y\n1,4,u,x\n6,2,v,y\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose table is gone."""
    folder = tmp_path_factory.mktemp("export")
    table = folder / "own.csv"
    table.write_text(CSV)
    settings = SMALL | {"num_clients": 2, "batch_size": 0, "run_dir": str(folder / "runs")}
    done = fedtide.run(
        task=f"csv:file={table},target=kind,categories=c", progress=False, report=False, **settings
    )
    table.unlink()
    return done.path


def test_a_model_needs_no_data(run: Path) -> None:
    loaded = fedtide.load(run)
    assert isinstance(loaded, fedtide.Run)
    assert loaded.ends == ((4,), 2, 0)
    assert loaded.model()(torch.zeros(3, 4)).shape == (3, 2)


@pytest.mark.parametrize("to", [to for to in FORMATS if to not in FOLDERS])
def test_other_programs_give_the_same_outputs(
    to: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if to == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    assert main([str(run), "--to", to]) == 0
    path = Path(f"model{SUFFIXES[to]}")
    assert capsys.readouterr().out == f"{path}\n"
    loaded = fedtide.load(run)
    assert isinstance(loaded, fedtide.Run)
    model, x = loaded.model(), torch.rand(7, 4)
    expected = model(x).detach().numpy()
    if to == "onnx":
        (found,) = onnxruntime.InferenceSession(path).run(["output"], {"input": x.numpy()})
    elif to == "torchscript":
        found = torch.jit.load(path)(x).detach().numpy()  # type: ignore[no-untyped-call]
    else:
        from safetensors.numpy import load_file

        arrays = load_file(path) if to == "safetensors" else dict(np.load(path))
        weight, bias = (arrays[name] for name in model.state_dict())
        found = x.numpy() @ weight.T + bias
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_file_with_other_outputs_is_not_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "_restored", lambda model, state: lambda x: np.ones((len(x), 2)))
    assert main([str(run), "--to", "numpy", "--output", str(tmp_path / "model.npz")]) == 2
    assert "numpy: the file gives outputs that differ by" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class Drifting(torch.nn.Module):
    """Has a mean that no state_dict has, and a part that is not trained."""

    mean: torch.Tensor

    def __init__(self, shape: tuple[int, ...], classes: int, frozen: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Linear(*shape, 6).requires_grad_(not frozen)
        self.last = torch.nn.Linear(6, classes)
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * (x.detach().mean(0) + 1)
        outputs: torch.Tensor = self.last(x - self.mean)
        return outputs


@pytest.mark.parametrize("frozen", [False, True])
def test_a_buffer_that_no_state_has(frozen: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    task = fedtide.Task.from_arrays(x, (x[:, 0] > 0), clients=np.arange(40) % 2)
    settings = SMALL | {"num_clients": 2, "num_rounds": 2, "run_dir": str(tmp_path / "runs")}
    model = partial(Drifting, frozen=frozen)
    done = fedtide.run(task=task, progress=False, report=False, **settings | {"model": model})
    assert done.model().mean.abs().sum() > 0.1
    loss = torch.nn.functional.cross_entropy(
        done.model()(torch.from_numpy(task.test[0])), torch.from_numpy(task.test[1])
    )
    assert done.summary["final"]["loss"] == pytest.approx(float(loss), rel=1e-5)
    with pytest.raises(fedtide.SettingsError, match=r"persistent=False"):
        export.export(done, "numpy", tmp_path / "model.npz")
    export.export(done, "torchscript", tmp_path / "model.pt")


def test_a_task_of_another_program_is_not_needed(tmp_path: Path) -> None:
    """Its run says which model it was, and how large."""
    settings = SMALL | {"num_clients": 2, "num_rounds": 1, "run_dir": str(tmp_path / "runs")}
    code = (
        "import numpy as np, fedtide\n"
        "task = fedtide.Task.from_arrays(np.eye(20), np.arange(20) % 2, clients=np.arange(20) % 2)\n"
        f"print(fedtide.run(task=task, progress=False, report=False, **{settings!r}).path)"
    )
    path = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert main([path, "--to", "numpy", "--output", str(tmp_path / "model.npz")]) == 0


def test_errors_are_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for arguments, message in (
        ([str(tmp_path)], "is not a run folder: it has no config.toml"),
        ([str(run), "--to", "numpy", "--output", str(tmp_path / "file" / "x")], "Not a directory"),
    ):
        assert main(arguments) == 2
        assert message in (error := capsys.readouterr().err)
        assert error.count("\n") == 1


def test_the_program_of_a_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's, with the model of the digits."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    done = fedtide.run(progress=False, report=False, **SMALL)
    assert main([str(done.path)]) == 0
    exec(PROGRAMS[0], {})
    expected = done.model()(torch.zeros(1, 1, 8, 8)).argmax(1).item()
    assert capsys.readouterr().out == f"model.onnx\n[{expected}]\n"


def test_the_rows_of_a_table(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's function prepares them as the task does, of which boards' own tables are a test."""
    monkeypatch.chdir(run)
    names: dict[str, Any] = {}
    exec(PROGRAMS[1], names)
    (tmp_path / "own.csv").write_text(CSV)
    expected = read(DataSpec(str(tmp_path / "own.csv")), Path("preprocessing.json").read_text())
    for line, x, y in zip(CSV.splitlines()[1:], expected.x, expected.y, strict=True):
        a, b, c, kind = line.split(",")
        np.testing.assert_array_equal(names["prepared"]({"a": float(a), "b": float(b), "c": c})[0], x)
        assert names["done"]["target"]["values"][y] == kind
