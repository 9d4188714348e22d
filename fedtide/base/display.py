"""Standard output and error, which may be closed, full, blocked, or lack a letter that is printed.

What a run shows of itself is a display: what cannot be shown is lost, and the run goes on. What a command is
for, such as the lines of `--list`, is its output: if that is lost, the command has failed.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from errno import EBADF, EPIPE
from functools import wraps
from signal import SIGINT
from typing import Any, ParamSpec, TextIO, cast

from fedtide.base.errors import SettingsError, why

P = ParamSpec("P")
SIGPIPE = 13
PATIENCE = 2.0  # seconds that a run waits for a display which takes no text, such as a paused terminal


class OutputLost(BaseException):
    """What a command is for could not be printed; `except Exception` lets it pass."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {why(error)}")
        self.code = 128 + SIGPIPE if error.errno == EPIPE else 1  # as if the signal had ended it


class Stream:
    """A standard stream that prints line by line, and that never ends what is printed about.

    Letters that its encoding lacks are written as escapes. A stream that belongs to the operating system is
    written without Python's buffer, in which a text that cannot be written would fail again at exit, and in a
    thread, which a pipe that nobody reads may block; meanwhile further text is lost. One that `is_output`,
    what the command is for, waits for as long as it takes, and raises `OutputLost`. `file` is None if the
    stream was closed when the program started.
    """

    def __init__(self, file: TextIO | None, is_output: bool = False) -> None:
        self.source, self.is_output = file, is_output
        self.lost = ""  # why some text was not shown
        self._file = file or io.StringIO()
        self._raw = _raw(file)
        self._error = None if file else _closed()
        self._pending = ""
        self._writing: threading.Thread | None = None
        self._is_blocked = False
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Take a text, which is shown at the end of its line or by `flush`."""
        with self._lock:
            self._pending += text
            if "\n" in text:
                self.flush()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Take several texts."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Show what has been taken."""
        with self._lock:
            text, self._pending = self._pending, ""
            if text and not self._error:
                self._show(text)
            if text and self._error:
                self.lost = self.lost or why(self._error)
                if self.is_output:
                    raise OutputLost(self._error)

    def _show(self, text: str) -> None:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        encoded = text.encode(encoding, "backslashreplace")
        raw = self._raw
        never_blocks = not raw or stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
        if self.is_output or never_blocks:
            self._put(encoded, encoding)
        elif self._is_idle():
            self._writing = threading.Thread(target=self._put, args=(encoded, encoding), daemon=True)
            self._writing.start()
            self._is_idle()
        else:
            self.lost = self.lost or "it was blocked for a time"

    def _is_idle(self) -> bool:
        """Wait until the last text is shown, if it blocks for a while only; return whether it is."""
        if self._writing:
            self._writing.join(0 if self._is_blocked else PATIENCE)
        self._is_blocked = bool(self._writing and self._writing.is_alive())
        return not self._is_blocked

    def _put(self, text: bytes, encoding: str) -> None:
        try:
            if not self._raw:
                self._file.write(text.decode(encoding))
                self._file.flush()
                return
            while text:
                if (written := self._raw.write(text)) is None:  # somebody has set it non-blocking
                    select.select([], [self._raw], [])
                text = text[written or 0 :]
        except OSError as error:
            self._error = error
        except ValueError:  # somebody has closed it
            self._error = _closed()


def _raw(file: TextIO | None) -> io.FileIO | None:
    """Return what a stream writes to in the end, if that is a file of the operating system."""
    if not isinstance(file, io.TextIOWrapper) or "write" in vars(file):  # Flower's log reads what is written
        return None
    raw = getattr(file.buffer, "raw", file.buffer)
    return raw if isinstance(raw, io.FileIO) else None


def _closed() -> OSError:
    return OSError(EBADF, os.strerror(EBADF))


@contextmanager
def display(is_output: bool = False) -> Iterator[None]:
    """Print to streams whose failure ends nothing; with `is_output`, that of standard output is raised."""
    before = sys.stdout, sys.stderr
    sources = [file.source if isinstance(file, Stream) else file for file in before]
    streams = [Stream(sources[0], is_output), Stream(sources[1])]
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            stream.flush()


def lost_display() -> str:
    """Return why some of what was printed to the streams of `display` was lost; empty if nothing was."""
    names = {"standard output": sys.stdout, "standard error": sys.stderr}
    lost = {name: getattr(stream, "lost", "") for name, stream in names.items()}
    return "; ".join(f"{name}: {why}" for name, why in lost.items() if why)


def exit_code(prog: str, main: Callable[[], int | None]) -> int:
    """Return the exit code of a program whose output is what it is for.

    If that is lost, one line says so, or none if the reader has gone, as after `| head`. Input that cannot
    be used, and a file that cannot be read or written, are one line and exit code 2.
    """
    try:
        with display(is_output=True):
            return main() or 0
    except OutputLost as lost:
        code, message = lost.code, str(lost) if lost.code == 1 else ""
    except SettingsError as error:
        code, message = 2, str(error)
    except OSError as error:
        code, message = 2, f"{error.filename or ''}: {why(error)}".removeprefix(": ")
    except KeyboardInterrupt:
        code, message = 128 + SIGINT, ""
    if message:
        with display():
            print(f"{prog}: error: {message}", file=sys.stderr)
    return code


def command(prog: str) -> Callable[[Callable[P, int | None]], Callable[P, int]]:
    """Decorate the main function of a program so that it returns an exit code, see `exit_code`."""

    def decorate(main: Callable[P, int | None]) -> Callable[P, int]:
        @wraps(main)
        def run(*args: P.args, **kwargs: P.kwargs) -> int:
            return exit_code(prog, lambda: main(*args, **kwargs))

        return run

    return decorate
