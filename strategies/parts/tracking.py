"""Gradient tracking: clients take local steps along g(y) - delta_j, where all delta_j sum to zero."""

from __future__ import annotations

import numpy as np

from fedtide.ground.contract import CORRECTED
from strategies import Clients, FlexibleStrategy, Task
from strategies.memory.table import TableOptions
from strategies.memory.zero_sum import ZeroSumTable


class GradientTracking(FlexibleStrategy):
    """Base of FedGATE and VRL-SGD: the server keeps the delta_j and sends each client its -delta_j."""

    options: TableOptions
    rule = CORRECTED
    saved = ("tracked",)

    def setup(self) -> None:
        """Start with delta_j = 0."""
        self.tracked = ZeroSumTable(self.layout, self.options)  # delta_j

    def task(self, client: int) -> Task | None:
        """Return -delta_j; nothing while all are zero."""
        if self.tracked.is_zero:
            return None
        (delta,) = self.tracked.read(np.array([client]))
        return Task(arrays=((-delta).astype(self.layout.dtype),))

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Pass the delta_l of those who left on to the others; new members start with 0: the sum stays 0."""
        self.tracked.change(arrived, left, self.roster.num_contributors - len(arrived))
