"""Arrays with an entry for each client, which grow as clients arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.state import Stateful


class ByClient(Stateful):
    """Numbers of each client: the arrays of `saved`, of shape (N,) or longer."""

    def extend(self, size: int) -> None:
        """Make room for `size` clients; a new one has 0, or NaN among floating-point numbers."""
        for name in self.saved:
            array = getattr(self, name)
            setattr(self, name, extend(array, size, np.nan if array.dtype.kind == "f" else 0))


def extend(array: NDArray[Any], size: int, fill: float) -> NDArray[Any]:
    """Lengthen an array to at least `size`, ahead of need, so that arrivals one by one stay cheap."""
    if size <= len(array):
        return array
    more = np.full(max(size, 2 * len(array)) - len(array), fill, array.dtype)
    return np.concatenate([array, more])
