"""Which oracle a run uses, which models it refuses, and how many clients train in one call."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clients.gradients import proof
from clients.gradients.flat import FlatModel
from clients.gradients.oracles import COHORTS, LARGEST, ORACLES, choose
from clients.rules import RULES
from clients.simulated.evaluation import check_outputs
from clients.simulated.virtual import ClientEnvironment, VirtualClients
from fedtide.base.allowed import options_of
from fedtide.base.errors import SettingsError
from fedtide.config import Settings
from fedtide.tasks import Examples, PartitionedData
from fedtide.tasks.criteria import SquaredError
from fedtide.tasks.models import MODELS

ROOT = Path(__file__).parents[1]
IMAGE = (1, 8, 8)


def classes_of(shape: tuple[int, ...]) -> Examples:
    return np.zeros((2, *shape), np.float32), np.zeros(2, np.int64)


def with_middle(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), *middle, nn.Linear(6, 3))


def image(*first: nn.Module, size: int = 2) -> nn.Module:
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(size, 3))


def frozen() -> nn.Module:
    linear = nn.Linear(6, 3)
    linear.bias.requires_grad_(False)
    return nn.Sequential(linear)


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


SHARED, CONVOLUTION = nn.Linear(6, 6), nn.Conv2d(1, 2, 3)
NO_SEQUENCES = [
    nn.Linear(6, 3),
    nn.Sequential(SHARED, nn.ReLU(), SHARED),
    frozen(),
    nn.Sequential(nn.Linear(6, 3), nn.ReLU()),
    nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)),
    with_middle(nn.Tanh()),
    with_middle(nn.BatchNorm1d(6)),
]
REFUSED: dict[str, tuple[str, list[nn.Module]]] = {
    "stacked": (
        "not a sequence of linear layers",
        [
            *NO_SEQUENCES,
            nn.Sequential(nn.ReLU(), nn.Linear(6, 3)),
            nn.Sequential(nn.Linear(6, 1), nn.ReLU(), nn.Linear(1, 3)),
        ],
    ),
    "chain": (
        "not a sequence of supported layers",
        [
            *NO_SEQUENCES,
            image(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")),
            image(nn.Conv2d(1, 2, 4, padding="same")),
            image(CONVOLUTION, nn.BatchNorm2d(2)),
            image(CONVOLUTION, nn.MaxPool2d(2, return_indices=True)),
        ],
    ),
    "compiled-chain": (
        "not a sequence of convolutions",
        [
            image(nn.Conv2d(1, 2, 3, stride=2)),
            image(nn.Conv2d(1, 2, 3, dilation=2)),
            image(nn.Conv2d(2, 2, 3, groups=2)),
            image(nn.Conv2d(13, 2, 3)),
            image(CONVOLUTION, nn.MaxPool2d(3)),
            image(CONVOLUTION, nn.MaxPool2d(2, stride=1)),
            image(CONVOLUTION, nn.Tanh()),
            with_middle(nn.ReLU()),
        ],
    ),
    "compiled": (
        "not a sequence of linear layers with ReLUs",
        [
            nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)),
            nn.Sequential(nn.Linear(6, 4, False), nn.ReLU(), nn.Linear(4, 3)),
        ],
    ),
}


@pytest.mark.parametrize("cohort", REFUSED)
def test_an_oracle_refuses_models_that_it_does_not_support(cohort: str) -> None:
    reason, modules = REFUSED[cohort]
    models = [FlatModel(module) for module in modules]
    for model in models:
        with pytest.raises(
            ValueError, match=f"({reason}|not a sequence of supported layers|has buffers).*; use cohort "
        ):
            ORACLES[cohort](model)


@pytest.mark.parametrize(
    ("cohort", "module"),
    [("compiled", nn.Sequential(nn.Linear(6, 3))), ("compiled-chain", MODELS["lenet"](IMAGE, 4))],
    ids=["linear", "lenet"],
)
def test_compiled_code_is_for_classes_in_common_precisions_on_a_cpu(cohort: str, module: nn.Module) -> None:
    with pytest.raises(SettingsError, match=r"for classes.*; use cohort "):
        ORACLES[cohort](FlatModel(module, criterion=SquaredError()))
    for other in (FlatModel(deepcopy(module), "meta"), FlatModel(deepcopy(module).half())):
        with pytest.raises(SettingsError, match="single or double precision on a CPU; use cohort "):
            ORACLES[cohort](other)


@pytest.mark.parametrize(
    ("cohort", "module", "shape", "reason"),
    [
        ("vmap", with_middle(nn.BatchNorm1d(6)), (6,), "has buffers"),
        ("vmap", with_middle(nn.BatchNorm1d(6, track_running_stats=False)), (6,), "batch normalization"),
        (
            "vmap",
            with_middle(nn.AlphaDropout()),
            (6,),
            "cannot train the model: it draws from PyTorch's generator",
        ),
        ("vmap", with_middle(Centred()), (6,), "mixes the examples of a batch"),
        ("compiled-chain", image(nn.Conv2d(3, 2, 3), size=72), IMAGE, "3 channels, but got 1"),
        ("compiled-chain", image(nn.Conv2d(1, 2, 9)), IMAGE, "cannot train the model"),
    ],
    ids=["buffers", "statistics", "random", "mixing", "channels", "too large a kernel"],
)
def test_models_that_cannot_train_are_refused(
    cohort: str, module: nn.Module, shape: tuple[int, ...], reason: str
) -> None:
    """Compiled code would read beyond an array."""
    with pytest.raises(ValueError, match=f"^cohort {cohort}: .*{reason}.*; use cohort loop"):
        choose(FlatModel(module), classes_of(shape), cohort)


@pytest.mark.parametrize(
    ("module", "shape", "cpu", "other"),
    [
        (nn.Sequential(nn.Linear(6, 3)), (6,), ("compiled", LARGEST), ("stacked", LARGEST)),
        (with_middle(nn.ReLU()), (6,), ("compiled", LARGEST), ("stacked", LARGEST)),
        (nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)), (6,), ("stacked", LARGEST), ("stacked", LARGEST)),
        (MODELS["mlp"]((1, 28, 28), 10), (1, 28, 28), ("compiled", 5), ("stacked", LARGEST)),
        (nn.Linear(6, 3), (6,), ("loop", 1), ("vmap", LARGEST)),
        (MODELS["lenet"](IMAGE, 4), IMAGE, ("compiled-chain", 50), ("vmap", LARGEST)),
        (MODELS["cnn"]((1, 28, 28), 10), (1, 28, 28), ("chain", 1), ("vmap", 40)),
        (with_middle(nn.BatchNorm1d(6)), (6,), ("loop", 1), ("loop", 1)),
        (with_middle(nn.Dropout()), (6,), ("stacked", LARGEST), ("stacked", LARGEST)),
        (with_middle(nn.AlphaDropout()), (6,), ("loop", 1), ("loop", 1)),  # random under vmap
    ],
    ids=["linear", "relu", "no relu", "mlp", "no sequence", "lenet", "cnn", "buffers", "dropout", "random"],
)
def test_auto_depends_on_the_model_and_the_device(
    module: nn.Module,
    shape: tuple[int, ...],
    cpu: tuple[str, int],
    other: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`meta`, a device that computes nothing, stands for all but the CPU; it has no numbers to compare.

    The model may be on a machine without a GPU, and the clients on others with one.
    """
    monkeypatch.setattr(torch, "allclose", lambda *_, **__: True)
    monkeypatch.setattr(proof, "_by_autograd", lambda _, y, batch: y)
    monkeypatch.setattr(proof, "own_draws", nullcontext)
    monkeypatch.setattr(torch.Tensor, "isfinite", lambda _: torch.zeros(1))
    for device, (cohort, size) in (("cpu", cpu), ("meta", other)):
        model, examples = FlatModel(deepcopy(module), device), classes_of(shape)
        assert choose(model, examples) == (cohort, size, "")
        assert choose(model, examples, size=3) == (cohort, min(size, 3), "")
        assert choose(model, examples, device="cuda") == (*other, "")


def test_compiled_steps_train_clients_in_larger_cohorts_than_single_steps() -> None:
    """Each client's steps are done before the next client's; single steps read the weights of all of them."""
    model, examples = FlatModel(nn.Sequential(nn.Linear(3000, 10))), classes_of((3000,))
    assert choose(model, examples, rule=RULES["sgd"])[:2] == ("compiled", LARGEST)
    larger = FlatModel(nn.Sequential(nn.Linear(30_000, 10)))
    assert choose(larger, classes_of((30_000,)), rule=RULES["sgd"]).size == 55
    assert choose(model, examples, rule=RULES["apfl"]).size == 34


def test_what_the_user_sets_is_used() -> None:
    model, examples = FlatModel(nn.Linear(6, 3)), classes_of((6,))
    assert choose(model, examples, "vmap")[:2] == ("vmap", LARGEST)
    assert choose(model, examples, "vmap", 3)[:2] == ("vmap", 3)
    assert choose(model, examples, "loop", 3)[:2] == ("loop", 1)
    with pytest.raises(ValueError, match=r"^unknown cohort 'lop'; known: auto, .*did you mean loop"):
        choose(model, examples, "lop")
    with pytest.raises(ValueError, match=r"^cohort compiled: it is for CPUs, .*set client-gpus to 0"):
        choose(model, examples, "compiled", device="cuda")
    assert options_of(Settings)["cohort"].choices == tuple(COHORTS)


def test_a_run_and_the_clients_of_flwr_run_choose_alike(simulate: Callable[..., Any]) -> None:
    """Each client makes its oracle from the settings as the user gave them."""
    experiment = simulate(model="mlp", num_rounds=1).experiment
    assert (experiment.settings.cohort, experiment.settings.cohort_size) == ("compiled", LARGEST)
    client = VirtualClients(ClientEnvironment(experiment.data, experiment.build_model, 0))
    assert type(client.oracle) is type(ORACLES["compiled"](client.model))


ELSEWHERE = """
import os, signal, socket, sys
for name in ("numba", "fcntl", "resource", "grp", "pwd", "termios"):
    sys.modules[name] = None
for name in ("fork", "pwrite", "preadv", "posix_fallocate", "O_CLOEXEC", "O_NONBLOCK", "getppid", "killpg"):
    delattr(os, name)
del signal.SIGCHLD, signal.SIGKILL, socket.AF_UNIX

import numpy as np
import clients.app, clients.device.node, clients.device.resident, clients.device.supervisor
from clients import numpy_client, torch_client
from clients.device.__main__ import main
from clients.memory.handshake import Memory
from clients.memory.spill import Memories
from fedtide.engine.transports.inline import InlineTransport
from test_clients_choice import IMAGE, MODELS, FlatModel, choose, classes_of, nn, torch

stored = Memories(0).store(0, Memory({"v": np.arange(3.0)}, 1))
assert stored.read().committed["v"].tolist() == [0, 1, 2]

for model, shape, cohort in ((nn.Sequential(nn.Linear(6, 3)), (6,), "compiled"),
                             (MODELS["lenet"](IMAGE, 4), IMAGE, "compiled-chain")):
    print(choose(FlatModel(model), classes_of(shape)).cohort)
    try:
        choose(FlatModel(model), classes_of(shape), cohort)
    except ValueError as error:
        print(error)

torch.set_num_threads(1)
found = set()
for shift in range(16):
    memory = torch.empty(40 * 33 + 16)
    left = memory[shift : shift + 17 * 10].view(1, 17, 10)
    right = memory[shift + 17 * 10 :][: 3 * 10].view(1, 3, 10)
    left.copy_(torch.arange(170.0).view(1, 17, 10).sin())
    right.copy_(torch.arange(30.0).view(1, 3, 10).cos())
    found.add((left @ right.mT).numpy().tobytes())
print(len(found))
raise SystemExit(main(["--superlink", "localhost:1", "--client-id", "0"]))
"""


def test_clients_on_other_machines() -> None:
    """Without Numba and a Unix, as on Windows, and on processors of which MKL has special kernels.

    Other oracles are chosen, and asking for a compiled one says what to install. `python -m clients.device`
    alone needs a Unix. Products of matrices do not depend on where the matrices lie.
    """
    environment = {key: value for key, value in os.environ.items() if key != "MKL_CBWR"}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "needs Linux, macOS or another Unix" in done.stderr
    stacked, first, chain, second, products = done.stdout.splitlines()
    assert (stacked, chain) == ("stacked", "chain")
    assert "pip install numba, or use cohort stacked" in first
    assert "pip install numba, or use cohort chain" in second
    if torch.backends.mkl.is_available():
        assert products == "1"


def test_a_model_that_changes_its_inputs_is_refused() -> None:
    """Rules compute several gradients of one batch, of which the second would be of another one."""
    x, y = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32), np.arange(8) % 3
    data = PartitionedData.divide((x, y), (x, y), 3, [np.arange(8)], 0.0, 0)
    model = FlatModel(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)))
    with pytest.raises(ValueError, match="it changes its inputs, as a first layer with inplace=True does"):
        check_outputs(model, data)
