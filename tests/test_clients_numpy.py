"""The NumPy client on its own; test_flower_run.py and test_devices.py use it with our methods."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters, parameters_to_ndarrays

import strategies
from clients.app import client_fn as either
from clients.device.local_data import LocalData
from clients.numpy_client import client_fn
from fedtide.base.contract import Rule, ternary
from fedtide.base.preprocessing import REGRESSION, Preprocessing

ROOT = Path(__file__).parents[1]
CONFIG: dict[str, Any] = {"round": 1, "local-steps": 5, "batch-size": 0, "learning-rate": 0.5}
START = [np.zeros((10, 64), np.float32), np.zeros(10, np.float32)]


def make(run: Any = None, **node: Any) -> Any:
    config = {"partition-id": 0, "num-partitions": 4, **{k.replace("_", "-"): v for k, v in node.items()}}
    return client_fn(Context(0, 0, config, RecordDict(), run or {}))


def data_of(client: Any) -> LocalData:
    """The examples that a client trains on."""
    data: LocalData = client.examples("")[0]
    return data


def task(scalars: dict[str, Any], arrays: Any = START, kind: Any = FitIns) -> Any:
    return kind(ndarrays_to_parameters(arrays), scalars)


def digits(path: Path, classes: int = 10) -> Path:
    """Some digits of one client, in an .npz file; or with one class numbers to predict."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 43) if classes > 1 else rng.normal(size=43)
    np.savez(path, x=rng.random((43, 1, 8, 8), np.float32), y=y)
    return path


def test_it_needs_neither_torch_nor_the_tasks(tmp_path: Path) -> None:
    """Not for the device's own data either, nor where the node config asks the app for it."""
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, "tests")
sys.modules["torch"] = None
from flwr.app import Context, RecordDict
from flwr.common import FitIns, ndarrays_to_parameters
import numpy as np
from clients.app import client_fn
node = {{"client-id": 0, "data": "{digits(tmp_path / "own.npz")}", "state-dir": "{tmp_path}"}}
config = {CONFIG} | {{"rule": "dynamic", "strength": 0.1, "last-accepted": 0}}
weights = ndarrays_to_parameters([np.zeros((10, 64), np.float32), np.zeros(10, np.float32)])
reply = client_fn(Context(7, 0, node, RecordDict(), {{"num-clients": 3}})).fit(FitIns(weights, config))
assert reply.metrics["steps"] == 5 and (Path("{tmp_path}") / "run-7-client-0.safetensors").exists()
print(*{{"ray", "sklearn", "scipy", "fedtide.tasks"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


DECLARED = [*strategies.STRATEGIES.values(), *(strategy for _, strategy in strategies.VARIANTS.values())]
RULES = {strategy.rule.name: strategy.rule for strategy in DECLARED}
SENT: dict[str, Any] = {  # by the server, the scalars of all rules
    **{"mu": 0.3, "strength": 0.2, "alpha": 0.4, "alpha-mode": "step", "gradient": "chain-rule"},
    **{"penalty": 2.0, "personal-rate": 0.05, "inner-steps": 2, "start": "warm", "per-step": True},
    **{"normalize": True, "lambda": 0.1, "compress": True, "kept": 20, "ties": "exact", "fisher-batches": 2},
}


@pytest.mark.parametrize(("model", "outputs"), [("logistic", 10), ("mlp:hidden=7", 10), ("mlp:hidden=7", 1)])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_it_is_the_torch_client_without_torch(tmp_path: Path, rule: Rule, model: str, outputs: int) -> None:
    """On the same data both send, remember and report the same, also in the second round.

    With one output, it predicts numbers.
    """
    run = {"model": model, "num-clients": 3, "seed": 5, "evaluate-clients": 1}
    node = {"client-id": 2, "data": str(digits(tmp_path / "own.npz", outputs))}
    last = [(outputs, 64 if model == "logistic" else 7), (outputs,)]
    shapes = last if model == "logistic" else [(7, 64), (7,), (7, 7), (7,), *last]
    rng = np.random.default_rng(1)
    start = [rng.normal(0, 0.3, shape).astype(np.float32) for shape in shapes]
    size = sum(array.size for array in start)
    clients = [
        either(Context(1, 0, {**node, **kind, "state-dir": str(tmp_path / str(k))}, RecordDict(), run))
        for k, kind in enumerate(({}, {"numpy": True}))
    ]
    for server_round in (1, 2):
        scalars = {**CONFIG, "round": server_round, "local-steps": 6, "batch-size": 8, "rule": rule.name}
        if outputs == 1:
            scalars["preprocessing"] = Preprocessing(REGRESSION, unit=2.5).to_json()
        scalars |= {"model-arrays": len(start)} | {key: SENT[key] for key in rule.scalars}
        if rule.remembers:
            scalars["last-accepted"] = server_round - 1
        arrays = [*start, *arrays_of(rule.name, size, rng)]
        replies = [client.fit(task(scalars, arrays)) for client in clients]
        sent, also = (parameters_to_ndarrays(reply.parameters) for reply in replies)
        assert len(sent) == len(also) > 0
        for one, other in zip(sent, also, strict=True):
            if one.dtype == np.uint8:
                one, other = (ternary.unpack(packed, size) for packed in (one, other))
            assert one.shape == other.shape
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
        assert replies[1].metrics == pytest.approx(replies[0].metrics, rel=1e-5)
        assert replies[0].metrics["steps"] == 6
        scores = [client.evaluate(task(scalars, arrays, EvaluateIns)) for client in clients]
        assert scores[1].loss == pytest.approx(scores[0].loss, rel=1e-5)
        assert scores[1].metrics == pytest.approx(scores[0].metrics)
        assert scores[0].num_examples == scores[1].num_examples == 8


def arrays_of(rule: str, size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The method's own arrays that a rule needs."""
    vectors = {"corrected": 1, "heavy-ball": 1, "corrected-upload": 1, "elastic": 2}.get(rule, 0)
    own = [rng.normal(0, 0.1, size).astype(np.float32) for _ in range(vectors)]
    return own + [np.ones(1, np.float32)] * {"difference-upload": 1, "kept-gradient": 2}.get(rule, 0)


def test_a_slow_device_does_fewer_steps() -> None:
    slow = make(max_steps=3)
    assert slow.fit(task(CONFIG)).metrics["steps"] == 3
    epochs = {key: value for key, value in CONFIG.items() if key != "local-steps"} | {"local-epochs": 2}
    assert slow.fit(task(epochs)).metrics["steps"] == 2
    assert slow.fit(task({**epochs, "batch-size": 100})).metrics["steps"] == 3  # of 2 x 5


def test_it_stops_in_time() -> None:
    client = make()
    reported = client.fit(task({**CONFIG, "deadline-seconds": 0.0})).metrics
    assert reported["steps"] == 1
    assert reported["seconds"] > 0
    assert client.fit(task({**CONFIG, "deadline-seconds": 1e6})).metrics["steps"] == 5


def test_the_parts_make_up_the_whole_data_set() -> None:
    parts = [make(partition_id=k) for k in range(4)]
    assert sum(len(data_of(part).y) for part in parts) == 1797
    assert [part.get_properties(None).properties for part in parts] == [{"client-id": k} for k in range(4)]
    of_run = client_fn(Context(0, 0, {"client-id": 1}, RecordDict(), {"num-clients": 4}))
    np.testing.assert_array_equal(data_of(of_run).x, data_of(parts[1]).x)


def test_data_are_read_from_a_file_that_the_node_or_the_run_names(tmp_path: Path) -> None:
    path = str(digits(tmp_path / "own.npz"))
    with np.load(path) as arrays:
        for client in (make(data=path), make(run={"data": path})):
            np.testing.assert_array_equal(data_of(client).x, arrays["x"][::4])
            np.testing.assert_array_equal(data_of(client).y, arrays["y"][::4])


def test_it_refuses_what_it_cannot_do() -> None:
    client = make()
    with pytest.raises(ValueError, match="the task has no 'learning-rate'"):
        client.fit(task({key: value for key, value in CONFIG.items() if key != "learning-rate"}))
    with pytest.raises(ValueError, match=r"shape \(64,\), 64 numbers, and the model of the run takes 8"):
        client.fit(task(CONFIG, [np.zeros((10, 8)), np.zeros(10)]))
    for outputs, says in ((4, "10 classes where the model of the run has 4"), (1, "predicts one number")):
        with pytest.raises(ValueError, match=says):
            client.fit(task(CONFIG, [np.zeros((outputs, 64)), np.zeros(outputs)]))
    widths = [(5, 64), (5,), (7, 5), (7,), (10, 7), (10,)]
    for arrays in (
        *(START[:1], START * 2, [np.zeros((6, 1, 5, 5)), np.zeros(6)]),
        [*map(np.zeros, widths)],
    ):
        with pytest.raises(ValueError, match=r"logistic and model=mlp, not a model with tensors of \("):
            client.evaluate(task(CONFIG, arrays, EvaluateIns))
    assert make({"model": "logistic"}).fit(task(CONFIG)).metrics["steps"] == 5
    with pytest.raises(ValueError, match=r"not my_models.Net:width=3 with tensors of \(10, 64\)"):
        make({"model": "my_models.Net:width=3"}).fit(task(CONFIG))  # of the same shapes
    with pytest.raises(ValueError, match="node-config has no client-id"):
        client_fn(Context(0, 0, {}, RecordDict(), {}))
    with pytest.raises(ValueError, match="needs data, a file or folder, or num-partitions"):
        client_fn(Context(0, 0, {"client-id": 0}, RecordDict(), {}))
    with pytest.raises(ValueError, match="without PyTorch has no part of task mnist: give it data"):
        make({"task": "mnist"}).fit(task(CONFIG))
    empty = make(partition_id=3000, num_partitions=5000)
    for ask, kind in ((empty.fit, FitIns), (empty.evaluate, EvaluateIns)):
        with pytest.raises(ValueError, match="the client has no examples"):
            ask(task(CONFIG, kind=kind))
