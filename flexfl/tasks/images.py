"""What the image data sets have in common: how pixels become numbers."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from flexfl.tasks.augmentation import augmentation
from flexfl.tasks.data import Examples
from flexfl.tasks.dataset import Dataset

Augment = Annotated[str, "none | crop | flip | crop+flip"]
Scale = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, of pixels from 0 to 1."""

Pixels = NDArray[np.uint8]


def image_dataset(
    train: Examples, test: Examples, num_classes: int, scale: Scale | None, augment: str
) -> Dataset:
    """Return a data set of images.

    Parameters
    ----------
    train, test : Examples
        Pixels of shape (n, C, H, W) and type uint8, and classes.
    num_classes : int
        How many classes there are.
    scale : Scale or None
        What pixels are standardised with; None: they are scaled to 0..1.
    augment : str
        Changes that are made to training images.
    """
    channels = train[0].shape[1]
    mean, std = scale or ((0.0,) * channels, (1.0,) * channels)
    black = tuple(-m / s for m, s in zip(mean, std, strict=True))
    changes = augmentation(augment, black)
    first, second = ((standardised(x, mean, std), y) for x, y in (train, test))
    return Dataset(first, second, num_outputs=num_classes, augmentation=changes)


def standardised(
    pixels: NDArray[Any], mean: tuple[float, ...], std: tuple[float, ...]
) -> NDArray[np.float32]:
    """Return pixels as (pixel / 255 - mean) / std of their channel, without further copies."""
    x = pixels.astype(np.float32)
    x /= 255
    for channel, (m, s) in enumerate(zip(mean, std, strict=True)):
        x[:, channel] -= m
        x[:, channel] /= s
    return x


def scale_of(pixels: Pixels) -> Scale:
    """Return mean and standard deviation of all pixels, of images with one channel."""
    counts = np.bincount(pixels.reshape(-1), minlength=256).astype(np.float64)
    values, shares = np.arange(256) / 255, counts / counts.sum()
    mean = float(shares @ values)
    return (mean,), (float(np.sqrt(shares @ (values - mean) ** 2)) or 1.0,)
