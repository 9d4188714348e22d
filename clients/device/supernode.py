"""Flower's SuperNode with shorter waits: it outlives stopped runs, and ends itself when all is sent.

It also ends when its SuperExec has, without which it would take tasks and do none.

python -m clients.device.supernode POLL STOP_FILE DEPARTING_FILE [flower-supernode's options]
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time

from clients.device.flower_internals import (
    SUPERNODE,
    FlowerChangedError,
    discard_tasks_of_stopped_runs,
    keep_started,
    program,
    replace_waits,
)

IDLE = 1.0  # a longer wait is one between two polls of the SuperLink
REPLY_POLL = 0.1
YIELD = 10.0  # times what a poll took that the next one waits: a busy SuperLink is asked less often
MOST = 30.0  # seconds
SETTLE = 3.0  # for the server to fetch the last reply: Flower withholds replies of a node that has gone


def shorten_waits(poll: float, stop_file: str, departing_file: str) -> None:
    """Let Flower's loop wait `poll` seconds between two polls of a SuperLink that is not busy.

    `stop_file` is there once the SuperNode has to end, when it has nothing left to send, and
    `departing_file` is not empty while one more task is expected.
    """
    replied, woken = -SETTLE, math.inf
    started: list[subprocess.Popen[bytes]] = []

    def sleep(seconds: float) -> None:
        nonlocal replied, woken
        took = time.monotonic() - woken
        if (code := next((process.poll() for process in started), None)) is not None:
            print(f"fedtide-device: error: Flower's SuperExec has ended (exit code {code})", file=sys.stderr)
            signal.raise_signal(signal.SIGTERM)
        elif seconds <= IDLE:  # a message is in work
            time.sleep(min(seconds, REPLY_POLL))
            replied = time.monotonic()
        elif not os.path.exists(stop_file) or _is_filled(departing_file):
            time.sleep(max(min(seconds, poll), min(YIELD * took, MOST)))
        elif (left := replied + SETTLE - time.monotonic()) > 0:
            time.sleep(min(left, poll))
        else:
            signal.raise_signal(signal.SIGTERM)  # Flower ends in order: it tells the SuperLink
        woken = time.monotonic()

    keep_started(started)
    replace_waits(sleep)


def _is_filled(file: str) -> bool:
    try:
        return os.path.getsize(file) > 0
    except OSError:
        return False


def main() -> int:
    """Run Flower's SuperNode; return the exit code."""
    poll, stop_file, departing_file, *options = sys.argv[1:]
    try:
        shorten_waits(float(poll), stop_file, departing_file)
        discard_tasks_of_stopped_runs()
        command = program(SUPERNODE)
    except FlowerChangedError as error:
        print(f"fedtide-device: error: {error}", file=sys.stderr)
        return 1
    sys.argv = [SUPERNODE, *options]
    code = command()
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
