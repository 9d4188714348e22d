"""How loops are compiled: by Numba, which need not be installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call; the code is kept in `__pycache__` or in the user's cache.

    Sums may be taken in any order, which is the same for all clients. NaN and infinity are what they are.
    """
    compile_: Callable[..., Any] = partial(numba.njit, nogil=True, fastmath={"reassoc", "contract", "nsz"})
    try:
        return compile_(cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # neither can be written
        return compile_()(function)  # type: ignore[no-any-return]
