"""Images that Pillow opens, of any mode, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from fedtide.base.files import open_regular

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".webp", ".tif", ".tiff")
MAX_PIXELS = 1 << 26  # of an image, before it is decoded
MAX_NUMBERS = 1 << 30  # of all images


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Open an image; ValueError: it cannot be read, or Pillow is missing."""
    try:
        from PIL import Image, UnidentifiedImageError  # not needed for other data
    except ImportError:
        raise ValueError("reading images needs Pillow: pip install pillow") from None
    with open_regular(file) as stream:
        try:
            with Image.open(stream) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError(f"{image.width}x{image.height} pixels; make it smaller")
                yield image
        except (UnidentifiedImageError, SyntaxError, Image.DecompressionBombError):
            raise ValueError("it is not an image that can be read") from None


def stacked(
    images: Iterable[Any], count: int, size: int, what: str, where: Callable[[int], str]
) -> NDArray[np.unsignedinteger]:
    """Return images of Pillow's as one array, shape (n, C, H, W), resized if `size` is not 0.

    Grey images among those in colour become such; see `pixels_of`. `count` is n, `what` names all of them in
    messages, and `where` one. SettingsError: they are of different kinds or sizes, or too many.
    """

    def check_numbers(size: int) -> None:
        if count * size > MAX_NUMBERS:
            total = f"{count:,} images of {size:,} numbers"
            raise SettingsError(f"{what}: {total} are too many; set size=, or take a part")

    stack: NDArray[np.unsignedinteger] = np.empty(0, np.uint8)
    if count * size**2 > MAX_NUMBERS:
        raise SettingsError(
            f"{what}: {count:,} images of {size}x{size} pixels are too many; set another size="
        )
    for row, image in enumerate(images):
        try:
            pixels = pixels_of(image, size)
        except (OSError, ValueError) as error:  # OSError: it is damaged, which shows when it is decoded
            raise SettingsError(f"{where(row)}: {error}") from None
        if not row:
            check_numbers(pixels.size)
            stack = np.empty((count, *pixels.shape), pixels.dtype)
        if pixels.dtype == stack.dtype and len(pixels) != stack.shape[1]:  # grey, among images in colour
            if len(pixels) > 1:
                check_numbers(pixels.size)
                stack = np.repeat(stack, len(pixels), axis=1)
            pixels = np.broadcast_to(pixels, (stack.shape[1], *pixels.shape[1:]))
        if (len(pixels), pixels.dtype) != (stack.shape[1], stack.dtype):
            kinds = " and ".join(_kind_of(x) for x in (stack[0], pixels))
            raise SettingsError(f"{where(row)}: {kinds} images are mixed; convert them to one kind")
        if pixels.shape != stack.shape[1:]:
            sizes = " and ".join(f"{s[1]}x{s[2]}" for s in (stack.shape[1:], pixels.shape))
            raise SettingsError(f"{what} has images of {sizes} pixels; set size=")
        stack[row] = pixels
    return stack


def pixels_of(image: Any, size: int = 0) -> NDArray[Any]:
    """Return an image of Pillow's, shape (1, H, W) if it is grey, else (3, H, W), resized if `size` is not 0.

    The type is uint8, or uint16 for 16 bits a pixel: 1 is its largest number. Transparency is left out, and
    photographs are turned as their camera was held.
    ValueError: the range of its pixels is not known. OSError: it is damaged.
    """
    from PIL import ImageOps

    form = image.format
    image.load()  # OSError: it is damaged
    with suppress(Exception):  # of damaged EXIF data, which say nothing
        image = ImageOps.exif_transpose(image)
    mode, grey = image.mode, image.mode in ("1", "L", "LA", "La") or _has_grey_palette(image)
    if mode.startswith("I;16") or (mode == "I" and form in ("PNG", "PPM")):  # files of up to 16 bits
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


def _kind_of(image: NDArray[Any]) -> str:
    return f"{'grey' if len(image) == 1 else 'colour'} ({image.dtype.itemsize * 8} bits)"
