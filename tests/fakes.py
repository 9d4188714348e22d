"""The smallest client manager and proxies that drive a strategy without an engine."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy


class NamedProxy(ClientProxy):
    """A proxy that only has a name: tests hand over replies themselves."""

    def _refuse(self, *args: Any) -> Any:
        raise AssertionError("no message goes through this proxy")

    get_properties = get_parameters = fit = evaluate = reconnect = _refuse


class TableManager(SimpleClientManager):
    """Answers who is there from what the test wrote down."""

    def __init__(self) -> None:
        super().__init__()
        self.online: Sequence[int] = ()
        self.arrived: Sequence[int] = ()
        self.departed: Sequence[int] = ()

    def available(self, server_round: int) -> np.ndarray:
        return np.array(sorted(self.online), np.intp)

    def membership_changes(self, server_round: int) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.arrived, np.intp), np.array(self.departed, np.intp)

    def proxy(self, client: int) -> ClientProxy:
        return NamedProxy(str(client))


def reply(
    instruction: FitIns,
    delta: Any,
    num_examples: int = 10,
    arrays: Sequence[np.ndarray] | None = None,
    **metrics: Any,
) -> FitRes:
    """What a client answers that moved its weights by `delta`."""
    if arrays is None:
        count = int(instruction.config["model-arrays"])
        start = parameters_to_ndarrays(instruction.parameters)[:count]
        vector = np.concatenate([a.ravel() for a in start]) + np.asarray(delta)
        cuts = np.cumsum([a.size for a in start])[:-1]
        arrays = [p.reshape(a.shape) for p, a in zip(np.split(vector, cuts), start, strict=True)]
    metrics = {key.replace("_", "-"): value for key, value in metrics.items()}
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(list(arrays)), num_examples, metrics)
