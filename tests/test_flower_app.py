"""`fedtide.strategy` and `fedtide.client`: our methods with the clients of today's Flower apps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import SimpleClientManager
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Result,
)
from message_grid import NODES, HereGrid, HereProxy, classic, identify
from torch import nn

import fedtide
import strategies
from clients import single
from clients.memory.stores import ContextStore
from fedtide.client import Task
from fedtide.flower.strategy import PERSONAL

STEPS, RATE, ROUNDS = 4, 0.1, 6
ABSENT = {2: [0, 4], 3: [0, 1, 2], 5: range(10)}  # by round: nobody replies in round 5
CENTRES = np.random.default_rng(0).normal(size=(10, 12, 6)).astype(np.float32)
OPTIONS: dict[str, dict[str, Any]] = {"efl": {"elasticity": 0.0}}
METHODS = [name for name, kind in strategies.STRATEGIES.items() if kind.rule.name not in PERSONAL]
NEED_NOTHING = [
    name for name in METHODS if strategies.STRATEGIES[name].rule.name == "sgd" and name != "fedsgd"
]


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process make messages."""
    identify(monkeypatch)


class Net(nn.Module):
    """A network with a batch norm between two layers; `norm` has the counter that is no number to average."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lower, self.norm, self.upper = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.upper(torch.tanh(self.norm(self.lower(x))))


class Plain(Net):
    """The same without buffers, as its gradient is a function of its weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()  # type: ignore[assignment]


def batch(client: int, number: int, step: int) -> torch.Tensor:
    rows = np.random.default_rng([client, number, step]).choice(12, size=5, replace=False)
    return torch.from_numpy(CENTRES[client][rows])


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x[:, :2].sin()).square().mean() + model(x).square().mean() / 10


def train(model: nn.Module, optimizer: torch.optim.Optimizer, client: int, number: int) -> None:
    for step in range(steps_of(client)):
        optimizer.zero_grad()
        loss(model, batch(client, number, step)).backward()
        optimizer.step()


def steps_of(client: int) -> int:
    """Two clients never finish."""
    return STEPS - client % 3 if client < 6 else STEPS


def reply(message: Message, arrays: ArrayRecord, client: int, **numbers: float) -> Message:
    said = MetricRecord({"num-examples": 10 + client, "train_loss": 1.0, **numbers})
    return Message(RecordDict({"arrays": arrays, "metrics": said}), reply_to=message)


def app_of(fit: Callable[[Message, Context, int], Message]) -> ClientApp:
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        return fit(message, context, int(context.node_config["partition-id"]))

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        (array,) = list(message.content["arrays"].values())[-1:]
        said = MetricRecord({"bias": float(array.numpy()[0]), "num-examples": 5})
        return Message(RecordDict({"metrics": said}), reply_to=message)

    return app


def unchanged(kind: type[Net] = Net, **said: float) -> ClientApp:
    """Return an app as Flower's quickstart writes it."""

    def fit(message: Message, context: Context, client: int) -> Message:
        model, config = kind(), message.content["config"]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(model, torch.optim.SGD(model.parameters(), lr=config["lr"]), client, config["server-round"])
        return reply(message, ArrayRecord(model.state_dict()), client, **said)

    return app_of(fit)


def two_lines(kind: type[Net] = Net, rate: float | None = None) -> ClientApp:
    """Return the same with the client's part."""

    def fit(message: Message, context: Context, client: int) -> Message:
        model = kind()
        task = Task(message, context, model)
        optimizer = task.optimizer(torch.optim.SGD(model.parameters(), lr=rate or task.learning_rate))
        train(model, optimizer, client, message.content["config"]["server-round"])
        return task.reply(10 + client, {"train_loss": 1.0})

    return app_of(fit)


def start_of(kind: type[Net] = Net) -> ArrayRecord:
    return ArrayRecord(kind().state_dict())


def run(strategy: Any, app: ClientApp, kind: type[Net] = Net, rounds: int = ROUNDS, **how: Any) -> Result:
    grid = how.pop("grid", None) or HereGrid(app, silent=how.pop("silent", ABSENT))
    config = ConfigRecord({"lr": RATE})
    return strategy.start(grid, start_of(kind), num_rounds=rounds, **{"train_config": config, **how})


def flat(arrays: ArrayRecord) -> np.ndarray:
    """All numbers but the counters of batches."""
    return np.concatenate(
        [array.numpy().ravel() for key, array in arrays.items() if "num_batches" not in key]
    )


class Oracle(Client):
    """A client of the classic interface, with the gradient of the same loss."""

    def __init__(self, client: int) -> None:
        self.client, self.model = client, Plain()
        self.store = ContextStore(Context(1, 1, {}, RecordDict(), {}))

    def fit(self, ins: Any) -> Any:
        number, steps = ins.config["round"], count()

        def gradient(at: torch.Tensor) -> torch.Tensor:
            nn.utils.vector_to_parameters(at, self.model.parameters())
            self.model.zero_grad()
            loss(self.model, batch(self.client, number, next(steps))).backward()
            return torch.cat([p.grad.ravel() for p in self.model.parameters()])  # type: ignore[union-attr]

        done = min(steps_of(self.client), ins.config["local-steps"])
        answer, memory = single.fit(ins, gradient, 10 + self.client, self.store.load(), steps=done)
        if memory is not None:
            self.store.save(memory)
        return answer


VARIANTS = [
    *((name, OPTIONS.get(name, {})) for name in METHODS if name != "fedasync"),  # which goes by their order
    *((name, {"memory": "client"}) for name in ("mimic", "fedlaavg", "focus")),
    ("focus", {"gradient": "last"}),
    ("fednova", {"mu": 0.1}),
    ("fedavg", {"server_opt": "adam:rate=0.01"}),
    ("mifa", {"lr_schedule": "geometric:factor=0.9"}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_the_weights_are_those_of_our_own_clients(name: str, options: dict[str, Any]) -> None:
    """Every method: clients that miss rounds, do a part of their steps, and remember."""
    given = {"local_steps": STEPS, "num_rounds": ROUNDS, **options}
    arrays = [tensor.detach().numpy() for tensor in Plain().parameters()]
    expected = strategies.make(name, ndarrays_to_parameters(arrays), learning_rate=RATE, **given)
    classic(expected, {str(k): Oracle(k) for k in range(10)}, ROUNDS, ABSENT)

    given.pop("num_rounds")  # `start` knows it
    strategy = fedtide.strategy(name, fraction_evaluate=0.0, **given)
    run(strategy, two_lines(Plain), Plain)
    moved = np.abs(expected.weights - np.concatenate([a.ravel() for a in arrays])).max()
    assert moved > 1e-3
    np.testing.assert_allclose(
        strategy.strategy.weights, expected.weights, atol=2e-6 * max(1, moved), rtol=2e-5
    )


@pytest.mark.parametrize("app", [unchanged(), two_lines()])
def test_fedavg_is_flowers(app: ClientApp) -> None:
    """The same numbers under the same names; the counter of batches stays what it was."""
    theirs = run(FedAvg(min_available_nodes=10), app)
    ours = run(fedtide.strategy("fedavg", min_available_nodes=10), app)
    assert list(ours.arrays) == list(theirs.arrays)
    np.testing.assert_allclose(flat(ours.arrays), flat(theirs.arrays), rtol=1e-5, atol=1e-6)
    assert ours.arrays["norm.num_batches_tracked"].numpy() == 0
    for number, evaluated in theirs.evaluate_metrics_clientapp.items():
        assert ours.evaluate_metrics_clientapp[number]["bias"] == pytest.approx(evaluated["bias"], rel=1e-4)
    assert ours.train_metrics_clientapp[1]["train_loss"] == pytest.approx(1)
    assert ours.train_metrics_clientapp[3]["active"] == 7
    assert ours.train_metrics_clientapp[5]["active"] == 0


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_what_it_is_called_or_refused(name: str) -> None:
    """With clients that know nothing of it: in one line, at the first reply."""
    strategy = fedtide.strategy(name, fraction_evaluate=0.0, **OPTIONS.get(name, {}))
    if strategy.strategy.rule.name == "proximal" and not strategy.strategy.options.mu:  # type: ignore[attr-defined]
        run(strategy, unchanged())  # which is no rule at all
    elif strategy.strategy.needs_steps and name in NEED_NOTHING:
        with pytest.raises(ValueError, match=r"needs the number of local steps, and client .* 'steps'"):
            run(strategy, unchanged())
    elif name in NEED_NOTHING:
        assert run(strategy, unchanged()).train_metrics_clientapp[1]["active"] == 10
    else:
        with pytest.raises(
            ValueError, match=rf"^{name} needs clients that follow its rule '[\w-]+', and node "
        ):
            run(strategy, unchanged())


@pytest.mark.parametrize("said", [{"local_steps": STEPS}, {}])
def test_fednova_knows_the_steps_that_are_reported_or_the_same_for_all(said: dict[str, int]) -> None:
    """With neither it would be FedAvg, as Flower's quickstarts do epochs and report no steps."""

    def fit(message: Message, context: Context, client: int) -> Message:
        moved = {key: Array(a.numpy() + 1 + client) for key, a in message.content["arrays"].items()}
        return reply(message, ArrayRecord(moved), 0, **({} if said else {"steps": 1 + client}))

    start = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    strategy = fedtide.strategy("fednova", fraction_evaluate=0.0, **said)
    result = strategy.start(
        HereGrid(app_of(fit)), start, num_rounds=1, train_config=ConfigRecord({"lr": RATE})
    )
    # The mean of delta_k / a_k is 1 where s_k = delta_k = 1 + k, and the mean of delta_k is the mean of s_k.
    np.testing.assert_allclose(result.arrays["w"].numpy(), 5.5, rtol=1e-6)


def test_personal_models_are_refused_before_anything_is_trained() -> None:
    for name in ("apfl", "pfedme"):
        with pytest.raises(ValueError, match=f"{name}: its clients train a personal model"):
            fedtide.strategy(name)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"FedAvg is not derived from strategies\.FlexibleStrategy"):
        fedtide.strategy(FedAvg)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"initial_parameters: give the initial arrays to start\(\)"):
        fedtide.strategy("mimic", initial_parameters=None)
    with pytest.raises(ValueError, match="either clients_per_round or min_train_nodes"):
        fedtide.strategy("mimic", clients_per_round=3, min_train_nodes=7)
    with pytest.raises(ValueError, match=r"fraction_fit is an argument .* fraction_train, "):
        fedtide.strategy("mimic", fraction_fit=0.5)
    with pytest.raises(
        ValueError, match=r"there is no argument 'fraction_trian'; did you mean fraction_train\?"
    ):
        fedtide.strategy("mimic", fraction_trian=0.5)
    for name, arguments, line in (
        ("mimik", {}, "unknown strategy 'mimik'"),
        ("mimic", {"round_ends": 2}, "round_ends is for fedtide's own engine"),
        ("mimic", {"client_rule": "trsut"}, "client-rule is 'trsut'; choose one of checked, trust"),
        ("mimic", {"trace": "labels"}, "trace labels: it needs the clients' labels"),
        ("mimic", {"trace": "bernouli:p=0.5"}, "unknown trace 'bernouli'"),
        ("efl", {}, "efl: the clients of an app cannot compute Fisher information; give elasticity=0"),
    ):
        with pytest.raises(ValueError, match=line):
            fedtide.strategy(name, **arguments)
    with pytest.raises(
        ValueError, match="scaffold needs the clients' learning rate: put it into train_config"
    ):
        run(fedtide.strategy("scaffold"), two_lines(), train_config=ConfigRecord({}))
    with pytest.raises(ValueError, match="buffers: no floating-point array is called 'mask'"):
        run(fedtide.strategy("fedavg", buffers=["mask"]), unchanged())
    with pytest.raises(ValueError, match=r"learning-rate is 0\.0; it must be positive"):
        run(fedtide.strategy("fedavg"), unchanged(), train_config=ConfigRecord({"lr": 0.0}))
    waves = ArrayRecord({"bias": Array(np.zeros(2)), "waves": Array(np.zeros(3, np.complex64))})
    with pytest.raises(ValueError, match=r"array waves has complex numbers, .* with persistent=False$"):
        fedtide.strategy("mimic").start(HereGrid(unchanged()), waves)
    trees = ArrayRecord([np.frombuffer(b"", np.uint8)])  # as quickstart-xgboost begins
    with pytest.raises(ValueError, match=r"the initial arrays, \['0'\], have no weights: .* FedXgbBagging$"):
        fedtide.strategy("mimic").start(HereGrid(unchanged()), trees)


def test_the_rate_of_the_configuration_goes_before() -> None:
    """`learning_rate` is for apps whose configuration does not say it."""
    strategy = fedtide.strategy("scaffold", learning_rate=0.7)
    result = run(strategy, two_lines(Plain, rate=RATE), Plain, rounds=1)
    assert result.train_metrics_clientapp[1]["active"] == 10


def test_a_run_in_which_no_reply_counts_ends() -> None:
    """What is wrong with all of them is a mistake of the app, and not absence."""

    def more(message: Message, context: Context, client: int) -> Message:
        arrays = ArrayRecord({**message.content["arrays"], "head": Array(np.zeros(3))})
        return reply(message, arrays, client)

    def unnumbered(message: Message, context: Context, client: int) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    def integers(message: Message, context: Context, client: int) -> Message:
        arrays = {k: Array(a.numpy().astype(np.int64)) for k, a in message.content["arrays"].items()}
        return reply(message, ArrayRecord(arrays), client)

    def without_optimizer(message: Message, context: Context, client: int) -> Message:
        return Task(message, context, Net()).reply(10)

    for app, name, options, line in (
        (two_lines(), "fedavg", {"local_steps": 3}, "impossible number of steps 4 of 3"),
        (two_lines(rate=0.3), "scaffold", {}, "learning rate 0.1, and the steps had 0.3 on average"),
        (app_of(more), "mifa", {}, r"arrays are missing, \[\], or not known, \['head'\]"),
        (app_of(unnumbered), "mifa", {}, "0 MetricRecords where one is expected"),
        (app_of(integers), "mifa", {}, "array lower.weight is of type int64"),
        (app_of(without_optimizer), "fedavg", {}, "no step was done: give the optimizer to"),
        (app_of(without_optimizer), "scaffold", {}, "no step was done: give the optimizer to"),
    ):
        with pytest.raises(ValueError, match=f"{name}: no reply counts: that of .*: .*{line}"):
            run(fedtide.strategy(name, **options), app, silent={1: [*range(1, 6), 8]})


def test_a_run_in_which_nobody_is_there_goes_on() -> None:
    grid = HereGrid(unchanged(), failing={1: range(10)}, silent={2: range(10)})
    result = run(fedtide.strategy("mifa"), unchanged(), rounds=3, grid=grid)
    assert [found["active"] for found in result.train_metrics_clientapp.values()] == [0, 0, 10]


def test_a_checkpoint_of_another_method(tmp_path: Path) -> None:
    run(fedtide.strategy("fedavg", checkpoint=tmp_path), unchanged(), rounds=1)
    with pytest.raises(ValueError, match="the training that is kept there is fedavg, not fedau"):
        run(fedtide.strategy("fedau", checkpoint=tmp_path), unchanged())
    other = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    with pytest.raises(ValueError, match=f"checkpoint {tmp_path}: the state has weights of shape"):
        fedtide.strategy("fedavg", checkpoint=tmp_path).start(HereGrid(unchanged()), other)


def test_a_client_without_data_ends_no_run() -> None:
    def fit(message: Message, context: Context, client: int) -> Message:
        found = reply(message, message.content["arrays"], client, **({"steps": 2} if client else {}))
        found.content["metrics"]["num-examples"] = 10 if client else 0
        return found

    result = run(fedtide.strategy("fednova", fraction_evaluate=0.0), app_of(fit), rounds=1, silent={})
    assert result.train_metrics_clientapp[1]["active"] == 9


def test_as_many_clients_as_there_are() -> None:
    """`clients_per_round` is a limit, as in a simulation: who is away is not waited for."""
    strategy = fedtide.strategy("mifa", clients_per_round=50, fraction_evaluate=0.0)
    assert run(strategy, unchanged(), rounds=1, silent={}).train_metrics_clientapp[1]["active"] == 10


def test_a_client_may_be_trusted() -> None:
    with pytest.raises(ValueError, match="needs the number of local steps"):
        run(fedtide.strategy("scaffold", client_rule="trust"), unchanged())
    trusting = fedtide.strategy("scaffold", client_rule="trust", local_steps=STEPS)
    assert run(trusting, unchanged()).train_metrics_clientapp[1]["active"] == 10


def test_what_is_wrong_with_a_reply_costs_that_reply(caplog: pytest.LogCaptureFixture) -> None:
    """It is named once, with the node."""

    def fit(message: Message, context: Context, client: int) -> Message:
        arrays = message.content["arrays"]
        if client == 0:
            arrays = ArrayRecord({key: array for key, array in arrays.items() if key != "upper.bias"})
        if client == 1:
            raise RuntimeError("no disk")
        if client == 2:
            arrays = ArrayRecord({key: Array(array.numpy() * np.nan) for key, array in arrays.items()})
        answer = reply(message, arrays, client)
        if client == 3:
            answer.content["metrics"] = MetricRecord({"loss": 1.0})
        return answer

    with caplog.at_level(logging.WARNING, "flwr"):
        result = run(fedtide.strategy("mimic", fraction_evaluate=0.0), app_of(fit), Plain, silent={})
    assert [result.train_metrics_clientapp[t]["active"] for t in (1, ROUNDS)] == [6, 6]
    assert caplog.text.count(f"node {NODES[0]} takes no part: arrays are missing, ['upper.bias']") == 1
    assert caplog.text.count(f"node {NODES[1]} takes no part: ") == 1
    assert (
        caplog.text.count(f"the reply of client node {NODES[2]} does not count: weights are not finite") == 1
    )
    assert caplog.text.count(f"node {NODES[3]} takes no part: the MetricRecord has no 'num-examples'") == 1


def test_buffers_lie_anywhere() -> None:
    """Between the weights, as in a state_dict, they are averaged whatever the server's optimiser does."""
    result = run(fedtide.strategy("fedavg", server_opt="adam:rate=0.05"), unchanged(), rounds=12, silent={})
    assert (result.arrays["norm.running_var"].numpy() > 0).all()
    assert np.isfinite(flat(result.arrays)).all()


def test_clients_say_who_they_are() -> None:
    """A client that comes back as another node takes its place; its table has one row."""
    grid = HereGrid(two_lines(Plain), silent=ABSENT)
    still = fedtide.strategy("mifa", fraction_evaluate=0.0)
    run(still, two_lines(Plain), Plain, grid=grid)
    assert {*still.nodes.manager.all()} == {str(k) for k in range(10)}

    class Moving(HereGrid):
        def get_node_ids(self) -> list[int]:
            if self.asked == 2:
                self.nodes[7] = 7  # the number of a node is no name of a client
            return super().get_node_ids()

    moving = fedtide.strategy("mifa", fraction_evaluate=0.0)
    run(moving, two_lines(Plain), Plain, grid=Moving(two_lines(Plain), silent=ABSENT))
    np.testing.assert_allclose(moving.strategy.weights, still.strategy.weights, atol=1e-6)
    assert moving.strategy.roster.num_members == 10


def test_two_nodes_that_say_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def fit(message: Message, context: Context, client: int) -> Message:
        return reply(message, message.content["arrays"], client, **{"client-id": client % 9})

    with caplog.at_level(logging.WARNING, "flwr"):
        result = run(fedtide.strategy("mifa"), app_of(fit), silent={})
    assert "it says that it is client 0, as another node does" in caplog.text
    assert result.train_metrics_clientapp[1]["active"] == 9


class Late(HereGrid):
    """For the first questions there are only two nodes."""

    def get_node_ids(self) -> list[int]:
        return super().get_node_ids()[: None if self.asked > 3 else 2]


def test_no_round_is_burnt_while_nodes_are_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("fedtide.flower.nodes.sleep", waits.append)
    strategy = fedtide.strategy("mimic", min_available_nodes=10, fraction_evaluate=0.0)
    with caplog.at_level(logging.INFO, "flwr"):
        result = run(strategy, unchanged(), rounds=2, grid=Late(unchanged()))
    assert waits == [1, 1, 1]
    assert caplog.text.count("Waiting for nodes to connect: 2 connected (minimum required: 10)") == 1
    assert result.train_metrics_clientapp[1]["active"] == 10


def test_a_fraction_of_the_nodes() -> None:
    grid = HereGrid(unchanged())
    strategy = fedtide.strategy("fedau", fraction_train=0.35, min_train_nodes=1, fraction_evaluate=0.0)
    run(strategy, unchanged(), grid=grid)
    assert grid.sent == 3 * ROUNDS


def test_a_trace_says_who_is_there() -> None:
    asked: dict[int, list[int]] = {}

    def fit(message: Message, context: Context, client: int) -> Message:
        asked.setdefault(int(message.content["config"]["server-round"]), []).append(client)
        return reply(message, message.content["arrays"], client)

    strategy = fedtide.strategy("mifa", trace="round-robin:tau-max=3", fraction_evaluate=0.0)
    run(strategy, app_of(fit), silent={})
    trace = strategies_trace("round-robin:tau-max=3")
    nodes = sorted(NODES)
    for number, clients in asked.items():
        online = trace.round(number).online
        assert sorted(clients) == sorted(NODES.index(nodes[i]) for i in np.flatnonzero(online))
    with pytest.raises(ValueError, match="do a part of their work"):
        run(fedtide.strategy("mifa", trace="pools:first=3"), unchanged())


def test_a_trace_of_several() -> None:
    strategy = fedtide.strategy("mifa", trace="bernoulli:p=0.5+lost:p=0.5", fraction_evaluate=0.0)
    result = run(strategy, unchanged(), silent={}, rounds=8)
    assert 15 < sum(found["active"] for found in result.train_metrics_clientapp.values()) < 25  # type: ignore[misc]


def test_a_trace_goes_by_the_clients(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By those that were there at first, under whatever node number they come back, also after a resume."""
    asked: dict[int, set[int]] = {}

    def fit(message: Message, context: Context, client: int) -> Message:
        asked.setdefault(int(message.content["config"]["server-round"]), set()).add(client)
        return reply(message, message.content["arrays"], client, **{"client-id": client})

    def strategy(**more: Any) -> Any:
        return fedtide.strategy("mifa", trace="round-robin:tau-max=3", fraction_evaluate=0.0, **more)

    run(strategy(), app_of(fit), rounds=12, silent={})
    whole, asked = asked, {}
    run(strategy(checkpoint=tmp_path), app_of(fit), rounds=6, silent={})
    grid = HereGrid(app_of(fit))
    grid.nodes = [5 + node for node in NODES]
    run(strategy(checkpoint=tmp_path), app_of(fit), rounds=12, grid=grid)
    assert asked[7] == {*range(10)}  # nobody has said yet who it is
    assert [asked[number] for number in range(8, 13)] == [whole[number] for number in range(8, 13)]
    caplog.clear()
    run(strategy(), app_of(fit), rounds=5, grid=Late(app_of(fit)))
    assert caplog.text.count("is of the 2 clients that were there at first; others are always there") == 1


@pytest.mark.parametrize("renumbered", [0, 5])
def test_what_a_client_has_lost_is_said(
    renumbered: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new run has new contexts, mostly of other nodes: clients begin anew, and methods count with that."""
    grid = HereGrid(two_lines(Plain))
    for rounds in (2, 4):
        strategy = fedtide.strategy("fedlaavg", memory="client", checkpoint=tmp_path)
        run(strategy, two_lines(Plain), Plain, rounds=rounds, grid=grid)
        grid = HereGrid(two_lines(Plain))
        grid.nodes = [renumbered + node for node in NODES]
    assert caplog.text.count("has lost what it keeps for fedlaavg, and starts anew") == 10
    assert strategy.strategy.orphans == 10
    assert strategy.strategy.roster.num_members == 10


def test_a_round_is_for_whomever_the_trace_has_there() -> None:
    """Even if these are fewer than `min_train_nodes`: nobody else comes before the next round."""
    strategy = fedtide.strategy("mifa", trace="bernoulli:p=0.1", fraction_evaluate=0.0)
    result = run(strategy, unchanged(), silent={}, rounds=8)
    active = [found["active"] for found in result.train_metrics_clientapp.values()]
    assert len(active) == 8
    assert min(active) < 2  # type: ignore[type-var]


def test_metrics_of_some_clients_alone_are_left_out() -> None:
    """Their mean would count the others as 0; lists of different lengths have none."""

    def fit(message: Message, context: Context, client: int) -> Message:
        found = reply(message, message.content["arrays"], client)
        found.content["metrics"].update({"acc": 0.9} if client < 5 else {})
        found.content["metrics"]["by-class"] = [0.5] * (2 + client % 2)
        return found

    numbers = run(fedtide.strategy("mifa"), app_of(fit), rounds=1).train_metrics_clientapp[1]
    assert not {"acc", "by-class"} & numbers.keys()
    assert numbers["train_loss"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("method", "options"),
    [("mifa", {"lr_schedule": "geometric:factor=0.5"}), ("fedlaavg", {"weights": "loss"})],
)
def test_a_rate_that_changes_has_to_reach_the_clients(method: str, options: dict[str, Any]) -> None:
    strategy = fedtide.strategy(method, learning_rate=RATE, **options)
    with pytest.raises(ValueError, match=r"train_config.* 'lr'"):
        run(strategy, two_lines(rate=RATE), rounds=4, train_config=ConfigRecord())


def test_a_rate_that_the_app_changes_reaches_the_clients() -> None:
    """In `train_config`, between two rounds, as with Flower's own FedAvg; a schedule is a factor of it."""
    for options, last in (({}, 0.05), ({"lr_schedule": "geometric:factor=0.5"}, 0.0125)):
        rates, config = [], ConfigRecord({"lr": RATE})

        def fit(message: Message, context: Context, client: int, rates: list[float] = rates) -> Message:
            rates.append(message.content["config"]["lr"])
            return reply(message, message.content["arrays"], client)

        def halve(number: int, arrays: ArrayRecord, config: ConfigRecord = config) -> MetricRecord:
            if number < 2:
                config["lr"] = RATE / (1 + number)
            elif "lr" in config:
                del config["lr"]  # no change
            return MetricRecord({})

        strategy = fedtide.strategy("mifa", fraction_evaluate=0.0, **options)
        run(strategy, app_of(fit), rounds=3, silent={}, train_config=config, evaluate_fn=halve)
        assert rates[0] == RATE
        assert rates[-1] == pytest.approx(last)


def test_the_two_lines_find_a_rate_that_only_the_server_has() -> None:
    strategy = fedtide.strategy("fedavg", learning_rate=RATE, fraction_evaluate=0.0)
    ours = run(strategy, two_lines(Plain), Plain, rounds=2, silent={}, train_config=ConfigRecord())
    theirs = run(
        fedtide.strategy("fedavg", fraction_evaluate=0.0), two_lines(Plain), Plain, rounds=2, silent={}
    )
    np.testing.assert_allclose(flat(ours.arrays), flat(theirs.arrays), atol=1e-7)
    free = two_lines(Plain, rate=RATE / 2)  # another one, which no rule of FedAvg forbids
    numbers = run(strategy, free, Plain, rounds=1, silent={}, train_config=ConfigRecord())
    assert numbers.train_metrics_clientapp[1]["active"] == 10


@pytest.mark.parametrize(("method", "options"), [("fedexp", {}), ("fedacg", {}), ("fedprox", {"mu": 0.0})])
def test_methods_without_a_rule_need_no_rate(method: str, options: dict[str, Any]) -> None:
    strategy = fedtide.strategy(method, fraction_evaluate=0.0, **options)
    config = ConfigRecord({"epochs": 1})
    app = app_of(lambda message, context, client: reply(message, message.content["arrays"], client))
    assert (
        run(strategy, app, rounds=1, silent={}, train_config=config).train_metrics_clientapp[1]["active"]
        == 10
    )


def test_a_rate_that_changes_reaches_clients_that_follow_a_rule() -> None:
    """It is in their task, so that `train_config` need not have it."""
    strategy = fedtide.strategy("scaffold", learning_rate=RATE, lr_schedule="geometric:factor=0.5")
    found = run(strategy, two_lines(Plain), Plain, rounds=3, silent={}, train_config=ConfigRecord())
    assert [numbers["active"] for numbers in found.train_metrics_clientapp.values()] == [10, 10, 10]


def test_a_checkpoint_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = fedtide.strategy("mifa", checkpoint=tmp_path / "new" / "state")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(strategy._store, "save", full)
    assert run(strategy, unchanged(), rounds=2, silent={}).train_metrics_clientapp[2]["active"] == 10
    assert caplog.text.count("not kept, the checkpoint before it stays: [Errno 28]") == 2


def strategies_trace(text: str) -> Any:
    from fedtide.base.specs import bind
    from traces import TRACES

    return bind("trace", TRACES, text).build(10, 0)


@pytest.mark.parametrize("name", ["mimic", "scaffold", "feddyn", "fedacg"])
def test_a_checkpoint_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = fedtide.strategy(name)
    app, grid = two_lines(Plain), HereGrid(two_lines(Plain), silent=ABSENT)
    at_once = run(whole, app, Plain, evaluate_fn=bias, grid=grid)
    grid = HereGrid(app, silent=ABSENT)  # whose nodes keep their contexts
    first = fedtide.strategy(name, checkpoint=tmp_path / "state")
    first.num_rounds = ROUNDS
    run(first, app, Plain, rounds=3, grid=grid)
    second = fedtide.strategy(name, checkpoint=tmp_path / "state")
    resumed = run(second, app, Plain, evaluate_fn=bias, grid=grid)
    np.testing.assert_array_equal(flat(resumed.arrays), flat(at_once.arrays))
    assert [*resumed.train_metrics_clientapp] == [4, 5, 6]
    assert resumed.evaluate_metrics_serverapp[6] == at_once.evaluate_metrics_serverapp[6]
    again = run(fedtide.strategy(name, checkpoint=tmp_path / "state"), app, Plain)
    np.testing.assert_array_equal(flat(again.arrays), flat(at_once.arrays))


def test_a_training_that_is_over_still_has_its_model(tmp_path: Path) -> None:
    done = run(fedtide.strategy("fedacg", checkpoint=tmp_path), two_lines(Plain), Plain, rounds=2)
    again = run(fedtide.strategy("fedacg", checkpoint=tmp_path), two_lines(Plain), Plain, rounds=0)
    np.testing.assert_array_equal(flat(again.arrays), flat(done.arrays))


def test_a_second_start_is_a_second_training() -> None:
    strategy = fedtide.strategy("mimic", fraction_evaluate=0.0)
    once, again = (flat(run(strategy, unchanged(Plain), Plain).arrays) for _ in range(2))
    np.testing.assert_array_equal(once, again)


def bias(number: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"bias": float(arrays["upper.bias"].numpy()[0]), "round": number})


def test_privacy_of_the_message_api() -> None:
    """Flower's wrapper clips and adds noise; the method goes on from the noised weights."""
    inner = fedtide.strategy("scheme-c", fraction_evaluate=0.0)
    private = DifferentialPrivacyServerSideFixedClipping(inner, 0.5, 1.0, num_sampled_clients=10)
    result = run(private, unchanged(Plain), Plain, rounds=3, silent={})
    noised = flat(result.arrays)
    assert (noised - inner.strategy.weights).std() == pytest.approx(0.05, rel=0.35)
    inner.configure_train(4, result.arrays, ConfigRecord({"lr": RATE}), HereGrid(unchanged(Plain)))
    np.testing.assert_array_equal(inner.strategy.weights.astype(np.float32), noised.astype(np.float32))
    for method, options in (("fedacg", {}), ("fedavg", {"server_opt": "nesterov"})):
        ahead = fedtide.strategy(method, fraction_evaluate=0.0, **options)
        private = DifferentialPrivacyServerSideFixedClipping(ahead, 0.5, 1.0, num_sampled_clients=10)
        with pytest.raises(ValueError, match=f"{method}: inside another strategy, .* not its model"):
            run(private, unchanged(Plain), Plain, rounds=3, silent={})


def test_without_pytorch() -> None:
    """Least squares by `task.step`: the same as in the classic interface."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(10, 20, 3)), rng.normal(size=(10, 20))

    def fit(message: Message, context: Context, client: int) -> Message:
        task = Task(message, context)
        for _ in range(STEPS):
            error = x[client] @ task.arrays["w"] + task.arrays["b"] - y[client]
            gradients = {"w": x[client].T @ error / 20, "b": error.mean(keepdims=True)}
            task.step(gradients, task.learning_rate)
        return task.reply(20)

    arrays = ArrayRecord({"w": Array(np.zeros(3)), "b": Array(np.zeros(1))})
    strategy = fedtide.strategy("scaffold", fraction_evaluate=0.0)
    config = ConfigRecord({"lr": RATE})
    result = strategy.start(HereGrid(app_of(fit)), arrays, num_rounds=200, train_config=config)
    ones = np.concatenate([x.reshape(-1, 3), np.ones((200, 1))], axis=1)
    best = np.linalg.lstsq(ones, y.ravel(), rcond=None)[0]
    np.testing.assert_allclose(flat(result.arrays), best, atol=1e-6)


def of_several(how: Callable[[Plain, Task], list[torch.optim.Optimizer]]) -> ClientApp:
    """Return an app whose steps are those of several optimizers, of which the task has the last."""

    def fit(message: Message, context: Context, client: int) -> Message:
        model = Plain()
        task = Task(message, context, model)
        optimizers = how(model, task)
        task.optimizer(optimizers[-1])
        for step in range(STEPS):
            model.zero_grad()
            loss(model, batch(client, message.content["config"]["server-round"], step)).backward()
            for optimizer in optimizers:
                optimizer.step()
        return task.reply(10 + client)

    return app_of(fit)


def sgd(part: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(part.parameters(), lr=rate)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedprox"])
def test_steps_of_other_optimizers_are_parts_of_the_step(name: str) -> None:
    options = {"mu": 0.1} if name == "fedprox" else {}
    at_once = of_several(lambda model, task: [sgd(model, task.learning_rate)])
    apart = of_several(
        lambda model, task: [sgd(part, task.learning_rate) for part in (model.lower, model.upper)]
    )
    one, several = (run(fedtide.strategy(name, **options), app, Plain) for app in (at_once, apart))
    np.testing.assert_allclose(flat(several.arrays), flat(one.arrays), atol=1e-6)
    both = of_several(lambda model, task: [task.optimizer(sgd(model.lower, 0.1)), sgd(model.upper, 0.1)])
    with pytest.raises(ValueError, match="a task counts the steps of one optimizer"):
        run(fedtide.strategy(name, **options), both, Plain)


def test_what_is_done_to_the_weights_after_a_step_stays() -> None:
    """Such as a projection."""

    def fit(message: Message, context: Context, client: int) -> Message:
        model = Plain()
        task = Task(message, context, model)
        optimizer = task.optimizer(sgd(model, task.learning_rate))
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, batch(client, 1, step)).backward()
            optimizer.step()
            with torch.no_grad():
                for tensor in model.parameters():
                    tensor.clamp_(-0.1, 0.1)
        return task.reply(10 + client)

    for name, options in (("fedprox", {"mu": 0.1}), ("fedavg", {})):
        result = run(fedtide.strategy(name, **options), app_of(fit), Plain, silent={})
        assert np.abs(flat(result.arrays)).max() < 0.1 + 1e-6


@pytest.mark.parametrize("name", ["feddyn", "scaffold", "ghbm"])
def test_a_model_of_another_type_than_the_messages(name: str) -> None:
    """Its client keeps its memory in that type, and finds it."""

    def fit(message: Message, context: Context, client: int) -> Message:
        model = Plain().double()
        task = Task(message, context, model)
        optimizer = task.optimizer(sgd(model, task.learning_rate))
        for step in range(steps_of(client)):
            optimizer.zero_grad()
            number = message.content["config"]["server-round"]
            loss(model, batch(client, number, step).double()).backward()
            optimizer.step()
        return task.reply(10 + client)

    double, usual = (run(fedtide.strategy(name), app, Plain) for app in (app_of(fit), two_lines(Plain)))
    assert double.arrays["lower.weight"].numpy().dtype == np.float32
    np.testing.assert_allclose(flat(double.arrays), flat(usual.arrays), atol=1e-5)


def test_several_rates_are_no_matter_to_a_method_without_a_rule() -> None:
    app = of_several(
        lambda model, task: [
            torch.optim.SGD(
                [{"params": model.lower.parameters()}, {"params": model.upper.parameters(), "lr": 1}], RATE
            )
        ]
    )
    assert run(fedtide.strategy("mifa"), app, Plain).train_metrics_clientapp[1]["active"] == 10
    with pytest.raises(ValueError, match=r"the optimizer has several learning rates, \[0.1, 1.0\]"):
        run(fedtide.strategy("scaffold"), app, Plain)


@pytest.fixture
def message() -> Message:
    content = RecordDict({"arrays": start_of(), "config": ConfigRecord({"lr": RATE})})
    return Message(content, dst_node_id=1, message_type="train")


def test_a_model_that_does_not_fit(message: Message) -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(ValueError, match=r"the message has the arrays \['lower.weight', .*\], and the model"):
        Task(message, context, Plain())
    wide = Net()
    wide.lower = nn.Linear(7, 5)
    with pytest.raises(ValueError, match=r"array lower.weight has shape \(5, 6\), and the model \(5, 7\)"):
        Task(message, context, wide)
    with pytest.raises(ValueError, match="has none of the parameters of the task's model"):
        Task(message, context, Net()).optimizer(torch.optim.SGD(Net().parameters(), lr=1))


def test_buffers_are_those_that_the_model_has_in_the_end(message: Message) -> None:
    """`to` makes others, as in quickstarts that move a model after its weights are loaded."""
    model, context = Net(), Context(1, 1, {}, RecordDict(), {})
    task = Task(message, context, model)
    model.double()
    optimizer = task.optimizer(torch.optim.SGD(model.parameters(), lr=RATE))
    loss(model, batch(0, 1, 0).double()).backward()
    optimizer.step()
    sent = task.reply(10).content["arrays"]
    np.testing.assert_allclose(sent["norm.running_mean"].numpy(), model.norm.running_mean, rtol=1e-6)
    assert sent["norm.running_mean"].numpy().any()


def test_what_a_rule_cannot_follow() -> None:
    def moved(message: Message, context: Context, client: int) -> Message:
        model = Plain()
        task = Task(message, context, model)
        task._y = task._y.to("meta")  # as if the model had been there: none moves where there is no GPU
        task.optimizer(torch.optim.SGD(model.parameters(), lr=RATE))
        raise AssertionError

    def resting(message: Message, context: Context, client: int) -> Message:
        model = Plain()
        optimizer = Task(message, context, model).optimizer(torch.optim.SGD(model.parameters(), lr=0.0))
        train(model, optimizer, client, 1)
        raise AssertionError

    for fit, says in ((moved, "has moved to another device"), (resting, "learning rate 0 has no gradient")):
        with pytest.raises(ValueError, match=says):
            run(fedtide.strategy("scaffold"), app_of(fit), Plain)


def test_arrays_that_are_not_finite_are_named() -> None:
    arrays = ArrayRecord({**start_of(), "mask": Array(np.full(3, -np.inf, np.float32))})
    grid = HereGrid(unchanged())
    with pytest.raises(ValueError, match=r"array mask has numbers that are not finite.*buffers=\['mask'\]"):
        fedtide.strategy("fedavg").start(grid, arrays, train_config=ConfigRecord({"lr": RATE}))


# The classic interface


class Stock(NumPyClient):
    """Knows nothing of our methods."""

    def fit(self, parameters: Any, config: Any) -> Any:
        return [array + config.get("by", 1.0) for array in parameters], 10, {"seen": config.get("by", 0.0)}


def stock(strategy: Any, number: int = 10, rounds: int = 2) -> Any:
    return classic(strategy, {str(k): Stock().to_client() for k in range(number)}, rounds)


def test_arguments_of_flowers_fedavg() -> None:
    def mean(found: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        return {"seen": sum(told["seen"] for _, told in found) / len(found), "replies": len(found)}

    strategy = strategies.make(
        "mifa",
        ndarrays_to_parameters([np.zeros(2, np.float32)]),
        fraction_fit=0.35,
        min_fit_clients=2,
        min_available_clients=10,
        on_fit_config_fn=lambda number: {"by": 2.0 * number},
        fit_metrics_aggregation_fn=mean,
    )
    history = stock(strategy)
    assert history.metrics_distributed_fit["seen"] == [(1, 2.0), (2, 4.0)]
    assert history.metrics_distributed_fit["replies"] == [(1, 3), (2, 3)]
    taken = strategies.make(
        "mifa", ndarrays_to_parameters([np.zeros(2)]), on_fit_config_fn=lambda number: {"batch-size": 32}
    )
    with pytest.raises(ValueError, match=r"on_fit_config_fn gives 'batch-size', .* batch_size="):
        stock(taken)
    with pytest.raises(ValueError, match="give either clients_per_round, or fraction_fit"):
        strategies.make("mifa", ndarrays_to_parameters([np.zeros(2)]), fraction_fit=0.5, clients_per_round=3)


def test_clients_of_the_classic_interface_say_their_rule_too() -> None:
    for trust in ("checked", "trust"):
        strategy = strategies.make(
            "scaffold", ndarrays_to_parameters([np.zeros(2)]), client_rule=trust, local_steps=2
        )
        if trust == "trust":
            stock(strategy)
            continue
        with pytest.raises(
            ValueError, match=r"^Scaffold needs clients that follow its rule 'corrected', and client"
        ):
            stock(strategy)


def test_a_round_waits_for_clients() -> None:
    manager = SimpleClientManager()
    strategy = strategies.make("mifa", ndarrays_to_parameters([np.zeros(2)]), min_available_clients=2)
    proxies = [HereProxy(str(k), Stock().to_client()) for k in range(2)]
    timers = [Timer(0.3 * k, manager.register, [proxy]) for k, proxy in enumerate(proxies)]
    for timer in timers:
        timer.start()
    assert len(strategy.configure_fit(1, strategy.initialize_parameters(manager), manager)) == 2
