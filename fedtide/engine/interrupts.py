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
ENDING = {signal.SIGINT, signal.SIGTERM, SIGHUP}


class Stopped(BaseException):
    """A signal that ends the program; derived from BaseException, so that `except Exception` lets it pass."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def handling(handler: Callable[[int, object], object]) -> Iterator[None]:
    """Handle the signals that end a run; SIGHUP unless it is ignored, as by nohup.

    Outside of the main thread, as under `flwr run`, which handles them itself, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A shell's background jobs ignore SIGINT as well, which is still the way to stop a run by `kill`.
    unheeded = {SIGHUP} if signal.getsignal(SIGHUP) is signal.SIG_IGN else set()
    before = {number: signal.signal(number, handler) for number in ENDING - unheeded}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def deferring() -> Iterator[list[int]]:
    """Only record signals, and yield them: while Ray starts, it would lose them or leave processes."""
    signals: list[int] = []
    with handling(lambda number, frame: signals.append(number)):
        yield signals


@contextmanager
def whole() -> Iterator[list[int]]:
    """Do something that must not be cut off: `Stopped` is raised at its end. Yields the signals so far."""
    with deferring() as signals:
        yield signals
    if signals:
        raise Stopped(signals[0])


@contextmanager
def stopping_on_interrupt(
    server: RoundServer, console: Console, signals: list[int] | None = None
) -> Iterator[list[int]]:
    """End the training after this round at the first signal, at once at the second; yield the signals.

    While a round waits for workers that do not start, the first ends it at once as well. `signals` are those
    before the first round.
    """
    heard = [] if signals is None else signals

    def stop(number: int, frame: object) -> None:
        heard.append(number)
        if server.stopping or (server.reaching and server.transport.is_stuck()):
            raise KeyboardInterrupt
        server.stopping = True

    def tell(number: int) -> None:
        console.print("stopping after this round; press Ctrl-C again to stop at once")

    with _at_first_signal(tell), handling(stop):
        server.stopping = server.stopping or bool(heard)
        yield heard


@contextmanager
def finishing(signals: list[int]) -> Iterator[None]:
    """Record signals, and raise KeyboardInterrupt at the second one of the whole run."""

    def stop(number: int, frame: object) -> None:
        signals.append(number)
        if len(signals) > 1:
            raise KeyboardInterrupt

    with handling(stop):
        yield


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

    def wake(number: int) -> None:
        """Send the signal to the main thread, which handles it, but is not woken if another thread gets it.

        Flower's watch over the SuperLink raises SIGINT in its own thread, while a call of the Grid may wait
        forever.
        """
        if hasattr(signal, "pthread_kill"):  # Windows has none
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    with handling(stop), _at_first_signal(wake):
        yield signals


@contextmanager
def _at_first_signal(call: Callable[[int], object]) -> Iterator[None]:
    """Call a function with the first signal that ends a run, in a thread: a handler may do next to nothing.

    It would interrupt whatever the main thread is doing: printing, importing, holding a lock.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()

    def wait() -> None:
        while number := reader.recv(1):
            if number[0] in ENDING:
                call(number[0])
                return

    thread = threading.Thread(target=wait, daemon=True)
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

    with handling(stop):
        yield
