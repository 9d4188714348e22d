"""How loops are compiled: by Numba, which need not be installed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba

# Sums may be taken in any order, which is the same for all clients. NaN and infinity are what they are.
_njit: Callable[..., Any] = partial(numba.njit, fastmath={"reassoc", "contract", "nsz"})

inlined: Callable[..., Any] = _njit(inline="always")
"""Makes a function a part of the compiled ones that call it.

If it were compiled on its own, the process that compiles would round differently from those that load the
code from the cache: there would be two copies of it, optimised at different times.
"""


def _sources() -> str:
    """Return digits for all files beside this one, of which compiled functions have parts in them."""
    texts = (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(b"".join(texts)).hexdigest()[:10]


_SOURCES = _sources()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call; the code is kept in `__pycache__` or in the user's cache.

    Numba finds it there by the function's name and its own file's age, whatever else has become a part of it.
    """
    function.__qualname__ += f"_{_SOURCES}"
    try:
        return _njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # neither can be written
        return _njit(nogil=True)(function)  # type: ignore[no-any-return]
