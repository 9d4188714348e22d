"""Convolutions of few channels, pooling and linear layers, with all steps of a client in compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clients.gradients.chain import Chain, ChainLayer, Convolution, Flatten, Linear, MaxPooling, ReLU
from clients.gradients.flat import FlatModel
from clients.gradients.fused import Fused
from fedtide.base.errors import SettingsError

MAX_CHANNELS = 12  # that a convolution may have as inputs: with 16, libraries are faster


class CompiledChain(Fused, Chain):
    """Convolutions, max pooling and ReLUs, then linear layers with ReLUs between them."""

    otherwise = "chain"

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        kinds = [type(layer) for layer in self.layers]
        end = kinds.index(Flatten) if Flatten in kinds else 0
        self.images, linear = _with_relus(self.layers[:end]), _with_relus(self.layers[end + 1 :])
        self.linear = [layer for layer, _ in linear if isinstance(layer, Linear)]
        fits = self.images and all(_is_supported(layer) for layer, _ in self.images)
        fits = fits and len(self.linear) == len(linear) and all(relu for _, relu in linear[:-1])
        if not fits or len({layer.num_params for layer in self.linear}) > 1:
            raise SettingsError(
                "the model is not a sequence of convolutions of stride 1 and at most "
                f"{MAX_CHANNELS} input channels, pooling of 2 x 2 pixels and ReLUs, then linear layers with "
                "ReLUs between them, all with biases or none; use cohort chain"
            )

    def space(self, shape: torch.Size, batch: int) -> Any:
        plan, widths = self._plan(shape), [layer.shape[1] for layer in self.linear]
        inputs = plan["channels"] * plan["height"] * plan["width"]
        largest = max(*inputs, *(plan["outputs"] * plan["out_height"] * plan["out_width"]))
        biased = self.linear[0].num_params == 2
        own = sum(o * (i + biased) for o, i in (layer.shape for layer in self.linear))
        return self._kernels.Space(
            plan,
            self.zeros(inputs.sum() * batch),
            np.zeros(inputs.sum() * batch, np.uint8),
            self.zeros(2, largest * batch),
            self.zeros(2, len(self.model.vector) - own),
            *self.linear_space([*widths, self.linear[-1].shape[0]], biased, batch),
        )

    def _plan(self, shape: Sequence[int]) -> NDArray[Any]:
        """Return the layers of images of this shape, see `chain_sgd.LAYER`."""
        plan = np.recarray(
            len(self.images), self._kernels.LAYER
        )  # with attributes, also where nothing is compiled
        plan.fill(0)
        (channels, height, width), at, first = shape, 0, 0
        for row, (layer, relu) in zip(plan, self.images, strict=True):
            row["at"], row["first"], row["relu"] = at, first, relu
            if isinstance(layer, Convolution):
                outputs, expected, tall, wide = layer.shape
                if channels != expected:
                    raise ValueError(f"a convolution of {expected} channels gets images of {channels}")
                row["rows"], row["columns"] = rows, columns = layer.options[1]
                height, width, biased = height + 2 * rows, width + 2 * columns, layer.num_params == 2
                row["tall"], row["wide"], row["biased"] = tall, wide, biased
                row["channels"], row["height"], row["width"] = channels, height, width
                at += channels * height * width
                channels, height, width = outputs, height - tall + 1, width - wide + 1
                first += outputs * (expected * tall * wide + biased)
            else:
                row["channels"], row["height"], row["width"] = channels, height, width
                at += channels * height * width
                height, width = height // 2, width // 2
            row["outputs"], row["out_height"], row["out_width"] = channels, height, width
            if min(height, width) < 1:
                raise ValueError("images are too small for the model's kernels")
        if channels * height * width != self.linear[0].shape[1]:
            raise ValueError("the model's first linear layer does not fit its images")
        return plan


def _with_relus(layers: Sequence[ChainLayer]) -> list[tuple[ChainLayer, bool]]:
    """Return each layer and whether a ReLU follows."""
    pairs = [(layer, isinstance(after, ReLU)) for layer, after in zip_longest(layers, layers[1:])]
    return [pair for n, pair in enumerate(pairs) if not (n and pairs[n - 1][1])]


def _is_supported(layer: ChainLayer) -> bool:
    if isinstance(layer, Convolution):
        stride, _, dilation = layer.options
        return stride == dilation == [1, 1] and layer.groups == 1 and layer.channels <= MAX_CHANNELS
    if isinstance(layer, MaxPooling):
        size, stride, padding, dilation, ceil = layer.options
        return size == stride == [2, 2] and padding == [0, 0] and dilation == [1, 1] and not ceil
    return False
