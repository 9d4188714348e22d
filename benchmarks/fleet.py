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
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supernode.fleet_http_connection import http_request_response

YIELD, MOST = 5.0, 15.0  # as clients.device: times what a poll took that the next one waits, at most so long
WORKERS = 4  # messages that are worked on at a time: more would only wait for the processor


class Fleet:
    """The nodes of a process, and what they have seen."""

    def __init__(self, address: str, app: Any, poll: float, patient: bool, ca: bytes | None) -> None:
        self.address, self.app, self.poll, self.patient, self.ca = address, app, poll, patient, ca
        self.requests: Counter[str] = Counter()
        self.seen: dict[str, float] = {}  # by type and group of a message, when it came first
        self.replied: Counter[str] = Counter()
        self.objects: Counter[str] = Counter()  # of a message to a node and of its reply, the last ones
        self.bytes_of_app = 0
        self.stop = threading.Event()
        self._working = threading.Semaphore(WORKERS)
        self._lock = threading.Lock()

    def serve(self, client: int) -> None:
        """Be a node until the end."""
        self.stop.wait(self.poll * (client % 97) / 97)  # not all at once
        context: Context | None = None
        with http_request_response(self.address, self.ca is None, self.ca, max_wait_time=600.0) as link:
            node, receive, send, get_run, get_fab, pull, push, confirm = link
            while not self.stop.is_set():
                begin = time.monotonic()
                if (received := receive()) is None:
                    took = time.monotonic() - begin
                    self.stop.wait(max(self.poll, min(YIELD * took, MOST)) if self.patient else self.poll)
                    continue
                head, tree = received
                kind, run = head.metadata.message_type, head.metadata.run_id
                with self._lock:
                    self.seen.setdefault(f"{kind} {head.metadata.group_id}", time.time())
                if context is None or context.run_id != run:
                    context = self._context(client, node, get_run(run), get_fab)
                message = pull_and_inflate_object_from_tree(
                    tree,
                    lambda name, run=run: pull(run, name),
                    lambda name, run=run: confirm(run, name),
                    return_type=Message,
                )
                message.metadata.__dict__["_message_id"] = head.metadata.message_id
                reply = self._answer(message, context)
                objects = get_all_nested_objects(reply)
                with self._lock:
                    self.objects["task"] = len([*iterate_object_tree(tree)])
                    self.objects["reply"] = len(objects)
                reply.metadata.__dict__["_message_id"] = reply.object_id
                missing, session = send(reply, get_object_tree(reply), 0.0)
                for name in missing:
                    push(run, session, name, objects[name].deflate())
                with self._lock:
                    self.replied[kind] += 1

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
    options = parser.parse_args()
    module, _, name = options.app.partition(":")
    sys.path.insert(0, "")
    app = getattr(importlib.import_module(module), name)
    ca = Path(options.ca).read_bytes() if options.ca else None
    fleet = Fleet(options.address, app, options.poll, options.patient, ca)
    counting(fleet)
    signal.signal(signal.SIGTERM, lambda *_: fleet.stop.set())
    threads = [threading.Thread(target=fleet.serve, args=(k,), daemon=True) for k in range(options.nodes)]
    for thread in threads:
        thread.start()
    fleet.stop.wait()
    told = ("requests", "seen", "replied", "objects", "bytes_of_app")
    print(json.dumps({key: getattr(fleet, key) for key in told}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
