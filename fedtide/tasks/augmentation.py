"""Random changes of training images: crops and flips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

PADDING = 4  # pixels

Augment = Literal["none", "crop", "flip", "crop+flip"]


@dataclass(frozen=True)
class Augmentation:
    """Which changes are made, each image anew whenever it is used.

    `crop` pads images by four pixels of the value `black`, one for each channel, on each side, and cuts them
    back to their size anywhere; `flip` mirrors every other image.
    """

    crop: bool
    flip: bool
    black: tuple[float, ...]

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw a change for each of so many images; the first do not depend on how many follow."""
        places = (2 * PADDING + 1) ** 2
        return rng.integers(2 * places, size=count)

    def apply(self, images: Tensor, changes: Tensor) -> Tensor:
        """Return changed images, for images of shape (n, C, H, W) and what `draw` returned."""
        import torch

        n, channels, height, width = images.shape
        places = 2 * PADDING + 1
        rows, columns = torch.arange(height).expand(n, -1), torch.arange(width).expand(n, -1)
        rows, columns, changes = rows.to(images.device), columns.to(images.device), changes.to(images.device)
        if self.flip:
            mirrored = (changes % 2 == 1)[:, None]
            columns = torch.where(mirrored, width - 1 - columns, columns)
        if self.crop:
            images = self._padded(images)
            rows = rows + (changes // 2 % places)[:, None]
            columns = columns + (changes // (2 * places))[:, None]
        which = torch.arange(n, device=images.device)[:, None, None, None]
        channel = torch.arange(channels, device=images.device)[None, :, None, None]
        return images[which, channel, rows[:, None, :, None], columns[:, None, None, :]]

    def _padded(self, images: Tensor) -> Tensor:
        n, channels, height, width = images.shape
        black = images.new_tensor(self.black).view(1, channels, 1, 1)
        padded = black.expand(n, -1, height + 2 * PADDING, width + 2 * PADDING).clone()
        padded[..., PADDING : PADDING + height, PADDING : PADDING + width] = images
        return padded


def augmentation(text: Augment, black: tuple[float, ...]) -> Augmentation | None:
    """Return what an `Augment` names; None for ``none``."""
    return None if text == "none" else Augmentation("crop" in text, "flip" in text, black)
