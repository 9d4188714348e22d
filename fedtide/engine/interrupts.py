"""Ctrl-C, SIGTERM and SIGHUP: the run ends early, with the results so far."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from fedtide.engine.server import RoundServer

SIGHUP = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
ENDING = tuple({signal.SIGINT, signal.SIGTERM, SIGHUP})


class Stopped(BaseException):
    """A signal that ends the program; derived from BaseException, so that `except Exception` lets it pass."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def handling(handler: Callable[[int, object], object], *numbers: int) -> Iterator[None]:
    """Handle some signals; SIGHUP unless it is ignored, as by nohup.

    Outside of the main thread, as under `flwr run`, which handles them itself, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A shell's background jobs ignore SIGINT as well, which is still the way to stop a run by `kill`.
    unheeded = {SIGHUP} if signal.getsignal(SIGHUP) is signal.SIG_IGN else set()
    heeded = [number for number in numbers if number not in unheeded]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def deferring(*numbers: int) -> Iterator[list[int]]:
    """Only record some signals, and yield them: while Ray starts, it would lose them or leave processes."""
    signals: list[int] = []
    with handling(lambda number, frame: signals.append(number), *numbers):
        yield signals


@contextmanager
def stopping_on_interrupt(server: RoundServer, console: Console) -> Iterator[list[int]]:
    """End the training after this round at the first signal, at once at the second; yield the signals.

    While a round waits for workers that do not start, the first ends it at once as well.
    """
    signals: list[int] = []

    def stop(number: int, frame: object) -> None:
        signals.append(number)
        if server.stopping or (server.reaching and server.transport.is_stuck()):
            raise KeyboardInterrupt
        server.stopping = True
        console.print("stopping after this round; press Ctrl-C again to stop at once")

    with handling(stop, *ENDING):
        yield signals


@contextmanager
def stopping_at_once(server: RoundServer, console: Console) -> Iterator[list[int]]:
    """End the training when it next needs a client after the first signal; yield it, and ignore others.

    Flower sends one to a ServerApp when its run has been stopped or its SuperLink has ended: no client can be
    reached any more, and a call of the Grid would retry forever.
    """
    signals: list[int] = []

    def stop(number: int, frame: object) -> None:
        if not signals:
            signals.append(number)
            server.cut_off = True
            if server.reaching:
                raise KeyboardInterrupt

    with handling(stop, *ENDING), _waking_the_main_thread():
        yield signals


@contextmanager
def _waking_the_main_thread() -> Iterator[None]:
    """Send the main thread the first signal that another thread gets.

    Python handles signals in the main thread, which a signal to another thread does not wake: Flower's watch
    over the SuperLink raises SIGINT in its own thread, while a call of the Grid may wait forever.
    """
    here = threading.get_ident()
    if here != threading.main_thread().ident or not hasattr(signal, "pthread_kill"):  # as on Windows
        yield
        return
    reader, writer = socket.socketpair()

    def pass_on() -> None:
        if number := reader.recv(1):
            signal.pthread_kill(here, number[0])

    thread = threading.Thread(target=pass_on, daemon=True)
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        thread.start()
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()
        thread.join()
        reader.close()


@contextmanager
def raising_stopped() -> Iterator[None]:
    """Raise `Stopped` at these signals."""

    def stop(number: int, frame: object) -> None:
        raise Stopped(number)

    with handling(stop, *ENDING):
        yield
