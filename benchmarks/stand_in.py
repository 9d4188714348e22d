"""Random data in the shapes of the data sets, on which a step takes as long; and a model of a peer's."""

from __future__ import annotations

import numpy as np
from torch import nn

from fedtide.tasks import Dataset, DatasetTask


def images(*, channels: int = 3, side: int = 32, classes: int = 10, count: int = 400) -> DatasetTask:
    """Random images, `count` of them for training."""

    def load() -> Dataset:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((count, channels, side, side), np.float32)
        return Dataset((x, np.arange(count) % classes), (x[:20], np.arange(20) % classes), classes)

    return DatasetTask("images", load)


def texts(*, length: int = 80, words: int = 80, classes: int = 80, count: int = 400) -> DatasetTask:
    """Random texts, as numbers of words or characters, `count` of them for training."""

    def load() -> Dataset:
        x = np.random.default_rng(0).integers(words, size=(count, length))
        return Dataset((x, np.arange(count) % classes), (x[:20], np.arange(20) % classes), classes)

    return DatasetTask("texts", load, "iid")


def pfl_cnn(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """The CNN of pfl-research's benchmark on CIFAR-10, with two dropouts: 1,626,442 weights there.

    Granqvist et al., pfl-research: simulation framework for accelerating research in private federated
    learning, NeurIPS 2024.
    """
    channels, height, width = input_shape
    layers = [nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    units = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    layers += [nn.Dropout(0.25), nn.Flatten(), nn.Linear(units, 128), nn.ReLU(), nn.Dropout(0.5)]
    module = nn.Sequential(*layers, nn.Linear(128, num_outputs))
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return module
