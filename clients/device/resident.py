"""A resident client: a process that has imported what a client needs, and forks one for every message.

Flower starts `flwr-clientapp` for each message, which imports Flower, PyTorch and the app again. A script of
that name, in a folder that comes first in the SuperNode's PATH, hands the arguments to this process instead.
It forks, and the child calls what `flwr-clientapp` calls: a process for each message as before, with the same
isolation, but without the imports. The app itself is imported again: a run may bring another version.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from clients.device.flower_internals import CLIENT_APP, program

OURS = ("clients", "fedtide", "traces", "strategies")
_MAX_BYTES = 1 << 16
_SECONDS = 10.0  # to hand the arguments of one message over


class Resident:
    """Answers the script in the place of `flwr-clientapp`; both it and the socket are in a private folder."""

    def __init__(self, folder: Path, imports: Sequence[str]) -> None:
        self.folder, self.imports = folder, imports
        self.children: set[int] = set()  # process ids of the clients at work
        self.socket = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Resident:
        address = self.folder / "clientapp.sock"
        self.socket.bind(str(address))
        self.socket.listen(8)
        hand_over = Path(__file__).with_name("hand_over.py")
        command = Path(sys.executable).with_name(CLIENT_APP)
        words = " ".join(f"'{word}'" for word in (sys.executable, "-IS", hand_over, address, command))
        script = self.folder / CLIENT_APP
        script.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        script.chmod(0o700)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.socket.close()
        self.end()

    def prepare(self) -> None:
        """Import what clients need, before the first message comes."""
        program(CLIENT_APP)
        for name in self.imports:
            with suppress(ImportError):  # a client that needs it says so
                importlib.import_module(name)
        gc.freeze()  # what is never looked at again stays shared with the children

    def answer(self) -> None:
        """Fork a client for the connection that is waiting."""
        connection, _ = self.socket.accept()
        with connection:
            connection.settimeout(_SECONDS)
            try:
                sent = b""
                while part := connection.recv(_MAX_BYTES):
                    sent += part
                    if len(sent) > _MAX_BYTES:
                        return
                child = os.fork()
                if not child:
                    _be_client(sent.decode().split("\0"), [self.socket, connection])
                self.children.add(child)
                connection.sendall(b"+")
            except OSError:
                return

    def reap(self) -> None:
        """Forget the clients that have ended."""
        for child in list(self.children):
            if os.waitpid(child, os.WNOHANG)[0]:
                self.children.discard(child)

    def end(self) -> None:
        """End the clients at work."""
        for child in self.children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.children.clear()


def _be_client(arguments: Sequence[str], inherited: Sequence[socket.socket]) -> None:
    """Be `flwr-clientapp` with these arguments, and end."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for connection in inherited:
            connection.close()
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]
        sys.argv = [CLIENT_APP, *arguments]
        ended = program(CLIENT_APP)()
        code = ended if isinstance(ended, int) else 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
