"""Frozen weights: they are not sent, remembered or changed, and are the same everywhere."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedtide
from clients.gradients.batches import Batch
from clients.gradients.flat import FlatModel, as_tensor, exchanged
from clients.gradients.oracles import ORACLES, choose
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import ClientEnvironment, VirtualClients
from fedtide.base.contract import FitConfig
from fedtide.config import Settings
from fedtide.engine.experiment import prepare
from fedtide.engine.memory_check import check_fits
from fedtide.engine.run import simulate
from fedtide.plan import Plan
from fedtide.tasks import PartitionedData

RNG = torch.Generator().manual_seed(0)  # one draw in a hundred has the checksum of 1.01 times itself
# As if it were a file of pretrained weights
FROZEN = {"weight": torch.randn(12, 64, generator=RNG) / 8, "bias": torch.randn(12, generator=RNG) / 8}
SMALL: dict[str, Any] = {"num_clients": 4, "num_rounds": 3, "local_steps": 3, "engine": "inline"}
SMALL |= {"client_gpus": 0.0, "trace": "bernoulli:p=0.7", "report": "none"}


def head(input_shape: tuple[int, ...], num_outputs: int, *, norm: bool = True) -> nn.Module:
    """A frozen body with BatchNorm and dropout, and a head."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU())
    if norm:
        body.extend([nn.BatchNorm1d(12), nn.Dropout(0.5)])
    return nn.Sequential(body.requires_grad_(False), nn.Linear(12, num_outputs))


def bias(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """A sequence of which weights at the beginning, in the middle and within a layer are frozen."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, num_outputs)
    )
    for tensor in (*model[1].parameters(), model[3].weight, model[4].bias):
        tensor.requires_grad_(False)
    return model


def pretrained(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    model = head(input_shape, num_outputs, norm=False)
    model[0][1].load_state_dict(FROZEN)
    return model


def nothing(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_outputs)).requires_grad_(False)


@pytest.mark.parametrize("make", [bias, head])
def test_every_oracle_differentiates_what_is_trained(make: Callable[..., nn.Module]) -> None:
    """Against autograd on a copy without any frozen weights; those that cannot do it refuse."""
    torch.default_generator.manual_seed(3)
    module = make((64,), 5).double()
    model, rng = FlatModel(module), np.random.default_rng(1)
    x, y = rng.normal(size=(2, 6, 64)), rng.integers(5, size=(2, 6))
    own = model.vector + 0.1 * torch.from_numpy(rng.normal(size=(2, len(model.vector))))
    expected = []
    for row, inputs, targets in zip(own, x, y, strict=True):
        model.load(row)
        trained = [p for p in module.parameters() if p.requires_grad]
        loss = nn.functional.cross_entropy(module(as_tensor(inputs)), as_tensor(targets))
        expected.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)]))
    batch = Batch(as_tensor(x), as_tensor(y), torch.full((2, 6), 1 / 6, dtype=torch.double), np.full(2, 6))
    can = set()
    for name, oracle in ORACLES.items():
        try:
            gradients, _ = oracle(model).gradient(own.clone(), batch)
        except ValueError:
            continue
        can.add(name)
        torch.testing.assert_close(gradients, torch.stack(expected))
    assert can == {"loop", "vmap"}
    assert choose(model, (x[0], y[0])).cohort == "loop"
    diagonal = model.fisher(own[0], (as_tensor(x[0]), as_tensor(y[0])))
    assert diagonal.shape == model.vector.shape
    assert diagonal.min() >= 0 < diagonal.max()


def test_a_frozen_part_stays_as_it_is_and_is_not_sent() -> None:
    torch.default_generator.manual_seed(0)
    model = FlatModel(head((64,), 5))
    assert [*exchanged(model.module)] == ["1.weight", "1.bias"]
    assert (model.num_trainable, model.num_buffers, model.num_frozen) == (65, 0, 64 * 12 + 12 + 24)
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    x, y = torch.randn(20, 64), torch.arange(20) % 5
    for _ in range(2):
        gradient, _ = model.gradient(model.vector, (x, y))
        model.vector -= gradient
        model.module.eval()
        model.train()
    after = model.module.state_dict()
    assert {n for n in before if not torch.equal(before[n], after[n])} == {"1.weight", "1.bias"}
    assert not model.draws(x)  # dropout is off in the frozen part
    assert torch.equal(model.module(x), model.module.eval()(x))


def test_buffers_of_parts_that_train_are_sent() -> None:
    model = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.BatchNorm1d(4), nn.Linear(4, 2))
    sent = ["1.weight", "1.bias", "2.weight", "2.bias", "1.running_mean", "1.running_var"]
    assert [*exchanged(model)] == sent


@pytest.mark.parametrize("method", ["fedavg", "mimic", "apfl", "efl", "mimic:memory=client"])
def test_a_run_sends_and_remembers_the_head_alone(method: str, tmp_path: Path) -> None:
    settings = Settings(**SMALL, strategy=method, model="test_frozen.head", seed=2)
    _, folder, ended = simulate(Plan.of(settings), tmp_path / "run")
    assert [a.shape for a in ended.arrays] == [(10, 12), (10,)]
    assert ended.summary["weights"] == 130
    assert ended.summary["frozen_weights"] == 804
    assert ended.summary["state_bytes"] < 804 * 8 * (1 + ("mimic" in method))
    rounds = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()][1:]
    assert not any(record["failed"].values() and "frozen" in str(record["failed"]) for record in rounds)
    if method == "fedavg":
        assert [r["bytes_down"] for r in rounds] == [len(r["selected"]) * 130 * 4 for r in rounds]
        assert [r["bytes_up"] for r in rounds] == [len(r["active"]) * 130 * 4 for r in rounds]


def test_the_whole_model_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fedtide.run(**SMALL, model="test_frozen.pretrained", run_dir=str(tmp_path))
    state = load_file(run.path / "model.safetensors")
    assert torch.equal(state["0.1.weight"], FROZEN["weight"])
    np.testing.assert_array_equal(state["1.weight"], run.weights[0])
    plain = head((64,), 10, norm=False)
    plain.load_state_dict(state)
    monkeypatch.setitem(FROZEN, "weight", torch.zeros(12, 64))  # the file of pretrained weights is gone
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), run.model().parameters(), strict=True))
    assert not (fedtide.run(**SMALL, run_dir=str(tmp_path)).path / "model.safetensors").exists()


def test_a_resumed_run_needs_the_same_frozen_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SMALL, "strategy": "mifa", "model": "test_frozen.pretrained", "checkpoint_every": 1}
    whole = simulate(Plan.of(Settings(**{**settings, "num_rounds": 6})), tmp_path / "whole")[2]
    simulate(Plan.of(Settings(**settings)), tmp_path / "run")
    more = Settings(**{**settings, "num_rounds": 6, "resume": str(tmp_path / "run")})
    assert simulate(Plan.of(more))[2].summary["weights_sha256"] == whole.summary["weights_sha256"]
    monkeypatch.setitem(FROZEN, "weight", FROZEN["weight"] + 0.1)
    with pytest.raises(ValueError, match="frozen weights are not those that the run began with"):
        simulate(Plan.of(Settings(**{**settings, "num_rounds": 7, "resume": str(tmp_path / "run")})))


def test_a_client_with_other_frozen_weights_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(**SMALL, model="test_frozen.pretrained")
    experiment = prepare(Plan.of(settings))
    checksum = experiment.initial.layout.frozen_checksum
    assert checksum
    config = FitConfig(round=1, local_steps=1, batch_size=4, learning_rate=0.1, frozen_checksum=checksum)
    assert FitConfig.from_wire(config.to_wire()) == config
    assert isinstance(experiment.data, PartitionedData)

    def reason() -> str:
        clients = VirtualClients(ClientEnvironment(experiment.data, experiment.build_model, 0))
        broadcast, job = Broadcast(experiment.initial.vector), Job(1, [], config, 1.0)
        fits, scores = clients.fit(broadcast, [job]).failures, clients.evaluate(broadcast, [job]).failures
        assert fits == scores
        return fits[0].reason if fits else ""

    weight = FROZEN["weight"]
    monkeypatch.setitem(FROZEN, "weight", weight * (1 + 1e-6))  # another processor
    assert not reason()
    for other in (weight * 1.01, weight.flip(0), torch.randn(12, 64, generator=RNG), torch.zeros(12, 64)):
        monkeypatch.setitem(FROZEN, "weight", other)
        assert "not those of the server" in reason()


def test_what_cannot_be_trained_is_one_line(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sim

    with pytest.raises(SystemExit, match="2"):
        sim.main(["--model", "test_frozen.nothing", "--num-rounds", "1", "--client-gpus", "0"])
    assert "no weights that require a gradient" in capsys.readouterr().err
    large = nn.Sequential(nn.Linear(1000, 10).requires_grad_(False), nn.Linear(10, 2))
    monkeypatch.setattr("fedtide.base.memory.total_memory", lambda: 200_000)
    check_fits("large", lambda: large)  # 3 x 40 kB and 8 x 88 bytes
    with pytest.raises(ValueError, match="that needs"):
        check_fits("large", lambda: large.requires_grad_(True))
