"""A device's own examples as a task of one client, for the client that trains with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from torch import nn

from clients.device.local_data import DataSpec, LocalData, read
from clients.draws import client_rng
from clients.gradients.flat import FlatModel
from clients.simulated.virtual import ClientEnvironment, VirtualClients
from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.tasks import PartitionedData

Shapes = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1)
def local_clients(settings: Settings, spec: DataSpec, client: int, shapes: Shapes) -> VirtualClients:
    """Make a trainer of the run's model on a device's own examples.

    `shapes` are those of the tensors that the server has sent, which say how many classes the model has. A
    ValueError says that the model of the settings is not the server's on these examples.
    """
    data = read(spec)
    num_outputs, build = _matching(Federation.of(settings), data, shapes)
    data.check(int(np.prod(data.x.shape[1:])), num_outputs)
    divided = _of_one(settings, data, client, num_outputs)
    return VirtualClients(ClientEnvironment(divided, build, settings.seed, cohort=settings.cohort))


def _of_one(settings: Settings, data: LocalData, client: int, num_outputs: int) -> PartitionedData:
    """Return a device's examples as those of one of N clients; the others have none here."""
    holds_out = settings.evaluate_on != "test" or bool(settings.evaluate_clients)
    share = settings.holdout if holds_out else 0.0
    kept, held = data.hold_out(share, client_rng(settings.seed, b"holdout", client, 0))
    own = np.concatenate([kept.x, held.x]), np.concatenate([kept.y, held.y])
    clients = np.arange(settings.num_clients + 1)
    return PartitionedData(
        own,
        (kept.x, kept.y),  # a device has no other test examples
        num_outputs,
        np.arange(len(data.y)),
        np.where(clients > client, len(data.y), 0),
        np.where(clients[:-1] == client, len(kept.y), 0),
        share if len(held.y) else 0.0,
    )


def _matching(federation: Federation, data: LocalData, shapes: Shapes) -> tuple[int, Callable[[], nn.Module]]:
    """Return the number of outputs for which the model has tensors of these shapes, and what makes it.

    The last tensor that is trained has as many rows as there are outputs, in all but unusual models.
    """
    input_shape = data.x.shape[1:]

    def shapes_with(num_outputs: int) -> tuple[int, Shapes]:
        model = FlatModel(federation.model_for(input_shape, num_outputs)())
        return sum(p.requires_grad for p in model.module.parameters()), model.shapes

    trained, _ = shapes_with(data.num_classes or 2)
    num_outputs = shapes[trained - 1][0] if 0 < trained <= len(shapes) and shapes[trained - 1] else 0
    _, own = shapes_with(num_outputs) if num_outputs else (0, ())
    if own != shapes:
        sent = ", ".join(map(str, shapes[:4])) + (", ..." if len(shapes) > 4 else "")
        raise ValueError(
            f"{data.source}: examples of shape {input_shape} do not fit the run's model "
            f"{federation.model_name}, whose tensors are {sent}; prepare them as the server's task has them"
        )
    return num_outputs, federation.model_for(input_shape, num_outputs)
