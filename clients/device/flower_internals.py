"""All that a device needs of Flower beyond its public interface, tried with Flower 1.41 and 1.42.

A version of Flower that lacks one of these names fails here, with a line that says which, and every name has
a test in tests/test_flower_internals.py. Flower is imported only where it is needed: the process that starts
a SuperNode does without it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points, version
from types import SimpleNamespace
from typing import Any

SUPERNODE, CLIENT_APP = "flower-supernode", "flwr-clientapp"
"""Flower's programs: the node, and the one that it starts for every message, by its name in PATH."""

TASK_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
"""Environment variable: seconds between two looks of the SuperExec, which starts `CLIENT_APP`, for a task."""

LOOP = "flwr.supernode.start_client_internal"
RECEIVE = "_pull_and_store_message"
RUN_NOT_RUNNING = "flwr.supercore.run:RunNotRunningException"


class FlowerChangedError(RuntimeError):
    """The installed version of Flower lacks a name on which devices rely."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"flwr {version('flwr')} has no {what}, on which devices rely: install flwr 1.41 or 1.42, or "
            f"start {SUPERNODE} instead"
        )


def find(name: str) -> Any:
    """Return a module of Flower, or with `module:attribute` something in it."""
    module, _, attribute = name.partition(":")
    try:
        found = import_module(module)
        return getattr(found, attribute) if attribute else found
    except (ImportError, AttributeError):
        raise FlowerChangedError(name) from None


def program(name: str) -> Callable[[], object]:
    """Return the function behind a program of Flower."""
    for command in entry_points(group="console_scripts", name=name):
        return command.load()  # type: ignore[no-any-return]
    raise FlowerChangedError(f"program {name}")


def replace_waits(sleep: Callable[[float], None]) -> None:
    """Have Flower's loop call `sleep` wherever it waits.

    The loop asks the SuperLink for a message, waits 3 seconds if there is none, and looks every half second
    for the reply to a message that is in work.
    """
    find(f"{LOOP}:time")
    find(LOOP).time = SimpleNamespace(**{**vars(time), "sleep": sleep})


def keep_started(started: list[subprocess.Popen[bytes]]) -> None:
    """Have Flower's loop add to `started` what it starts: the SuperExec, which it forgets otherwise."""
    start = find(f"{LOOP}:subprocess").Popen

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        return started[-1]

    find(LOOP).subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": popen})


def discard_tasks_of_stopped_runs() -> None:
    """Let Flower's loop discard a task whose run is stopped while the task is being received.

    It would keep such a task, have it done, and send the reply after the next task, whose own reply is left
    behind, and so on with all that follow. When receiving fails for any other reason, it discards the task.
    """
    receive, stopped = find(f"{LOOP}:{RECEIVE}"), find(RUN_NOT_RUNNING)

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except stopped as error:
                raise ConnectionAbortedError("its run was stopped") from error

        return called

    def receiving(**calls: Any) -> int | None:
        calls |= {name: failing(calls[name]) for name in ("pull_object", "confirm_message_received")}
        return receive(**calls)  # type: ignore[no-any-return]

    setattr(find(LOOP), RECEIVE, receiving)
