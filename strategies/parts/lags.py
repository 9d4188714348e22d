"""The largest lag with which a reply counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Range
from strategies import FlexibleStrategy, Options, Sent


class LimitedLag(FlexibleStrategy):
    """Takes late replies, up to a limit."""

    options: LagOptions
    late_replies = "take"

    def check(self, sent: Sent, extra: Sequence[NDArray[np.floating]]) -> None:
        """Refuse a reply with a larger lag than `max-lag`."""
        lag, limit = self.version - sent.version, self.options.max_lag
        if 0 <= limit < lag:
            raise ValueError(f"late reply of round {sent.round}: its lag is {lag}, max-lag is {limit}")


@dataclass(frozen=True, kw_only=True)
class LagOptions(Options):
    """Options of methods that take late replies up to a limit.

    Attributes
    ----------
    max_lag
        Replies with a larger lag are dropped; -1: none is.
    """

    max_lag: Annotated[int, Range(least=-1)] = -1
