"""Images that Pillow has opened, of any mode, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def pixels_of(image: Any, size: int = 0) -> NDArray[Any]:
    """Return an image of Pillow's, shape (1, H, W) if it is grey, else (3, H, W), resized if `size` is not 0.

    The type is uint8, or uint16 for 16 bits a pixel: 1 is its largest number. Transparency is left out.
    ValueError: the range of its pixels is not known.
    """
    mode, grey = image.mode, image.mode in ("1", "L", "LA", "La") or _has_grey_palette(image)
    if mode.startswith("I;16") or (mode == "I" and image.format in ("PNG", "PPM")):  # files of up to 16 bits
        levels = np.asarray(image)
        return (_resized(levels, size) if size else levels.astype(np.uint16))[None]
    if mode.startswith(("I", "F")):
        raise ValueError(
            f"the range of pixels of mode {mode} is not known; save it with 8 or 16 bits a pixel"
        )
    image = image.convert("L" if grey else "RGB")
    image = image.resize((size, size)) if size else image
    levels = np.asarray(image)
    return levels[None] if grey else levels.transpose(2, 0, 1)


def _has_grey_palette(image: Any) -> bool:
    colours = image.getpalette("RGB") if image.mode in ("P", "PA") else [0, 1, 2]
    return bool(colours[::3] == colours[1::3] == colours[2::3])


def _resized(levels: NDArray[Any], size: int) -> NDArray[np.uint16]:
    """Return 16-bit pixels resized as those of 8 bits are, which Pillow does not offer."""
    from PIL import Image

    resized = Image.fromarray(levels.astype(np.float32)).resize((size, size))
    pixels: NDArray[np.uint16] = np.clip(np.rint(np.asarray(resized)), 0, 65535).astype(np.uint16)
    return pixels
