"""The Flower client of `flwr run`, which trains with PyTorch or with NumPy."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from flwr.client import Client
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
)

from clients.device.node import Node
from clients.single import Asked, Trained
from fedtide.base.contract import Scalar, metrics

OK = Status(Code.OK, "")


class FlexibleClient(Client, ABC):
    """One client, which trains on its own examples, until the deadline where the task has one.

    What trains is `clients.torch_client.TorchClient` or `clients.numpy_client.NumPyClient`. A failure is a
    status other than OK with the reason, or an exception; both count as inactive.
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    @abstractmethod
    def train(self, asked: Asked) -> Trained | str:
        """Do the client's part of a round, or return the reason why there is no reply."""

    @abstractmethod
    def score(self, asked: Asked) -> tuple[float, int, dict[str, Scalar]] | str:
        """Return loss, number of examples and metrics of the client's model, or why there are none.

        That is the personal model where the method has one.
        """

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        """Return the client's number, unless it has left for good; the server asks each node once."""
        left: dict[str, Scalar] = {metrics.DEPARTING: True} if self.node.has_left() else {}
        return GetPropertiesRes(OK, left or {metrics.CLIENT_ID: self.node.client})

    def fit(self, ins: FitIns) -> FitRes:
        """Train, and store the client's memory before replying."""
        start, asked = time.monotonic(), self._read(ins)
        config, done = asked.config, self.train(asked)
        if isinstance(done, str):
            return _no_reply(done)
        if done.memory is not None and not config.farewell:
            try:
                self.node.keep(config, done.memory)
            except OSError as error:
                return _no_reply(str(error))
        reply = ndarrays_to_parameters(done.arrays)
        if metrics.STEPS in done.reported:
            steps = int(done.reported[metrics.STEPS])
            self.node.worked(steps, done.seconds, sum(map(len, reply.tensors)))
        if done.lost:
            return _no_reply("reply lost")
        reported = {**done.reported, metrics.CLIENT_ID: self.node.client}
        return FitRes(OK, reply, done.num_examples, reported | self.node.closing_metrics(config, start))

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Evaluate the client's model on examples that it does not train on."""
        score = self.score(self._read(ins))
        return EvaluateRes(_failed(score), 0.0, 0, {}) if isinstance(score, str) else EvaluateRes(OK, *score)

    def _read(self, ins: FitIns | EvaluateIns) -> Asked:
        asked = Asked.of(ins)
        return asked._replace(memory=self.node.memory(asked.config))


def _no_reply(reason: str) -> FitRes:
    return FitRes(_failed(reason), Parameters([], "numpy.ndarray"), 0, {})


def _failed(reason: str) -> Status:
    return Status(Code.FIT_NOT_IMPLEMENTED, reason)  # Flower has no other status for a failure
