"""Dropout and stochastic depth whose masks follow from a seed, wherever and with whomever a client trains.

PyTorch draws the masks of a whole tensor, in an order that depends on the device and on the other clients in
a call. Here each number of a mask is a function of the client's seed for the step, of the layer's place in
the forward pass and of its own place in the batch: of the same examples the same units are dropped alone, in
a cohort, on a CPU and on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

from traces.base import GAMMA, MIXING

_LANES, _BITS = 4, 16  # numbers of a mask that come from one output, and bits of each
_FEATURES = {nn.Dropout1d: 3, nn.Dropout2d: 4, nn.Dropout3d: 5}  # dimensions of a batch; whole channels


class Draws:
    """What the random layers of a model draw from; without a seed, they are those of PyTorch.

    `calls` is how many of them have drawn in this forward pass, which says which masks are whose.
    """

    def __init__(self, layers: Sequence[DrawnLayer] = ()) -> None:
        self.layers = layers
        self.seed: Tensor | None = None
        self.calls = 0

    @property
    def are_needed(self) -> bool:
        """Whether a layer draws in training."""
        return any(layer.training and layer.p for layer in self.layers)

    def begin(self, seed: int | Sequence[int] | Tensor | None, device: torch.device) -> None:
        """Begin a forward pass with a seed, that of one client, or with one for each of A clients."""
        known = seed is None or isinstance(seed, Tensor)
        self.seed = seed if known else torch.tensor(seed, dtype=torch.int64, device=device)  # type: ignore[assignment]
        self.calls = 0

    def kept(self, shape: Sequence[int], p: float) -> Tensor:
        """Draw what is not dropped with probability `p`: booleans of this shape, for each seed."""
        assert self.seed is not None
        self.calls += 1
        key = _mixed(self.seed + _signed(self.calls * GAMMA))[..., None]
        counters = torch.arange(-(-math.prod(shape) // _LANES), device=self.seed.device) * _signed(GAMMA)
        bits = _mixed(key + counters)
        lanes = torch.stack([_shifted(bits, _BITS * lane) & (2**_BITS - 1) for lane in range(_LANES)], -1)
        drawn = lanes.flatten(-2)[..., : math.prod(shape)].view(*self.seed.shape, *shape)
        return drawn.ge(round(p * 2**_BITS))


class DrawnLayer(nn.Module):
    """A random layer that draws from `draws` in training: mixed into the class of the layer itself."""

    draws: Draws
    p: float

    def factors(self, x: Tensor) -> Tensor | None:
        """Return what the inputs of a batch are multiplied by, for each seed; None: this layer draws nothing.

        `x` is what one client has, whose shape counts.
        """
        if not self.training or not self.p or self.draws.seed is None or (shape := self._shape(x)) is None:
            return None
        kept = self.draws.kept(shape, self.p).to(x.dtype)
        return kept.div_(1 - self.p) if self.p < 1 else kept

    def forward(self, x: Tensor) -> Tensor:
        factors = self.factors(x)
        if factors is None:
            return super().forward(x)  # type: ignore[no-any-return]
        return x.mul_(factors) if getattr(self, "inplace", False) else x * factors

    def _shape(self, x: Tensor) -> Sequence[int] | None:
        """Return the shape of the masks; None: PyTorch draws them, as of inputs that are no batch."""
        if isinstance(self, nn.Dropout):
            return x.shape
        if not isinstance(self, nn.modules.dropout._DropoutNd):  # stochastic depth
            rows = len(x) if getattr(self, "mode", "row") == "row" else 1
            return rows, *[1] * (x.dim() - 1)
        dimensions = next(n for kind, n in _FEATURES.items() if isinstance(self, kind))
        return (*x.shape[:2], *[1] * (x.dim() - 2)) if x.dim() == dimensions else None


def with_draws(module: nn.Module) -> Draws:
    """Have the random layers of a module draw from one object, and return it; the layers stay the same."""
    for layer in module.modules():
        kind = type(layer)
        if kind is nn.Dropout or kind in _FEATURES or _is_stochastic_depth(kind):
            layer.__class__ = type(kind.__name__, (DrawnLayer, kind), {"__module__": kind.__module__})
    draws = Draws([layer for layer in module.modules() if isinstance(layer, DrawnLayer)])
    for layer in draws.layers:
        layer.draws = draws
    return draws


def is_dropout(layer: nn.Module) -> TypeGuard[DrawnLayer]:
    """Whether a layer is an `nn.Dropout` that draws here."""
    return isinstance(layer, DrawnLayer) and isinstance(layer, nn.Dropout)


def _is_stochastic_depth(kind: type) -> bool:
    return (kind.__module__, kind.__name__) == ("torchvision.ops.stochastic_depth", "StochasticDepth")


def _mixed(z: Tensor) -> Tensor:
    """Return SplitMix64's outputs for some states; int64 stands for its unsigned integers."""
    for shift, factor in MIXING:
        z = (z ^ _shifted(z, shift)) * _signed(factor)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, shift: int) -> Tensor:
    """Shift to the right, and fill up with zeros."""
    return (z >> shift) & (2 ** (64 - shift) - 1) if shift else z


def _signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
