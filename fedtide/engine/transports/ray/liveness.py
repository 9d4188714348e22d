"""Whether Ray is alive: checked before Ray itself ends this process, and reported in one sentence.

When its raylet has died, Ray 2.55 ends the driver silently, with exit code 1, after about 13 seconds or when
it next uses the object store; when its control process (GCS) has died, after 60 seconds. Until then calls do
not return. So this is checked before each use of the object store.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayError,
    RayTaskError,
)

from fedtide.engine.transports.base import EngineLost

PATIENCE = 30.0  # seconds without a cluster's control process, which may be restarted


class Liveness:
    """Watches Ray's two essential processes by a connection to each.

    One of them may be missing for `patience` seconds, of which `tell` is told. A check takes microseconds:
    the kernel closes the connections of a process that has died. `lost`: one has died in this process.
    """

    lost: ClassVar[bool] = False

    def __init__(self, patience: float = 0.0, tell: Callable[[str], object] = lambda line: None) -> None:
        self.patience, self._tell = patience, tell
        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        raylet = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
        self._watched = {
            "control process (GCS)": _Connection(context.gcs_address),
            "process on this machine (raylet)": _Connection(raylet),
        }

    def check(self) -> None:
        for name, connection in self._watched.items():
            if connection.is_open():
                continue
            if self.patience:
                self._tell(f"Ray's {name} does not answer; it has {self.patience:g} s to come back")
            until = time.monotonic() + self.patience
            while not connection.is_open():
                if time.monotonic() >= until:
                    self.patience = 0.0  # spent: Ray's own patience ends soon, and this process with it
                    Liveness.lost = True
                    raise EngineLost(f"Ray's {name} has died, see the logs in {_logs()}")
                time.sleep(1)

    def close(self) -> None:
        for connection in self._watched.values():
            connection.close()


class _Connection:
    """A connection to a server at HOST:PORT, over which nothing is sent."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._socket = self._connect()

    def is_open(self) -> bool:
        """Return whether the server is there; if it has closed an idle connection, connect again."""
        try:
            while self._socket.recv(4096):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        self.close()
        with suppress(OSError):
            self._socket = self._connect()
            return True
        return False

    def close(self) -> None:
        self._socket.close()

    def _connect(self) -> socket.socket:
        made = socket.create_connection(self._address, timeout=5)
        made.setblocking(False)
        return made


def engine_lost(error: RayError) -> EngineLost | None:
    """Return the error that ends the run; None: only the worker in which it happened has failed."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, ObjectStoreFullError | OutOfDiskError):
        return EngineLost(
            f"Ray's object store is full, and so is the disk that it spills to, in {_folder()}: "
            "free space, or set RAY_TMPDIR"
        )
    if isinstance(cause, LocalRayletDiedError):
        return EngineLost(f"Ray's process on this machine (raylet) has died, see the logs in {_logs()}")
    if cause is not error and isinstance(cause, ObjectLostError):  # otherwise a reply was lost
        return EngineLost(f"Ray has lost the memory of a client ({type(cause).__name__})")
    return None


def _folder() -> str:
    return os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()


def _logs() -> str:
    return f"{_folder()}/ray/session_latest/logs"
