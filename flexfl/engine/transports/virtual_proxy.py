"""A virtual client, as Flower's server-side code sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.common import (
    Code,
    DisconnectRes,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetParametersRes,
    GetPropertiesIns,
    GetPropertiesRes,
    ReconnectIns,
    Status,
)
from flwr.server.client_proxy import ClientProxy

from flexfl.ground.contract import metrics

if TYPE_CHECKING:
    from flexfl.engine.transports.virtual import VirtualTransport

OK = Status(Code.OK, "")


class VirtualProxy(ClientProxy):
    """A virtual client, as Flower's server-side code sees it.

    Parameters
    ----------
    client
        Its index, which is also its name.
    transport
        The transport that simulates it.
    """

    def __init__(self, client: int, transport: VirtualTransport) -> None:
        super().__init__(str(client))
        self.transport = transport

    def get_properties(
        self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> GetPropertiesRes:
        """Return its index, as `client-id`."""
        return GetPropertiesRes(OK, {metrics.CLIENT_ID: int(self.cid)})

    def get_parameters(
        self, ins: GetParametersIns, timeout: float | None, group_id: int | None
    ) -> GetParametersRes:
        """Return the initial weights, the same at every client."""
        return GetParametersRes(OK, self.transport.initial)

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Train this client alone; a failure raises `ClientFailure`."""
        results, failures = self.transport.fit(group_id or 1, [(self, ins)], timeout)
        if failures:
            raise failures[0]
        return results[0][1]

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        """Evaluate this client alone; a failure raises `ClientFailure`."""
        results, failures = self.transport.evaluate(group_id or 1, [(self, ins)], timeout)
        if failures:
            raise failures[0]
        return results[0][1]

    def reconnect(self, ins: ReconnectIns, timeout: float | None, group_id: int | None) -> DisconnectRes:
        """Do nothing: there is no connection to close."""
        return DisconnectRes("")
