"""Starts a device's SuperNode, and ends it in order."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from clients.device.flower_internals import TASK_POLL
from clients.device.resident import Resident

STOP, DEPARTING = "stop", "departing"  # files in the device's private folder
_LAST_SECONDS = 8.0  # for Flower's own end; it takes 5 at most


@dataclass(frozen=True)
class Launch:
    """The programs of a device, and how they end."""

    options: list[str]  # of `flower-supernode`
    recorder: list[str]  # arguments of `python -m traces.record`; empty: it is not started
    imports: tuple[str, ...]  # of a resident client; empty: Flower starts a process for each message
    poll: float  # seconds between two polls of the SuperLink
    departs: bool  # whether a reply after a signal says that the device leaves for good
    grace: float  # seconds for the task at work to be answered


def supervise(launch: Launch, folder: Path) -> int:
    """Run a device until its SuperNode ends or a signal comes; return the exit code.

    The node config's `stop-file` and `departing-file` are in the private folder.
    """
    signalled: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signalled.append(number)

    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    with ExitStack() as stack:
        stack.callback(wake.close)
        stack.callback(woken.close)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, note)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, -1)
        resident = stack.enter_context(Resident(folder, launch.imports)) if launch.imports else None
        if resident is not None:
            resident.prepare()
        node = _start(
            "clients.device.supernode",
            str(launch.poll),
            str(folder / STOP),
            str(folder / DEPARTING),
            *launch.options,
            env=_env(launch, folder),
        )
        stack.callback(_end, node)
        if launch.recorder:
            recorder = _start("traces.record", *launch.recorder)
            stack.callback(_end, recorder)
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(woken, selectors.EVENT_READ)
        if resident is not None:
            selector.register(resident.socket, selectors.EVENT_READ)
        until: float | None = None
        while node.poll() is None:
            if until is not None and time.monotonic() >= until:
                break
            left = None if until is None else max(0.0, until - time.monotonic())
            for key, _ in selector.select(left):
                if resident is not None and key.fileobj is resident.socket:
                    resident.answer()
                else:
                    with suppress(BlockingIOError):
                        woken.recv(4096)
            if resident is not None:
                resident.reap()
            if until is None and {signal.SIGTERM, signal.SIGINT} & set(signalled):
                until = time.monotonic() + launch.grace
                if launch.departs:
                    (folder / DEPARTING).touch()
                (folder / STOP).touch()
        # One that ended by itself has never 0, so that systemd starts it again.
        return 0 if until is not None else max(node.returncode or 0, 1)


def _start(module: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Run a module in a session of its own: a Ctrl-C is for this process only."""
    command = [sys.executable, "-m", "clients.device.tied", module, *arguments]
    return subprocess.Popen(command, env=env, start_new_session=True)


def _env(launch: Launch, folder: Path) -> dict[str, str]:
    """Return the environment of the SuperNode, which finds Flower's programs, and our script, in PATH."""
    first = [str(folder)] if launch.imports else []
    path = os.pathsep.join([*first, str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {TASK_POLL: "0.1", **os.environ, "PATH": path}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process in order, then what it has started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
