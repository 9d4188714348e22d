"""Random data in the shapes of the data sets: how long a step takes does not depend on what is in them."""

from __future__ import annotations

import numpy as np

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
