"""What strategies expect of the engine that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.common import Scalar
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

EvaluateFn = Callable[[int, list[NDArray[Any]], dict[str, Scalar]], tuple[float, dict[str, Scalar]] | None]


@runtime_checkable
class AvailabilityManager(Protocol):
    """A client manager that knows who is available without an object for each client."""

    def available(self, server_round: int) -> NDArray[np.intp]:
        """Clients that are online, in ascending order."""

    def at_work(self, server_round: int) -> NDArray[np.intp]:
        """Clients that are still at work on an earlier task, in ascending order; they are not available."""

    def membership_changes(self, server_round: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Clients that arrived and that departed since the previous round."""

    def proxy(self, client: int) -> ClientProxy:
        """The proxy of one client; raises KeyError for one that cannot be reached."""
