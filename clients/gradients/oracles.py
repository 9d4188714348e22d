"""The oracles that users can choose, by name, and which one a run uses.

Oracles differ in the last bits of the weights, so `auto` depends on the model, the device and whether Numba
is installed, not on a clock. The size of a cohort changes no bit; it depends on the number of weights.
PyTorch is imported when an oracle is made: lists do not need it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from fedtide.base.errors import SettingsError
from fedtide.base.specs import find
from fedtide.tasks import some_examples

if TYPE_CHECKING:
    from clients.gradients.flat import FlatModel
    from clients.gradients.oracle import CohortOracle
    from clients.rules import SGD
    from fedtide.tasks import Examples, FederatedData

log = logging.getLogger("flwr")  # whose lines are seen where an app of Flower trains

ONE_BY_ONE = ("chain", "loop")  # train one client after the other
CPU_CACHE = 1 << 20  # weights of a cohort that stay in a CPU's cache even if other workers use it
CPU_WEIGHTS = 1 << 24  # weights of a cohort of which each core has those of one client in its cache (64 MB)
GPU_WEIGHTS = 1 << 26  # weights of a cohort on a GPU (256 MB), without gradients and activations
LARGEST = 256  # clients of a cohort


class Choice(NamedTuple):
    """How a run's gradients are computed."""

    cohort: str  # the oracle's name
    size: int  # of the largest cohort
    why: str = ""  # one line, where a faster oracle was expected to suit the model


def _made_by(where: str, summary: str) -> Callable[[FlatModel], CohortOracle]:
    """Return the maker of an oracle; lists show `summary`."""

    def make(model: FlatModel) -> CohortOracle:
        module, _, kind = where.partition(".")
        oracle: CohortOracle = getattr(import_module(f"clients.gradients.{module}"), kind)(model)
        return oracle

    make.__doc__ = summary
    return make


ORACLES = {
    "compiled": _made_by(
        "linear.Compiled",
        "Linear layers and ReLUs on a CPU: all steps of a client in compiled code, on all cores (Numba).",
    ),
    "stacked": _made_by(
        "linear.StackedLinear",
        "Linear layers, ReLUs and dropout, all clients in the same calls, one step at a time.",
    ),
    "vmap": _made_by(
        "oracle.Vmap",
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
    "loop": _made_by("oracle.Loop", "Any model, one client after the other, with the gradients of autograd."),
}
"""Oracles by name: ``(model)``. A ValueError says why one cannot train a model."""


def automatic(
    model: FlatModel, examples: Examples, on_gpu: bool = False, here: bool = True
) -> tuple[str, str]:
    """Choose an oracle by the model, the task, the device and whether Numba is there: usually the fastest.

    For linear layers it is `compiled` on a CPU where Numba is installed and the task one of classes, else
    `stacked`; for other models `compiled-chain` (few channels, Numba) or `chain` on a CPU and `vmap` on other
    devices, and `loop` for what these do not support. `on_gpu`: clients train on a GPU, wherever the model
    is; `here`: in this process. With it comes a line where the first that supports the model has not the
    gradients of autograd: then `loop` takes its place.
    """
    from clients.gradients.proof import DiffersError

    for name in ("stacked", "vmap") if on_gpu else ("compiled", "stacked", "compiled-chain", "chain"):
        try:
            ORACLES[name](model).check(examples, here)
        except DiffersError as error:
            return "loop", f"cohort: loop in place of {name}: {error}"
        except ValueError:
            continue
        return name, ""
    return "loop", ""


COHORTS: dict[str, Callable[..., object]] = {"auto": automatic, **ORACLES}
"""What the setting `cohort` accepts."""


def choose(
    model: FlatModel,
    examples: Examples,
    cohort: str = "auto",
    size: int = 0,
    rule: type[SGD] | None = None,
    device: str = "",
    here: bool = True,
) -> Choice:
    """Choose an oracle and the size of the largest cohort, as far as the user has not set them.

    A ValueError says that `cohort` is unknown or cannot train the model, or not with the gradients that
    autograd has at these examples, which are a client's. Size 0 is replaced according to the number of
    weights, and by 1 for the oracles of `ONE_BY_ONE`. `rule` is what clients do in a step, if that is known;
    `device` is what they train on, if the model is elsewhere. Unless this process trains them, `here`, those
    that do have to choose, too: only there compiled code is tried, as it takes a while to load.
    """
    find("cohort", COHORTS, cohort)
    on_gpu = (device or model.device.type) != "cpu"
    if on_gpu and cohort.startswith("compiled"):
        raise SettingsError(
            f"cohort {cohort}: it is for CPUs, and clients train on GPUs; set client-gpus to 0"
        )
    why = ""
    if cohort == "auto":
        cohort, why = automatic(model, examples, on_gpu, here)
    elif cohort != "loop":
        try:
            oracle = ORACLES[cohort](model)
        except SettingsError as error:
            raise SettingsError(f"cohort {cohort}: {error}") from None
        try:
            oracle.check(examples, here)
        except ValueError as error:
            raise SettingsError(
                f"cohort {cohort}: cannot train the model: {error}; use cohort loop"
            ) from None
    if cohort in ONE_BY_ONE:
        return Choice(cohort, 1, why)
    if cohort == "compiled" and rule is not None and rule.steps_are_corrected():
        return Choice(cohort, size or _cohort_size(model, CPU_WEIGHTS))
    return Choice(cohort, size or _cohort_size(model, GPU_WEIGHTS if on_gpu else CPU_CACHE))


def _cohort_size(model: FlatModel, limit: int) -> int:
    return max(1, min(LARGEST, limit // (len(model.vector) + model.num_frozen)))


def may_gain_from_vmap(model: FlatModel, examples: Examples) -> bool:
    """Guess whether `vmap` would train several clients of a model in a call.

    Trying it would import a compiler, which takes longer than many runs.
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
    model: FlatModel, data: FederatedData, cohort: str = "auto", size: int = 0, proven: bool = False
) -> tuple[CohortOracle, int]:
    """Make an oracle for clients with these data; return it and the size of the largest cohort, see `choose`.

    Where `auto` takes `loop` in place of an oracle that is wrong, this is logged. `proven`: `cohort` and
    `size` are what was chosen before.
    """
    if not proven:
        cohort, size, why = choose(model, some_examples(data), cohort, size)
        if why:
            log.warning(why)
    return ORACLES[cohort](model), size
