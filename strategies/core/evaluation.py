"""Evaluation at the server: no client is asked."""

from __future__ import annotations

from flwr.common import EvaluateIns, EvaluateRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from strategies.core.interfaces import EvaluateFn
from strategies.core.parameters import Layout, read_parameters


class ServerEvaluated(Strategy):
    """The evaluating half of a Flower strategy, for a global model that is evaluated at the server.

    Attributes
    ----------
    wire
        Layout of the weights and buffers.
    evaluate_fn
        Called with the round, the weights and buffers (one array per tensor) and an empty configuration, as
        in Flower's `FedAvg`; None: no evaluation.
    """

    wire: Layout
    evaluate_fn: EvaluateFn | None

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Evaluate the global weights at the server, if there is an `evaluate_fn`."""
        if self.evaluate_fn is None:
            return None
        vector, extra = read_parameters(parameters, self.wire)
        return self.evaluate_fn(server_round, [*self.wire.split(vector), *extra], {})

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Ask no client: the global model is evaluated at the server."""
        return []

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Return nothing, as no client was asked."""
        return None, {}
