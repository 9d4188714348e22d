"""The oracles that users can choose, by name, and which one a run uses.

Oracles differ in the last bits of the weights, so `auto` depends on the model, the device and whether Numba
is installed, not on a clock. The size of a cohort changes no bit; it depends on the number of weights.
PyTorch is imported when an oracle is made: lists do not need it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from fedtide.ground.errors import SettingsError
from fedtide.ground.specs import find

if TYPE_CHECKING:
    from clients.gradients.flat import FlatModel
    from clients.gradients.oracle import CohortOracle
    from clients.rules import SGD
    from fedtide.tasks import Examples

ONE_BY_ONE = ("compiled-chain", "chain", "loop")  # train one client after the other
CPU_CACHE = 1 << 20  # weights of a cohort that stay in a CPU's cache even if other workers use it
CPU_WEIGHTS = 1 << 24  # weights of a cohort of which each core has those of one client in its cache (64 MB)
GPU_WEIGHTS = 1 << 26  # weights of a cohort on a GPU (256 MB), without gradients and activations
LARGEST = 256  # clients of a cohort


def _made_by(name: str, summary: str) -> Callable[[FlatModel], CohortOracle]:
    """Return what makes an oracle, described by `summary`."""

    def make(model: FlatModel) -> CohortOracle:
        module, _, kind = name.partition(".")
        oracle: CohortOracle = getattr(import_module(f"clients.gradients.{module}"), kind)(model)
        return oracle

    make.__doc__ = summary
    return make


ORACLES = {
    "compiled": _made_by(
        "compiled.Compiled",
        "Linear layers and ReLUs on a CPU: all steps of a client in compiled code, on all cores (Numba).",
    ),
    "stacked": _made_by(
        "stacked.DualLinear",
        "Linear layers and ReLUs, all clients in the same calls; the first layer once for all steps of SGD.",
    ),
    "vmap": _made_by(
        "autograd.Vmap",
        "Models that treat each example independently, vectorised over the clients by `torch.func.vmap`.",
    ),
    "compiled-chain": _made_by(
        "compiled_chain.CompiledChain",
        "Convolutions of few channels, pooling and linear layers on a CPU, images in compiled code (Numba).",
    ),
    "chain": _made_by(
        "chain.Chain",
        "Convolutions and other common layers in sequence, one client after the other, without autograd.",
    ),
    "loop": _made_by(
        "autograd.Loop", "Any model, one client after the other, with the gradients of autograd."
    ),
}
"""Oracles by name: ``(model)``. A ValueError says why one cannot train a model."""


def automatic(model: FlatModel, examples: Examples, on_gpu: bool = False) -> str:
    """Choose an oracle by the model, the task, the device and whether Numba is there: usually the fastest.

    For linear layers it is `compiled` on a CPU where Numba is installed and the task one of classes, else
    `stacked`; for other models `compiled-chain` (few channels, Numba) or `chain` on a CPU and `vmap` on other
    devices, and `loop` for what these do not support. `on_gpu`: clients train on a GPU, wherever the model
    is.
    """
    for name in ("stacked", "vmap") if on_gpu else ("compiled", "stacked", "compiled-chain", "chain"):
        try:
            ORACLES[name](model).check(examples)
        except ValueError:
            continue
        return name
    return "loop"


COHORTS: dict[str, Callable[..., object]] = {"auto": automatic, **ORACLES}
"""What the setting `cohort` accepts."""


def choose(
    model: FlatModel,
    examples: Examples,
    cohort: str = "auto",
    size: int = 0,
    rule: type[SGD] | None = None,
    device: str = "",
) -> tuple[str, int]:
    """Choose an oracle and the size of the largest cohort, as far as the user has not set them.

    A ValueError says that `cohort` is unknown or does not support the model, or these examples. Size 0 is
    replaced according to the number of weights, and by 1 for the oracles of `ONE_BY_ONE`. `rule` is what
    clients do in a step, if that is known; `device` is what they train on, if the model is elsewhere.
    """
    find("cohort", COHORTS, cohort)
    on_gpu = (device or model.device.type) != "cpu"
    if on_gpu and cohort.startswith("compiled"):
        raise SettingsError(
            f"cohort {cohort}: it is for CPUs, and clients train on GPUs; set client-gpus to 0"
        )
    if cohort == "auto":
        cohort = automatic(model, examples, on_gpu)
    elif cohort != "loop":
        oracle = ORACLES[cohort](model)
        try:
            oracle.check(examples)
        except ValueError as error:
            raise SettingsError(
                f"cohort {cohort}: cannot train the model: {error}; use cohort loop"
            ) from None
    if cohort in ONE_BY_ONE:
        return cohort, 1
    if cohort == "compiled" and rule is not None and rule.steps_are_corrected():
        return cohort, size or _cohort_size(model, CPU_WEIGHTS)
    return cohort, size or _cohort_size(model, GPU_WEIGHTS if on_gpu else CPU_CACHE)


def _cohort_size(model: FlatModel, limit: int) -> int:
    return max(1, min(LARGEST, limit // (len(model.vector) + model.num_frozen)))


def may_gain_from_vmap(model: FlatModel, examples: Examples) -> bool:
    """Return whether `vmap` would train several clients of a model in a call, without trying it.

    To try it would import a compiler, which takes longer than many a run.
    """
    from torch.nn import RNNBase

    from clients.gradients.flat import as_tensor

    try:
        ORACLES["vmap"](model)
    except ValueError:
        return False
    if _cohort_size(model, CPU_CACHE if model.device.type == "cpu" else GPU_WEIGHTS) == 1 or any(
        isinstance(part, RNNBase) for part in model.module.modules()
    ):
        return False  # vmap calls recurrent layers once for each client
    inputs = as_tensor(examples[0]).to(model.device)
    return not model.draws(inputs) and not model.mixes(inputs)


def make_oracle(
    model: FlatModel, examples: Examples, cohort: str = "auto", size: int = 0
) -> tuple[CohortOracle, int]:
    """Make an oracle; return it and the size of the largest cohort, see `choose`."""
    cohort, size = choose(model, examples, cohort, size)
    return ORACLES[cohort](model), size
