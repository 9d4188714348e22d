"""Many SuperNodes in one process: Flower's own fleet protocol, a key and heartbeats each, and any ClientApp.

    python benchmarks/fleet.py ADDRESS NODES MODULE:APP [--poll 3] [--ca FILE]

Each node is a thread that looks for messages every so many seconds, fetches the app and the objects of a
message one by one as a SuperNode does, and calls the ClientApp in this process. At SIGTERM it prints what
was asked of the SuperLink, by kind, and when each group of messages (a round) was first seen, as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import threading
import time
from collections import Counter, deque
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

YIELD, MOST = 10.0, 30.0  # as clients.device: times what a poll took that the next one waits, at most so long
# Of the nodes that get a task: the share that has each fault.
LEAVES, HANGS, RUBBISH, SLOW = 0.10, 0.01, 0.01, 0.05
FAULTS = ("leaves", "hangs", "rubbish", "slow")


class Faults:
    """Draws the fault of each task from (seed, client, round), and knows which clients are away.

    A node that leaves does so before its answer or after it, and another client joins in its place: the one
    that has been away longest. One that hangs is restarted after `patience` seconds; a slow one answers so
    late, up to twice that. With `share` 0 there are no faults; with 1 those of above.
    """

    def __init__(self, nodes: int, away: int, share: float, patience: float) -> None:
        self.share, self.patience = share, patience
        self.had: Counter[str] = Counter()
        self._away = deque(range(nodes, nodes + away))
        self._lock = threading.Lock()

    def of(self, client: int, group: str) -> tuple[str, float]:
        """Return the fault of a client in a round, empty: none, and a number below 1 that says how."""
        rng = np.random.default_rng([client, *group.encode()])
        drawn, kind = rng.random(2)
        edges = self.share * np.cumsum([LEAVES, HANGS, RUBBISH, SLOW])
        fault = (*FAULTS, "")[int(np.searchsorted(edges, drawn, side="right"))]
        if fault:
            with self._lock:
                self.had[fault] += 1
        return fault, float(kind)

    def next_for(self, client: int) -> int:
        """Return the client that joins when this one leaves."""
        with self._lock:
            self._away.append(client)
            return self._away.popleft()


class Fleet:
    """The nodes of a process, and what they have seen."""

    def __init__(self, options: argparse.Namespace, app: Any) -> None:
        self.options, self.app = options, app
        self.ca = Path(options.ca).read_bytes() if options.ca else None
        self.faults = Faults(options.nodes, options.away, options.faults, options.patience)
        self.requests: Counter[str] = Counter()
        # By type and group of a message: when the first and the last node got it, and the last replied.
        self.times: dict[str, list[float]] = {}
        self.replied: Counter[str] = Counter()
        self.usable: list[tuple[int, str]] = []  # replies to tasks that were no rubbish: client and group
        self.errors: Counter[str] = Counter()  # of the SuperLink, or on the way to it
        self.objects: Counter[str] = Counter()  # of a message to a node and of its reply, the last ones
        self.bytes_of_app = 0
        self.stop = threading.Event()
        self._working = threading.Lock()  # an app may count on a process for each message
        self._lock = threading.Lock()

    def serve(self, client: int) -> None:
        """Be a node until the end, and another one when it has left."""
        self.stop.wait(self.options.poll * (client % 97) / 97)  # not all at once
        while not self.stop.is_set():
            address, insecure = self.options.address, self.ca is None
            with http_request_response(address, insecure, self.ca, max_wait_time=600.0) as link:
                leaves = self._be(client, link)
            client = self.faults.next_for(client) if leaves else client

    def _be(self, client: int, link: Any) -> bool:
        """Be a node until it leaves or is restarted; return whether it leaves."""
        receive, poll, contexts, seen = link[1], self.options.poll, {}, Counter[str]()
        while not self.stop.is_set():
            begin = time.monotonic()
            try:
                if (received := receive()) is not None:
                    fault = self._handle(client, link, *received, contexts, seen)
                    if fault in ("leaves", "hangs"):
                        return fault == "leaves"
                    continue
            except (httpx.HTTPError, RunNotRunningException) as error:  # as a SuperNode, go on
                with self._lock:
                    self.errors[type(error).__name__] += 1
            took = time.monotonic() - begin
            self.stop.wait(max(poll, min(YIELD * took, MOST)) if self.options.patient else poll)
        return False

    def _handle(
        self,
        client: int,
        link: Any,
        head: Message,
        tree: ObjectTree,
        contexts: dict[int, Context],
        seen: Counter[str],
    ) -> str:
        """Answer a message, unless the node has a fault; return it."""
        node, _, send, get_run, get_fab, pull, push, confirm = link
        kind, run = head.metadata.message_type, head.metadata.run_id
        seen[kind] += 1
        group = head.metadata.group_id or str(seen[kind])  # Flower's own strategies name no round
        times = self._note_time(f"{kind} {group}")
        if run not in contexts:
            contexts[run] = self._context(client, node, get_run(run), get_fab)
        message = pull_and_inflate_object_from_tree(
            tree, lambda name: pull(run, name), lambda name: confirm(run, name), return_type=Message
        )
        message.metadata.__dict__["_message_id"] = head.metadata.message_id
        fault, drawn = self.faults.of(client, group) if kind == MessageType.TRAIN else ("", 0.0)
        if fault == "hangs":
            self.stop.wait(self.faults.patience)
        if fault == "hangs" or (fault == "leaves" and drawn < 0.5):
            return fault
        reply = rubbish(message, drawn) if fault == "rubbish" else self._answer(message, contexts[run])
        if fault == "slow":
            self.stop.wait(2 * drawn * self.faults.patience)
        objects = get_all_nested_objects(reply)
        with self._lock:
            self.objects["task"] = len([*iterate_object_tree(tree)])
            self.objects["reply"] = len(objects)
            if fault != "rubbish" and kind == MessageType.TRAIN:
                self.usable.append((client, group))
        reply.metadata.__dict__["_message_id"] = reply.object_id
        missing, session = send(reply, get_object_tree(reply), 0.0)
        for name in missing:
            push(run, session, name, objects[name].deflate())
        with self._lock:
            self.replied[kind] += 1
            times[2] = time.time()
        return fault

    def _note_time(self, name: str) -> list[float]:
        with self._lock:
            now = time.time()
            times = self.times.setdefault(name, [now, now, now])
            times[1] = now
            return times

    def _context(self, client: int, node: int, run: Any, get_fab: Any) -> Context:
        """Fetch the app, as every node does; all read the same configuration."""
        fab = get_fab(run.fab_hash, run.run_id)
        self.bytes_of_app = len(fab.content)
        return Context(
            run_id=run.run_id,
            node_id=node,
            node_config={"client-id": client, "partition-id": client},
            state=RecordDict(),
            run_config=_config(fab.content, run.run_id, json.dumps(run.override_config)),
        )

    def _answer(self, message: Message, context: Context) -> Message:
        with self._working:
            try:
                return self.app(message, context)
            except Exception as error:  # as a SuperNode: the server is told
                return Message(Error(2, repr(error)[:200]), reply_to=message)


@lru_cache(maxsize=2)
def _config(fab: bytes, run_id: int, overrides: str) -> dict[str, Any]:
    run = argparse.Namespace(run_id=run_id, override_config=json.loads(overrides))
    return get_fused_config_from_fab(fab, run)


def rubbish(task: Message, kind: float) -> Message:
    """Return an answer that no server can use: an error, nothing, or bytes."""
    if kind < 1 / 3:
        return Message(Error(2, "rubbish"), reply_to=task)
    content = ConfigRecord({"one-object": b"\xff" * 100, "rubbish": "x"})
    return Message(RecordDict({"one-object": content} if kind < 2 / 3 else {}), reply_to=task)


def counting(fleet: Fleet) -> None:
    """Have the fleet count its requests by their path."""
    unary = ProtobufClient._unary_unary

    def counted(self: Any, *args: Any, path: str, **named: Any) -> Any:
        with fleet._lock:
            fleet.requests[path.rpartition("/")[2]] += 1
        return unary(self, *args, path=path, **named)

    ProtobufClient._unary_unary = counted  # type: ignore[method-assign]


def main() -> int:
    """Run the nodes until SIGTERM."""
    parser = argparse.ArgumentParser(description="Many SuperNodes in one process.")
    parser.add_argument("address", help="of the SuperLink, HOST:PORT")
    parser.add_argument("nodes", type=int, help="how many")
    parser.add_argument("app", help="a ClientApp, MODULE:NAME")
    parser.add_argument("--poll", type=float, default=3.0, help="seconds between looks for messages (3)")
    parser.add_argument(
        "--patient", action="store_true", help="as clients.device: longer polls if it is busy"
    )
    parser.add_argument("--ca", help="the certificate of the SuperLink's authority; without: no TLS")
    parser.add_argument("--away", type=int, default=0, help="clients that are away at first (0)")
    parser.add_argument("--faults", type=float, default=0.0, help="1: the shares of `Faults` (0)")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds of a hang (10)")
    options = parser.parse_args()
    module, _, name = options.app.partition(":")
    sys.path.insert(0, "")
    fleet = Fleet(options, getattr(importlib.import_module(module), name))
    counting(fleet)
    signal.signal(signal.SIGTERM, lambda *_: fleet.stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from Flower, when a heartbeat was refused
    threads = [threading.Thread(target=fleet.serve, args=(k,), daemon=True) for k in range(options.nodes)]
    for thread in threads:
        thread.start()
    fleet.stop.wait()
    told = ("requests", "times", "replied", "usable", "errors", "objects", "bytes_of_app")
    print(json.dumps({key: getattr(fleet, key) for key in told} | {"faults": fleet.faults.had}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
