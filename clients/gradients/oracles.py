"""The oracles that users can choose, by name; each imports PyTorch when it is made, which lists need not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clients.gradients.flat import FlatModel
    from clients.gradients.oracle import CohortOracle
    from flexfl.tasks import Examples

ONE_BY_ONE = ("compiled-chain", "chain", "loop")  # train one client after the other


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
