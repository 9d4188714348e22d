"""The NumPy client on its own; test_flower_run.py uses it with our methods."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from clients.numpy_client import SoftmaxRegression, client_fn

ROOT = Path(__file__).parents[1]
CONFIG: dict[str, Any] = {"round": 1, "local-steps": 5, "batch-size": 0, "learning-rate": 0.5}
START = [np.zeros((10, 64), np.float32), np.zeros(10, np.float32)]


def make(run: Any = None, **node: Any) -> Any:
    config = {"partition-id": 0, "num-partitions": 4, **{k.replace("_", "-"): v for k, v in node.items()}}
    return client_fn(Context(0, 0, config, RecordDict(), run or {})).numpy_client  # type: ignore[attr-defined]


def test_it_needs_neither_torch_nor_the_tasks() -> None:
    tree = ast.parse((ROOT / "clients" / "numpy_client.py").read_text())
    used = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in used if name.startswith("flexfl")} == {"flexfl.contract"}
    assert {name for name in used if name.startswith("clients")} == {"clients.deadline"}
    allowed = {"numpy", "flwr", "sklearn", "flexfl", "clients"}
    assert {name.partition(".")[0] for name in used} - sys.stdlib_module_names == allowed
    heavy = {"torch", "ray", "sklearn", "flexfl.tasks"}
    code = f"import sys, clients.numpy_client; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_steps_are_those_of_torch() -> None:
    """Whole batches: the same weights and losses as autograd's."""
    client = make()
    arrays, n, metrics = client.fit(START, CONFIG)
    model = torch.nn.Linear(64, 10)
    with torch.no_grad():
        model.weight.zero_(), model.bias.zero_()
    losses = []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(
            model(torch.from_numpy(client.x)), torch.from_numpy(client.y)
        )
        model.zero_grad()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
    np.testing.assert_allclose(arrays[0], model.weight.detach(), atol=1e-5)
    np.testing.assert_allclose(arrays[1], model.bias.detach(), atol=1e-5)
    assert metrics == {"train-loss": pytest.approx(np.mean(losses), rel=1e-4)}
    assert n == len(client.y) == 450
    assert not START[0].any()
    loss, n, scores = client.evaluate(arrays, {})
    assert loss < losses[-1]
    assert scores["accuracy"] > 0.5


def test_steps_are_reported_if_they_are_fewer_than_asked_for() -> None:
    slow = make(max_steps=3)
    assert slow.fit(START, CONFIG)[2]["steps"] == 3
    assert "steps" not in slow.fit(START, {**CONFIG, "local-steps": 3})[2]
    epochs = {key: value for key, value in CONFIG.items() if key != "local-steps"} | {"local-epochs": 2}
    assert "steps" not in slow.fit(START, epochs)[2]
    assert slow.fit(START, {**epochs, "batch-size": 100})[2]["steps"] == 3  # of 2 x 5


def test_the_parts_make_up_the_whole_data_set() -> None:
    parts = [make(partition_id=k) for k in range(4)]
    assert sum(len(part.y) for part in parts) == 1797
    assert [part.get_properties({}) for part in parts] == [{"client-id": k} for k in range(4)]


@pytest.mark.parametrize("where", ["node", "run"])
def test_data_are_read_from_a_file(tmp_path: Path, where: str) -> None:
    x, y = np.arange(24.0).reshape(6, 2, 2), np.arange(6) % 3
    np.savez(tmp_path / "own.npz", x=x, y=y)
    path = str(tmp_path / "own.npz")
    client = make(data=path) if where == "node" else make(run={"data": path})
    np.testing.assert_array_equal(client.x, x[[0, 4]].reshape(2, 4))
    np.testing.assert_array_equal(client.y, y[[0, 4]])


def test_it_refuses_what_it_cannot_do() -> None:
    client = SoftmaxRegression(0, np.zeros((1, 64)), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="plain SGD only, not 'proximal'"):
        client.fit(START, {**CONFIG, "rule": "proximal"})
    with pytest.raises(ValueError, match="the task has no 'learning-rate'"):
        client.fit(START, {key: value for key, value in CONFIG.items() if key != "learning-rate"})
    with pytest.raises(
        ValueError, match=r"model=logistic on 64 inputs, not weights of \[\(10, 8\), \(10,\)\]"
    ):
        client.fit([np.zeros((10, 8)), np.zeros(10)], CONFIG)
    with pytest.raises(ValueError, match=r"not weights of \[\(10, 64\)\]"):
        client.evaluate(START[:1], CONFIG)
    with pytest.raises(ValueError, match="node-config needs partition-id"):
        client_fn(Context(0, 0, {}, RecordDict(), {}))


def test_a_client_without_examples_refuses() -> None:
    client = SoftmaxRegression(0, np.zeros((0, 64)), np.zeros(0, np.int64))
    for ask in (client.fit, client.evaluate):
        with pytest.raises(ValueError, match="the client has no examples"):
            ask(START, CONFIG)
