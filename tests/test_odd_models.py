"""Models that compute with more than the parameters of their layers train as a plain loop of PyTorch does.

Fast gradients step aside: for what a model consists of, and where a comparison with autograd shows it.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from odd_models import ODD
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torchvision.models import SqueezeNet

import fedtide
from clients.draws import client_rng, draw_batches
from clients.gradients import linear_sgd
from clients.gradients.flat import FlatModel
from clients.gradients.oracles import ORACLES, choose
from clients.simulated.virtual import ClientEnvironment, VirtualClients
from fedtide.base.errors import SettingsError
from fedtide.tasks import some_examples
from fedtide.tasks.models import MODELS

CLIENTS, ROUNDS, STEPS, BATCH, RATE = 3, 3, 4, 5, 0.1
RUN: dict[str, Any] = {
    "strategy": "fedavg",
    "trace": "always",
    "num_clients": CLIENTS,
    "num_rounds": ROUNDS,
    "local_steps": STEPS,
    "batch_size": BATCH,
    "learning_rate": RATE,
}
FAST = {
    "named": "stacked",
    "narrowed": "compiled",
    "subclass_of_sequence": "compiled",
}  # sequences of plain layers, whatever else is odd


def by_a_plain_loop(experiment: Any) -> NDArray[Any]:
    """FedAvg as anybody would write it with PyTorch; every client begins with the counts of a new model."""
    data, seed = experiment.data, experiment.settings.seed
    first = experiment.build_model()
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    shares = data.sizes / data.sizes.sum()
    for server_round in range(1, ROUNDS + 1):
        states = []
        for client in range(CLIENTS):
            model = experiment.build_model().train()
            model.load_state_dict(state)
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            optimizer = torch.optim.SGD(trained, RATE)
            draws = client_rng(seed, b"dropout", client, server_round).integers(2**63, size=STEPS)
            rng = client_rng(seed, b"batches", client, server_round)
            batches = draw_batches(int(data.sizes[client]), BATCH, STEPS, rng).split()
            for rows, draw in zip(batches, draws.tolist(), strict=True):
                x, y = map(torch.from_numpy, data.examples(client, rows))
                torch.manual_seed(draw)
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            states.append(model.state_dict())
        for name, tensor in state.items():
            if tensor.is_floating_point():
                parts = zip(shares.tolist(), states, strict=True)
                state[name] = torch.stack([share * own[name] for share, own in parts]).sum(0)
    trained = [name for name, weight in first.named_parameters() if weight.requires_grad]
    buffers = [name for name, buffer in first.named_buffers() if buffer.is_floating_point()]
    return np.concatenate([state[name].numpy().ravel() for name in [*trained, *buffers]])


def assert_same(weights: NDArray[Any], expected: NDArray[Any], experiment: Any) -> None:
    """They differ by less than a thousandth of what was trained: a ReLU at zero may be on or off."""
    moved = np.linalg.norm(expected - experiment.initial.vector)
    assert np.linalg.norm(weights - expected) < 1e-3 * moved


@pytest.mark.parametrize("name", ODD)
def test_a_model_trains_as_in_a_plain_loop(name: str, simulate: Callable[..., Any]) -> None:
    """With the gradients that are chosen, with autograd's, and with any others that accept the model."""
    run = simulate(**RUN, model=f"odd_models.{name}")
    expected = by_a_plain_loop(run.experiment)
    assert run.experiment.settings.cohort == FAST.get(name, "loop")
    assert "in place of" not in run.experiment.hint
    assert_same(run.weights, expected, run.experiment)
    examples = some_examples(run.experiment.data)
    for cohort in {*ORACLES} - {run.experiment.settings.cohort}:
        with suppress(SettingsError):
            choose(FlatModel(run.experiment.build_model()), examples, cohort)
            assert cohort in ("loop", "vmap") or name in FAST
            again = simulate(**RUN, model=f"odd_models.{name}", cohort=cohort)
            assert_same(again.weights, expected, run.experiment)


@pytest.mark.parametrize("model", ["logistic", "mlp:hidden=8", "lenet", "cnn"])
def test_gradients_that_differ_step_aside(
    model: str,
    simulate: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A class that was changed has the type and the parameters of any other: only the comparison sees it."""
    fast = simulate(**RUN, model=model).experiment.settings.cohort
    plain = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda layer, x: 1.01 * plain(layer, x))
    run = simulate(**RUN, model=model)
    assert run.experiment.settings.cohort == "loop"
    assert run.experiment.hint.startswith(
        f"cohort: loop in place of {fast}: its gradients are not those of autograd"
    )
    assert_same(run.weights, by_a_plain_loop(run.experiment), run.experiment)
    with pytest.raises(ValueError, match=f"^cohort {fast}: .* not those of autograd: .*; use cohort loop$"):
        simulate(**RUN, model=model, cohort=fast)
    # The clients of `flwr run` and devices choose for themselves.
    client = VirtualClients(ClientEnvironment(run.experiment.data, run.experiment.build_model, 0))
    assert type(client.oracle) is type(ORACLES["loop"](client.model))
    assert f"in place of {fast}" in caplog.text


def test_compiled_steps_are_compared_as_well(
    simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have a backward pass of their own."""
    train = linear_sgd.train

    def wrong(work: Any, *others: Any) -> None:
        train(work, *others)
        work.y[:, 0] += 0.01

    monkeypatch.setattr(linear_sgd, "train", wrong)
    assert simulate(**RUN).experiment.settings.cohort == "loop"


def test_a_hook_of_all_modules_is_seen(simulate: Callable[..., Any]) -> None:
    hook = register_module_forward_hook(lambda part, inputs, outputs: outputs * 1.5)
    try:
        assert simulate(**RUN).experiment.settings.cohort == "loop"
    finally:
        hook.remove()


@pytest.mark.parametrize("model", ["logistic", "cnn", "mlp:hidden=8"])
def test_a_comparison_leaves_no_trace(model: str) -> None:
    """Neither in the generator nor in the model."""
    module = MODELS[model.partition(":")[0]]((1, 8, 8), 10)
    flat = FlatModel(module)
    x, y = np.random.default_rng(0).normal(size=(7, 1, 8, 8)).astype(np.float32), np.arange(7)
    before, state = flat.vector.clone(), torch.get_rng_state()
    for cohort in ("auto", "vmap"):
        choose(flat, (x, y), cohort)
    assert torch.equal(flat.vector, before)
    assert next(module.parameters()).data_ptr() == flat.vector.data_ptr()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", ["nan", "one", "converged", "half", "double"])
def test_what_cannot_be_told_apart_from_rounding_is_accepted(kind: str) -> None:
    """Examples that are not finite, a single one, and those that the model fits perfectly."""
    module = MODELS["mlp"]((1, 8, 8), 10)
    x, y = np.random.default_rng(0).normal(size=(7, 1, 8, 8)).astype(np.float32), np.arange(7)
    if kind == "nan":
        x[0, 0, 0, 0] = np.nan
    if kind == "one":
        x, y = x[:1], y[:1]
    if kind == "converged":
        optimizer = torch.optim.SGD(module.parameters(), 0.5)
        for _ in range(3000):
            optimizer.zero_grad()
            functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            optimizer.step()
    if kind in ("half", "double"):
        module, x = getattr(module, kind)(), x.astype({"half": np.float16, "double": np.float64}[kind])
    assert choose(FlatModel(module), (x, y)).cohort == ("stacked" if kind == "half" else "compiled")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pruned", "tensor_hook", "buffer_set_anew", "cumulative_batch_norm"])
def test_workers_of_ray_train_alike(name: str, simulate: Callable[..., Any], ray_cluster: None) -> None:
    """To the last bit: no client has what another has left in the model."""
    run = {**RUN, "num_clients": 7, "clients_per_round": 4, "model": f"odd_models.{name}"}
    there = simulate(**run, engine="ray", num_workers=2)
    np.testing.assert_array_equal(there.weights, simulate(**run).weights)


FORKED = """
import multiprocessing, sys, tempfile
import fedtide

def run(seed):
    ended = fedtide.run(model=sys.argv[1], num_clients=4, num_rounds=2, engine="inline", seed=seed,
                        run_dir=tempfile.mkdtemp(), report=False)
    return ended.summary["weights_sha256"]

before = run(1)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print([before == there for there in pool.map_async(run, [1, 2]).get(timeout=90)])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_process_trains_after_its_parent() -> None:
    """PyTorch's threads are the parent's: what waits for them hangs."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED, "mlp"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert done.stdout.splitlines()[-1:] == ["[True, False]"], done.stderr


class Returning(nn.Module):
    """Returns something of its logits."""

    def __init__(self, returned: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.returned = nn.Linear(64, 10), returned

    def forward(self, x: torch.Tensor) -> Any:
        return self.returned(self, self.layer(x.flatten(1)))


def assertion(model: nn.Module, logits: torch.Tensor) -> torch.Tensor:
    assert len(logits) == 3
    return logits


class Keeping(nn.Module):
    """Multiplies its logits by what it keeps from batch to batch."""

    def __init__(self, kept: Any, change: Callable[[Any, torch.Tensor], tuple[Any, Any]]) -> None:
        super().__init__()
        self.layer, self.kept, self.change = nn.Linear(64, 10), kept, change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(x.flatten(1))
        self.kept, factor = self.change(self.kept, logits)
        return logits * factor


def kept(change: Callable[[Any, torch.Tensor], tuple[Any, Any]], first: Any = 0) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Identity(), Keeping(first(0) if callable(first) else first, change))


CHANGES = "model: attribute kept of layer 1 changes while it computes, .* keep that in buffers"


class Teacher(nn.Linear):
    """Moves a frozen copy of itself a little in each step, as contrastive learning does."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.slow = nn.Linear(64, 10).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.slow.weight.data.lerp_(self.weight.data, 1e-4)
        return super().forward(x.flatten(1)) + self.slow(x.flatten(1))  # type: ignore[no-any-return]


PRETRAINED = nn.Linear(64, 10)
STATISTICS = nn.BatchNorm1d(64, affine=False)


def by_data(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A bias that is a part of another layer's weight, but no part of its parameter."""
    first, last = nn.Linear(64, 10), nn.Linear(10, classes)
    last.bias.data = first.weight.data[:, 3][:classes]
    return nn.Sequential(nn.Flatten(), first, last)


def within_blocks(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A bias that is a part of one weight, with which another is interleaved that reaches further."""
    layers = [nn.Linear(64, 8), nn.Linear(8, 16), nn.Linear(16, classes)]
    whole = torch.randn(16, 72)
    layers[0].weight = nn.Parameter(whole[:8, :64])
    layers[1].weight = nn.Parameter(whole[:, 64:])
    layers[0].bias = nn.Parameter(whole[2, :8])
    return nn.Sequential(nn.Flatten(), *layers)


@cache
def kept_layer() -> nn.Linear:
    return nn.Linear(64, 10)


def beside_eight_bits() -> nn.Module:
    """A counter in a model with a frozen weight of a type that PyTorch does not sum."""
    model = kept(lambda n, _: (n + 1, 1))()
    weight = torch.ones(3).to(torch.float8_e4m3fn)
    model.register_parameter("scale", nn.Parameter(weight, requires_grad=False))
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dict": (lambda: Returning(lambda _, y: {"logits": y}), "outputs: it returns a dict, where"),
    "tuple": (lambda: Returning(lambda _, y: (y, y)), "outputs: it returns a tuple, where"),
    "in training": (lambda: Returning(lambda m, y: [y] if m.training else y), "outputs: it returns a list"),
    "assert": (lambda: Returning(assertion), r"outputs: AssertionError.* \(test_odd_models.py, line \d+\)"),
    "argmax": (
        lambda: Returning(lambda _, y: functional.one_hot(y.argmax(1), 10).float()),
        "^the model cannot be trained, as its loss has no gradient: .*does not require grad.*; from weights",
    ),
    "in place": (
        lambda: Returning(lambda _, y: (z := y.exp(), z * z, z.add_(1))[1]),
        "no gradient: .* modified by an inplace operation: .*; from weights",
    ),
    "bfloat16": (lambda: Returning(lambda _, y: y).bfloat16(), "not layer.weight bfloat16"),
    "two types": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10).double()),
        "must all be float32, .*not 2.weight float64, 1.weight float32: convert it with .float",
    ),
    "complex": (
        lambda: Returning(lambda _, y: y).to(torch.complex64),
        "not layer.weight complex64: keep pairs of real numbers, and .*view_as_complex",
    ),
    "tied by data": (
        lambda: by_data((64,), 10),
        "model: 1.weight and 2.bias share memory without being one parameter, .* not its .data, or a clone",
    ),
    "tied within blocks": (within_blocks, "model: 1.weight and 1.bias share memory without being one"),
    "made once": (
        lambda: nn.Sequential(nn.Flatten(), PRETRAINED),
        "1.weight is the same tensor in every model that is made, .* or copy.deepcopy it",
    ),
    "statistics made once": (
        lambda: nn.Sequential(nn.Flatten(), STATISTICS, nn.Linear(64, 10)),
        "1.running_mean is the same tensor in every model that is made, .* or copy.deepcopy it",
    ),
    "made at first": (
        lambda: nn.Sequential(nn.Flatten(), deepcopy(kept_layer())),
        "1.weight has no numbers: .* device meta, .* functools.cache does; .* copy.deepcopy it",
    ),
    "teacher": (Teacher, "model: frozen weight slow.weight changes while it computes, .* in buffers"),
    "counter": (kept(lambda n, _: (n + 1, 1)), CHANGES),
    "counter beside 8 bits": (beside_eight_bits, CHANGES),
    "hidden state": (kept(lambda h, y: (y.detach() + h / 2, 1)), CHANGES),
    "list": (kept(lambda steps, _: ([*steps, 1], 1), []), CHANGES),
    "generator": (kept(lambda g, _: (g, torch.rand(1, generator=g)), torch.Generator().manual_seed), CHANGES),
    "draws of NumPy": (
        kept(lambda _, y: (0, np.random.random())),  # noqa: NPY002 - as users have it
        "model: it draws random numbers from Python's or NumPy's generator, .* with PyTorch's own",
    ),
    "rare draws of Python": (
        kept(lambda _, y: (0, 0.5 if random.random() < 1e-6 else 1)),
        "model: it draws random numbers from Python's or NumPy's generator, .* with PyTorch's own",
    ),
    "a library's class": (SqueezeNet, "SqueezeNet: ValueError: Unsupported .*; name a function"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("cohort", ["auto", "loop", "vmap"])
def test_models_that_cannot_be_trained_are_refused_in_a_line(kind: str, cohort: str, tmp_path: Path) -> None:
    factory, text = REFUSED[kind]
    with pytest.raises(SettingsError, match=text) as refused:
        fedtide.run(model=factory, cohort=cohort, num_clients=3, engine="inline", run_dir=str(tmp_path))
    assert "\n" not in str(refused.value)
    assert not [*tmp_path.iterdir()]


def test_a_model_that_was_made_already_is_refused_in_a_line(tmp_path: Path) -> None:
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ValueError, match=r"^model: a Sequential that was made already; .*lambda: Sequential"):
        fedtide.run(model=made, run_dir=str(tmp_path))
