"""Attributes of a custom method that change but are not named in `saved`: a resumed run would reset them."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np

from strategies import FlatParameters, FlexibleStrategy
from strategies.core.state import Stateful
from strategies.fedavg import FedAvg


class Unsaved:
    """Detects changes of those attributes of a strategy that are not saved, from the start of a run on.

    Strategies of this project are not examined: they have tests.
    """

    def __init__(self, strategy: FlexibleStrategy) -> None:
        self.strategy = strategy
        self._before: dict[str, Any] = {}
        if not type(strategy).__module__.startswith(("strategies.", "fedtide.")):
            known = vars(FedAvg(FlatParameters(strategy.weights, strategy.layout))).keys()
            left_out = {*known, *strategy.saved}
            self._before = {
                name: _digest(value) for name, value in vars(strategy).items() if name not in left_out
            }

    def changed(self) -> list[str]:
        """Return the names of those that have changed."""
        now = vars(self.strategy)
        return [name for name, before in self._before.items() if _digest(now.get(name)) != before]


def _digest(value: Any) -> Any:
    """Return something that is equal as long as the value is."""
    if isinstance(value, np.ndarray):
        return value.shape, crc32(np.ascontiguousarray(value).view(np.uint8).data) if value.size else 0
    if isinstance(value, Stateful):
        return _digest(value.state_dict())
    if isinstance(value, dict):
        return [(key, _digest(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [_digest(part) for part in value]
    return value if isinstance(value, bool | int | float | str) else None
