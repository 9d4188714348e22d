"""Ctrl-C and SIGTERM: the run ends early, with the results so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from flexfl.engine.server import RoundServer


@contextmanager
def deferring_interrupts() -> Iterator[list[int]]:
    """Only record a Ctrl-C: while Ray starts, it would lose the signal or leave processes behind.

    Yields
    ------
    list
        The interrupts so far.
    """
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def stopping_on_interrupt(server: RoundServer, console: Console) -> Iterator[list[int]]:
    """End the training after the current round at the first Ctrl-C or SIGTERM, and at once at the second.

    Yields
    ------
    list
        The signals so far.
    """
    signals: list[int] = []

    def stop(number: int, frame: object) -> None:
        signals.append(number)
        if server.stopping:
            raise KeyboardInterrupt
        server.stopping = True
        console.print("stopping after this round; press Ctrl-C again to stop at once")

    if threading.current_thread() is not threading.main_thread():  # under `flwr run`, which handles signals
        yield signals
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
