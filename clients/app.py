"""The Flower ClientApp: a client of `flwr run`, in simulation and on devices.

It trains with PyTorch, or with NumPy alone where PyTorch is not installed or the node config says
`numpy=true`; both may take part in one federation. Only what the one or the other needs is imported: Flower
starts a process for each message.
"""

from __future__ import annotations

from importlib.util import find_spec

from flwr.app import Context
from flwr.client import Client, ClientApp

from fedtide.base.one_object import one_object


def client_fn(context: Context) -> Client:
    """Make the client of a node; see clients/device/node.py for its node config."""
    if context.node_config.get("numpy") or find_spec("torch") is None:
        from clients import numpy_client

        return numpy_client.client_fn(context)
    from clients import torch_client

    return torch_client.client_fn(context)


app = ClientApp(client_fn=client_fn, mods=[one_object])
