"""What the personalised methods share: every client has a model of its own, and evaluates that one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from fedtide.base.contract import metrics
from strategies import FlexibleStrategy
from strategies.core.members import AvailabilityManager
from strategies.core.parameters import MAX_EXAMPLES, is_number, whole
from strategies.core.round import RoundInstructions, shortened

_LOSS = "loss"


class Personalised(FlexibleStrategy):
    """A method whose clients keep a personal model; the server knows the global one only.

    A lost reply resets the personal model to its state before, like everything that clients remember: they
    cannot tell that it was lost. The method itself would allow to keep it, as nobody else depends on it.
    """

    memory_is_private = True

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Ask all members that are visible to evaluate their personal models."""
        self.coordinator.adopt(parameters)
        if isinstance(client_manager, AvailabilityManager):
            visible = [(k, client_manager.proxy(k)) for k in client_manager.available(server_round).tolist()]
        else:
            found = ((self.roster.find(name), proxy) for name, proxy in client_manager.all().items())
            visible = sorted(((k, proxy) for k, proxy in found if k is not None), key=lambda pair: pair[0])
        shared = self.shared_task()
        instructions = RoundInstructions(
            EvaluateIns, self.coordinator.sent, shared.arrays, self.coordinator.config(shared)
        )
        for client, proxy in visible:
            if self.roster.member[client] and not self.roster.departed[client]:
                instructions.add(proxy, self.coordinator.task(client))
        return instructions

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Mean loss and metrics over clients, each of which counts alike, and on what they were tested.

        Only metrics that all of them report are given.
        """
        reports: dict[str, dict[str, float]] = {}
        sizes: dict[str, int] = {}
        for proxy, result in results:
            if self.roster.find(proxy.cid) is None or not isinstance(result.metrics, Mapping):
                continue
            told, n = result.metrics.items(), whole(result.num_examples)
            own = {key: value for key, value in told if is_number(value) and shortened(str(key)) == key}
            if n is not None and 0 < n <= MAX_EXAMPLES and own and is_number(result.loss):
                reports[proxy.cid], sizes[proxy.cid] = {**own, _LOSS: result.loss}, n
        if not reports:
            return None, {}
        ordered = [reports[name] for name in sorted(reports)]
        shared = [name for name in ordered[0] if all(name in report for report in ordered)]
        means = {name: float(np.mean([report[name] for report in ordered])) for name in shared}
        tested = {metrics.TESTED_EXAMPLES: sum(sizes.values()), metrics.TESTED_CLIENTS: len(reports)}
        return means.pop(_LOSS), {**means, **tested}
