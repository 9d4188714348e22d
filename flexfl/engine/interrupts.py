"""Ctrl-C: a run ends with what there is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from flexfl.engine.server import RoundServer


@contextmanager
def putting_interrupt_off() -> Iterator[list[int]]:
    """Only note a Ctrl-C: if interrupted as it starts, Ray loses it or leaves processes behind."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def stopping_on_interrupt(server: RoundServer, console: Console) -> Iterator[None]:
    """Let the first Ctrl-C end the training after the running round; the second one interrupts at once."""

    def stop(signum: int, frame: object) -> None:
        if server.stopping:
            raise KeyboardInterrupt
        server.stopping = True
        console.print("stopping after this round (Ctrl-C again: at once)")

    if threading.current_thread() is not threading.main_thread():  # under `flwr run`, which handles signals
        yield
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
