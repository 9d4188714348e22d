"""The oracles that users can choose, by name, and which one a run uses.

Oracles differ in the last bits of the weights, so `auto` depends on the model, the device and whether Numba
is installed, not on a clock. The size of a cohort changes no bit; it depends on the number of weights.
PyTorch is imported when an oracle is made: lists do not need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flexfl.ground.specs import find

if TYPE_CHECKING:
    from clients.gradients.flat import FlatModel
    from clients.gradients.oracle import CohortOracle
    from clients.rules import SGD
    from flexfl.tasks import Examples

ONE_BY_ONE = ("compiled-chain", "chain", "loop")  # train one client after the other
CPU_CACHE = 1 << 20  # weights of a cohort that stay in a CPU's cache even if other workers use it
GPU_WEIGHTS = 1 << 26  # weights of a cohort on a GPU (256 MB), without gradients and activations
LARGEST = 256  # clients of a cohort


def compiled(model: FlatModel) -> CohortOracle:
    """Linear classifiers on a CPU, all steps of a client in compiled code, clients on all cores (Numba)."""
    from clients.gradients.compiled import Compiled

    return Compiled(model)


def stacked(model: FlatModel) -> CohortOracle:
    """Linear layers and ReLUs, all clients in the same calls; the first layer once for all steps of SGD."""
    from clients.gradients.dual import DualLinear

    return DualLinear(model)


def vmap(model: FlatModel) -> CohortOracle:
    """Models that treat each example independently, vectorised over the clients by `torch.func.vmap`."""
    from clients.gradients.vmap import Vmap

    return Vmap(model)


def compiled_chain(model: FlatModel) -> CohortOracle:
    """Convolutions of few channels, pooling and linear layers on a CPU, images in compiled code (Numba)."""
    from clients.gradients.compiled_chain import CompiledChain

    return CompiledChain(model)


def chain(model: FlatModel) -> CohortOracle:
    """Convolutions and other common layers in sequence, one client after the other, without autograd."""
    from clients.gradients.chain import Chain

    return Chain(model)


def loop(model: FlatModel) -> CohortOracle:
    """Any model, one client after the other, with the gradients of autograd."""
    from clients.gradients.loop import Loop

    return Loop(model)


ORACLES: dict[str, Callable[[FlatModel], CohortOracle]] = {
    "compiled": compiled,
    "stacked": stacked,
    "vmap": vmap,
    "compiled-chain": compiled_chain,
    "chain": chain,
    "loop": loop,
}
"""Oracles by name: ``(model)``. A ValueError says why one cannot train a model."""


def automatic(model: FlatModel, examples: Examples) -> str:
    """Choose an oracle by the model, the task, the device and whether Numba is there: usually the fastest.

    It is `compiled` for linear classifiers on a CPU where Numba is installed, `stacked` for other linear
    layers, for other models `compiled-chain` (few channels, Numba) or `chain` on a CPU and `vmap` on other
    devices, and `loop` for what these do not support.
    """
    for name in ("compiled", "stacked", "compiled-chain", "chain" if model.device.type == "cpu" else "vmap"):
        try:
            ORACLES[name](model).check(examples)
        except ValueError:
            continue
        return name
    return "loop"


COHORTS: dict[str, Callable[..., object]] = {"auto": automatic, **ORACLES}
"""What the setting `cohort` accepts."""


def choose(
    model: FlatModel, examples: Examples, cohort: str = "auto", size: int = 0, rule: type[SGD] | None = None
) -> tuple[str, int]:
    """Choose an oracle and the size of the largest cohort, as far as the user has not set them.

    Parameters
    ----------
    model
        The model, on the device that trains.
    examples
        Some to try the model with, see `flexfl.tasks.blank`.
    cohort
        One of `COHORTS`.
    size
        0: chosen by the number of weights. It is always 1 for those of `ONE_BY_ONE`.
    rule
        What clients do in a step; None: not known.

    Raises
    ------
    ValueError
        `cohort` is unknown or does not support the model, or these examples.
    """
    find("cohort", COHORTS, cohort)
    if cohort == "auto":
        cohort = automatic(model, examples)
    elif cohort != "loop":
        oracle = ORACLES[cohort](model)
        try:
            oracle.check(examples)
        except ValueError as error:
            raise ValueError(f"cohort {cohort}: cannot train the model: {error}; use cohort loop") from None
    if cohort in ONE_BY_ONE:
        return cohort, 1
    if cohort == "compiled" and rule is not None and rule.steps_are_corrected():
        return cohort, size or LARGEST  # the weights of one client at a time are in the cache
    limit = CPU_CACHE if model.device.type == "cpu" else GPU_WEIGHTS
    return cohort, size or max(1, min(LARGEST, limit // len(model.vector)))


def make_oracle(
    model: FlatModel, examples: Examples, cohort: str = "auto", size: int = 0
) -> tuple[CohortOracle, int]:
    """Make an oracle; return it and the size of the largest cohort, see `choose`."""
    cohort, size = choose(model, examples, cohort, size)
    return ORACLES[cohort](model), size
