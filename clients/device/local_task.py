"""A device's own examples as a task of one client, for the client that trains with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import nn

from clients.device.local_data import DataSpec, LocalData, read
from clients.draws import client_rng
from clients.environment import ClientEnvironment, build_for, model_name
from clients.gradients.flat import FlatModel
from clients.simulated.virtual import VirtualClients
from flexfl.config import Settings
from flexfl.tasks import CROSS_ENTROPY, Criterion, Examples

Shapes = tuple[tuple[int, ...], ...]


class OneClient:
    """The examples of one of N clients, as `FederatedData`; the others have none here.

    Parameters
    ----------
    client, num_clients
        Which one, and N.
    data, held_out
        Its examples to train on, and those that it holds out.
    num_outputs
        The model's.
    """

    criterion: Criterion = CROSS_ENTROPY

    def __init__(
        self, client: int, num_clients: int, data: LocalData, held_out: LocalData, num_outputs: int
    ) -> None:
        self.train, self.held_out, self.num_outputs = (data.x, data.y), (held_out.x, held_out.y), num_outputs
        self.client, self.input_shape = client, data.x.shape[1:]
        self.sizes = np.zeros(num_clients, np.int64)
        self.sizes[client] = len(data.y)
        self.test = self.train  # a device has no others; it evaluates on these where it holds out none

    def examples(self, client: int, rows: NDArray[np.intp]) -> Examples:
        """See `FederatedData.examples`."""
        return self.train[0][rows], self.train[1][rows]

    def train_set(self, clients: NDArray[np.intp]) -> Examples:
        """See `FederatedData.train_set`."""
        return self.train

    def holdout(self, clients: NDArray[np.intp]) -> Examples:
        """See `FederatedData.holdout`."""
        if not len(self.held_out[1]):
            raise ValueError("holdout: no examples are held out; set a holdout share above 0")
        return self.held_out


@lru_cache(maxsize=1)
def local_clients(settings: Settings, spec: DataSpec, client: int, shapes: Shapes) -> VirtualClients:
    """Return what trains the run's model on a device's own examples.

    Parameters
    ----------
    settings
        The run's settings.
    spec
        Where the examples are.
    client
        Which client this is.
    shapes
        Shapes of the tensors that the server has sent, which say how many classes the model has.

    Raises
    ------
    ValueError
        The examples cannot be read, or the model that the settings name is not the server's on them.
    """
    data = read(spec)
    held_out = data._replace(x=data.x[:0], y=data.y[:0])
    if settings.evaluate_on != "test" or settings.evaluate_clients:
        data, held_out = data.hold_out(settings.holdout, client_rng(settings.seed, b"holdout", client, 0))
    num_outputs, build = _matching(settings, data, shapes)
    data.check(int(np.prod(data.x.shape[1:])), num_outputs)
    one = OneClient(client, settings.num_clients, data, held_out, num_outputs)
    return VirtualClients(ClientEnvironment(one, build, settings.seed, cohort=settings.cohort))


def _matching(settings: Settings, data: LocalData, shapes: Shapes) -> tuple[int, Callable[[], nn.Module]]:
    """Return the number of outputs for which the model has tensors of these shapes, and what makes it.

    The last tensor that is trained has as many rows as there are outputs, in all but unusual models.
    """
    input_shape = data.x.shape[1:]

    def shapes_with(num_outputs: int) -> tuple[int, Shapes]:
        model = FlatModel(build_for(settings, input_shape, num_outputs)())
        return sum(p.requires_grad for p in model.module.parameters()), model.shapes

    trained, _ = shapes_with(data.num_classes or 2)
    num_outputs = shapes[trained - 1][0] if 0 < trained <= len(shapes) and shapes[trained - 1] else 0
    _, own = shapes_with(num_outputs) if num_outputs else (0, ())
    if own != shapes:
        sent = ", ".join(map(str, shapes[:4])) + (", ..." if len(shapes) > 4 else "")
        raise ValueError(
            f"{data.source}: examples of shape {input_shape} do not fit the run's model "
            f"{model_name(settings)}, whose tensors are {sent}; prepare them as the server's task has them"
        )
    return num_outputs, build_for(settings, input_shape, num_outputs)
