"""What the node config of a device says, whichever client it runs.

`client-id` is which client it is (in a simulation `partition-id`). With `state-dir`, its memory outlives the
node's process, and it can be made to leave (see `clients.device.leave`). `record-trace` is a log, or a folder
of logs, in which it records how fast it trains (see `traces.record`). `data`, with `target`, `classes` and
`fast-copy`, is where its own examples are (see `clients.device.local_data`). `stop-file` is a file that is
there once the client has to end its work and reply (see `clients.device`); with `departing-file` that counts
as leaving for good, and the client writes into it whether the server will ask for its state. With `report`
each reply says how the board is (see `clients.device.health`). `device` is where PyTorch trains.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context

from clients.device.health import health
from clients.device.leave import has_left, is_leaving
from clients.device.local_data import DataSpec
from clients.memory.handshake import Memory
from clients.memory.stores import ContextStore, FileStore, Store
from fedtide.base.contract import FitConfig, Scalar, metrics
from fedtide.base.errors import why

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Node:
    """A device, as a client sees it; see the beginning of this file. Paths that are empty are not used."""

    client: int
    store: Store
    record: str = ""
    data: DataSpec | None = None  # None: a part of the run's data set
    state_dir: str = ""
    run: str = ""
    stop_file: str = ""
    departing_file: str = ""
    report: bool = False
    device: str = "cpu"
    task_data: bool = False  # whether it is a device that trains on a part of the run's data set

    def stopping(self) -> bool:
        """Whether the client has to end its work and reply."""
        return os.path.exists(self.stop_file)

    def memory(self, config: FitConfig) -> Memory | None:
        """Return the client's memory, if the rule of the task keeps one; see `usable_memory`."""
        return None if config.last_accepted is None else self._store(config).load()

    def keep(self, config: FitConfig, memory: Memory) -> None:
        """Store the client's memory, before the reply is sent: the server may rely on it."""
        try:
            self._store(config).save(memory)
        except OSError as error:
            raise OSError(f"cannot keep the client's memory: {error}") from error

    def _store(self, config: FitConfig) -> Store:
        """Return the store of the memory: in a folder, that of the run which the server has resumed."""
        resumed = config.run and self.state_dir
        return FileStore(self.state_dir, config.run, self.client) if resumed else self.store

    def worked(self, steps: int, seconds: float, up_bytes: int) -> None:
        """Record how long the steps took; a failure to do so does not discard them."""
        if not self.record:
            return
        try:
            from traces.record import Recorder  # which locks files as Unix does

            Recorder(self.record, self.client).worked(steps, seconds, up_bytes)
        except (ImportError, OSError, ValueError) as error:
            log.warning("not recorded: %s", error)

    def closing_metrics(self, config: FitConfig, start: float) -> dict[str, Scalar]:
        """Return the last metrics of every reply: whether the client leaves, and the time since `start`."""
        reported: dict[str, Scalar] = {}
        if os.path.exists(self.departing_file) or self._asks(is_leaving):
            reported[metrics.DEPARTING] = True
            self._expect_farewell(config)
        if self.task_data:
            reported[metrics.TASK_DATA] = True
        if config.deadline_seconds is not None:
            reported[metrics.SECONDS] = time.monotonic() - start
        return reported | (health(self.state_dir or "/") if self.report else {})

    def has_left(self) -> bool:
        """Whether the client has left before this run."""
        return self._asks(has_left)

    def _asks(self, question: Callable[[Path, str], bool]) -> bool:
        """Look into the folder of the state; one that cannot be used does not discard the client's work."""
        try:
            return bool(self.state_dir) and question(Path(self.state_dir), self.run)
        except OSError as error:
            log.warning("%s: %s; the client stays", error.filename, why(error))
            return False

    def _expect_farewell(self, config: FitConfig) -> None:
        """Note whether one more task will come, if this device is being stopped."""
        expected = config.last_accepted is not None and not config.farewell
        if os.path.exists(self.departing_file):
            try:
                Path(self.departing_file).write_text("farewell" if expected else "", encoding="utf-8")
            except OSError as error:
                log.warning("%s: %s; the device does not wait", error.filename, why(error))


def make_node(context: Context, num_clients: int | None = None) -> Node:
    """Read a node config; the run has `num_clients`, if that is known."""
    config = context.node_config
    name = config.get("client-id", config.get("partition-id"))
    if name is None:
        raise ValueError("node-config has no client-id; start the SuperNode with --node-config 'client-id=0'")
    client = int(name)
    if client < 0 or (num_clients is not None and client >= num_clients):
        last = "" if num_clients is None else f"..{num_clients - 1} (num-clients)"
        raise ValueError(f"client-id {client} is not in 0{last or ', 1, 2, ...'}")
    folder, run = str(config.get("state-dir", "")), str(context.run_id)
    data = str(config.get("data", context.run_config.get("data", "")))
    named = (str(config.get(name, "")) for name in ("target", "classes", "fast-copy"))
    spec = DataSpec(data, *named)
    return Node(
        client,
        FileStore(folder, run, client) if folder else ContextStore(context),
        str(config.get("record-trace", "")),
        spec if data else None,
        folder,
        run,
        str(config.get("stop-file", "")),
        str(config.get("departing-file", "")),
        bool(config.get("report", False)),
        str(config.get("device", "cpu")),
        not data and "client-id" in config,
    )
