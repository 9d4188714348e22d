"""Flower's SuperNode with shorter waits: it outlives stopped runs, and ends itself when all is sent.

    python -m clients.device.supernode POLL STOP_FILE DEPARTING_FILE [flower-supernode's options]

Flower's loop asks the SuperLink for a message, waits 3 seconds if there is none, and while a message is in
work looks every half second for its reply. All these waits are calls of one `sleep`, which is replaced here.
Should a later version wait in another way, its waits stay as they are, and the command that started this ends
it by a signal.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal as loop

IDLE = 1.0  # a longer wait is one between two polls of the SuperLink
REPLY_POLL = 0.1
YIELD = 10.0  # times what a poll took that the next one waits: a busy SuperLink is asked less often
MOST = 30.0  # seconds
SETTLE = 3.0  # for the server to fetch the last reply: Flower withholds replies of a node that has gone


def shorten_waits(poll: float, stop_file: str, departing_file: str) -> None:
    """Replace the `sleep` of Flower's loop: `poll` seconds between two polls of a SuperLink that is not busy.

    `stop_file` is there once the SuperNode has to end, when it has nothing left to send, and
    `departing_file` is not empty while one more task is expected.
    """
    replied, woken = -SETTLE, math.inf

    def sleep(seconds: float) -> None:
        nonlocal replied, woken
        took = time.monotonic() - woken
        if seconds <= IDLE:  # a message is in work
            time.sleep(min(seconds, REPLY_POLL))
            replied = time.monotonic()
        elif not os.path.exists(stop_file) or _is_filled(departing_file):
            time.sleep(max(min(seconds, poll), min(YIELD * took, MOST)))
        elif (left := replied + SETTLE - time.monotonic()) > 0:
            time.sleep(min(left, poll))
        else:
            signal.raise_signal(signal.SIGTERM)  # Flower ends in order: it tells the SuperLink
        woken = time.monotonic()

    vars(loop)["time"] = SimpleNamespace(**{**vars(time), "sleep": sleep})


def discard_tasks_of_stopped_runs() -> None:
    """Let Flower's loop discard a task whose run is stopped while the task is being received.

    It would keep such a task, have it done, and send the reply after the next task, whose own reply is left
    behind, and so on with all that follow. When receiving fails for any other reason, it discards the task.
    """

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except RunNotRunningException as error:
                raise ConnectionAbortedError("its run was stopped") from error

        return called

    receive = loop._pull_and_store_message

    def receiving(**calls: Any) -> int | None:
        calls |= {name: failing(calls[name]) for name in ("pull_object", "confirm_message_received")}
        return receive(**calls)

    vars(loop)["_pull_and_store_message"] = receiving


def _is_filled(file: str) -> bool:
    try:
        return os.path.getsize(file) > 0
    except OSError:
        return False


def main() -> int:
    """Run Flower's SuperNode."""
    poll, stop_file, departing_file, *options = sys.argv[1:]
    shorten_waits(float(poll), stop_file, departing_file)
    discard_tasks_of_stopped_runs()
    (command,) = entry_points(group="console_scripts", name="flower-supernode")
    sys.argv = ["flower-supernode", *options]
    return int(command.load()() or 0)


if __name__ == "__main__":
    sys.exit(main())
