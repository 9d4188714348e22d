"""A virtual client, as Flower's server-side code sees it."""

from __future__ import annotations

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
    Parameters,
    ReconnectIns,
    Status,
)
from flwr.server.client_proxy import ClientProxy

from fedtide.engine.transports.base import Transport
from fedtide.ground.contract import metrics

OK = Status(Code.OK, "")


class VirtualProxy(ClientProxy):
    """A virtual client, whose name is its index; it can be used alone, and its failures are raised."""

    def __init__(self, client: int, transport: Transport, initial: Parameters) -> None:
        super().__init__(str(client))
        self.transport, self.initial = transport, initial

    def get_properties(
        self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> GetPropertiesRes:
        return GetPropertiesRes(OK, {metrics.CLIENT_ID: int(self.cid)})

    def get_parameters(
        self, ins: GetParametersIns, timeout: float | None, group_id: int | None
    ) -> GetParametersRes:
        return GetParametersRes(OK, self.initial)

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        results, failures = self.transport.fit(group_id or 1, [(self, ins)], timeout)
        if failures:
            raise failures[0]
        return results.as_flower(self.transport.proxy)[0][1]

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        results, failures = self.transport.evaluate(group_id or 1, [(self, ins)], timeout)
        if failures:
            raise failures[0]
        return results[0][1]

    def reconnect(self, ins: ReconnectIns, timeout: float | None, group_id: int | None) -> DisconnectRes:
        return DisconnectRes("")
