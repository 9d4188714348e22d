"""docs/flower-app.md: its code as it stands, and its table of what methods need of the clients."""

import importlib
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.serverapp import ServerApp
from message_grid import HereGrid, classic, identify

import fedtide
import strategies

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "flower-app.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What methods need")[2].partition("##")[0]


def defined(marker: str, **names: Any) -> dict[str, Any]:
    """Run the Python code that follows a marker of the page, with these names; return what it defines."""
    (code,) = re.findall(rf"<!-- {marker} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, names)
    return names


@pytest.mark.slow
def test_the_one_line_and_the_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the model and the digits of examples/pytorch-app."""
    identify(monkeypatch)
    task = runpy.run_path(str(ROOT / "examples" / "pytorch-app" / "task.py"))
    accuracies = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = task["make_model"]()
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = task["test"](model, task["load_data"]())
        accuracies.append(accuracy)
        return MetricRecord({"loss": loss})

    model = {"Net": task["make_model"], "load_data": task["load_data"]}
    client = defined("client", ClientApp=ClientApp, torch=torch, **model)
    records = {"ServerApp": ServerApp, "ArrayRecord": ArrayRecord, "ConfigRecord": ConfigRecord}
    server = defined("server", evaluate=evaluate, **records, **model)
    server["main"](HereGrid(client["app"]), None)
    assert len(accuracies) == 21
    assert accuracies[0] < 0.3
    assert accuracies[-1] > 0.7


def test_the_classic_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the clients of examples/classic-app, which do a part of their steps."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "classic-app")
    app, task = (importlib.import_module(name) for name in ("client_app", "task"))
    _, (x, y) = task.load_data()
    accuracies = []

    def evaluate(number: int, weights: Any, config: Any) -> Any:
        accuracies.append(float((task.probabilities(weights, x).argmax(axis=1) == y).mean()))
        return 0.0, {}

    flower = {"ServerAppComponents": ServerAppComponents, "ServerConfig": ServerConfig}
    flower |= {"ndarrays_to_parameters": ndarrays_to_parameters}
    made = defined("classic server", np=np, strategies=strategies, evaluate=evaluate, **flower)
    components = made["server_fn"](None)
    nodes = [SimpleNamespace(node_config={"partition-id": k, "num-partitions": 10}) for k in range(10)]
    clients = {str(k): app.client_fn(node) for k, node in enumerate(nodes)}
    history = classic(components.strategy, clients, components.config.num_rounds)
    assert {*history.metrics_distributed_fit["active"]} == {(t, 5) for t in range(1, 21)}
    assert accuracies[-1] > 0.7


def needed(name: str) -> str:
    """What a method turns out to need, with clients that know nothing of it."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        said = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": said}), reply_to=message)

    try:
        options = {"elasticity": 0.0} if name == "efl" else {}
        strategy = fedtide.strategy(name, fraction_evaluate=0.0, **options)
    except fedtide.SettingsError:
        return "are refused"
    start = ArrayRecord({"weight": Array(np.ones(3, np.float32))})
    try:
        strategy.start(HereGrid(app), start, num_rounds=3, train_config=ConfigRecord({"lr": 0.1}))
    except fedtide.SettingsError:
        return "the two lines"
    return "nothing"


@pytest.mark.parametrize("name", strategies.STRATEGIES)
def test_what_methods_need_of_the_clients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    identify(monkeypatch)
    (need,) = re.findall(rf"^\|.*`{name}`.* \| (.*) \|$", TABLE, re.MULTILINE)
    assert need.startswith(needed(name))
