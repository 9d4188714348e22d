"""A SuperLink's list of nodes, through the calls of Flower's own command `flwr supernode`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import NamedTuple

import click
from cryptography.hazmat.primitives import serialization
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import flwr_cli_exc_handler, init_http_client_from_connection
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedtide.base.errors import SettingsError

GONE = "unregistered"


class Node(NamedTuple):
    """A node: number, name, key, and since when it is `online`, `offline`, `registered` or `unregistered`."""

    number: int
    name: str
    key: bytes
    state: str
    since: str  # ISO 8601; empty: it was never there


class SuperLink:
    """A connection to the SuperLink of a name in Flower's config.toml; it has to be closed."""

    def __init__(self, client: ControlHttpClient) -> None:
        self._client = client

    def nodes(self) -> list[Node]:
        """Return the nodes that are or were registered, in the order of their registration."""
        with flwr_cli_exc_handler():
            found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [
            Node(
                number=info.node_id,
                name=info.name,
                key=bytes(info.public_key),
                state=info.status,
                since={"online": info.last_activated_at}.get(info.status, info.last_deactivated_at),
            )
            for info in sorted(found, key=lambda info: info.registered_at)
        ]

    def register(self, name: str, key: str) -> int:
        """Admit the node with a public key, as `key_bytes` takes it; return its number."""
        with flwr_cli_exc_handler():
            request = RegisterNodeRequest(public_key=key_bytes(key), name=name)
            return int(self._client.RegisterNode(request).node_id)

    def stop(self, run: int) -> None:
        """Stop a run by Flower's number."""
        with flwr_cli_exc_handler():
            self._client.StopRun(StopRunRequest(run_id=run))

    def unregister(self, node: int) -> None:
        """Admit a node no longer."""
        with flwr_cli_exc_handler():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))


@contextmanager
def connected(name: str) -> Iterator[SuperLink]:
    """Connect to a SuperLink by its name; SettingsError: there is none, or it refuses a call."""
    client = None
    try:
        with redirect_stdout(io.StringIO()):  # on which Flower names the SuperLink
            client = init_http_client_from_connection(read_superlink_connection(name))
        yield SuperLink(client)
    except click.ClickException as error:
        raise SettingsError(f"SuperLink {name}: {error.message}") from None
    finally:
        if client is not None:
            client.close()


def key_bytes(key: str) -> bytes:
    """Return a public key of OpenSSH as Flower stores it."""
    return bytes(public_key_to_bytes(serialization.load_ssh_public_key(key.encode())))  # type: ignore[arg-type]
