"""Recorder of a device: when it is online and how fast it works, in the log that `recorded:file=` replays.

    python -m traces.record --client 3 --file log.csv

logs every minute that the device is on, until it is stopped (Ctrl-C, SIGTERM). A training program calls
`Recorder.worked` after each piece of work, as the ClientApp does if its node config has `record-trace`; both
may write to one file. This module needs only the standard library, and the file can be copied and run alone.

A line describes a past interval and is never changed. A session of one hour is 60 adjacent lines, which the
reader joins. A power cut therefore loses only what came after the last line.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, one recorder may write to a log
    fcntl = None  # type: ignore[assignment]

HEADER = b"client,start,end,steps_per_second,up_bytes_per_second\n"
_EARLIEST = 1577836800.0  # 2020; a clock that shows less has not been set since the device was switched on
_MAX_GAP = 1.0  # seconds between sessions that are joined
_SHORTEST = 0.001  # seconds of a session: the log has milliseconds
_STEP = 1.0  # seconds that the clock may be behind the log without a warning: a time service steps it


class Entry(NamedTuple):
    """A client's last line: the end of its session, and speed and upload rate as written."""

    end: float
    speed: str
    up_rate: str


class Recorder:
    """Appends the sessions of one client to a log; other recorders may append to the same log.

    An entry is on disk when the method that writes it returns. It omits what the client's other entries
    cover, so that sessions never overlap.

    Durations are measured by a monotonic clock; the system's clock only gives their position in time. If the
    system's clock cannot be right, because it shows a year before 2020 or a time before the end of the log,
    time online is kept in memory and written, at the right position, once that clock has been set.

    Parameters
    ----------
    file
        The log; created if it does not exist. For a folder, the file `client-K.csv` in it.
    client
        The client, 0 or more.
    clock, stopwatch
        Return seconds since 1970, and monotonic seconds.

    Attributes
    ----------
    held_back
        Why time online is kept in memory; empty if it is not, or only for a moment.

    Raises
    ------
    ValueError
        If the client is negative or the file is not such a log.
    OSError
        If the file cannot be read or written; the next entry makes up for an entry that was not written.
    """

    def __init__(
        self,
        file: str | Path,
        client: int,
        clock: Callable[[], float] = time.time,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        if client < 0:
            raise ValueError(f"record: client is {client}, give a whole number, 0 or more")
        self.path, self.client, self.held_back = Path(file), client, ""
        if self.path.is_dir():
            self.path /= f"client-{client}.csv"
        self._clock, self._stopwatch = clock, stopwatch
        self._since: float | None = None  # stopwatch time from which time online is not written yet
        self._floor = 0.0  # end of the client's last entry at that time
        self._others: list[tuple[float, float]] = []  # the client's entries since then, by other recorders
        self._reset()
        with self._locked():
            pass

    def online(self) -> None:
        """Log that the device has been online since the last call; the first call starts a session.

        The entry repeats the speed and the upload rate that were measured last.
        """
        now = self._stopwatch()
        if self._since is None:
            with self._locked():
                self._floor, self._others = self._last.end, []
            self._since = now
        elif self._append(now - self._since):
            self._since, self._floor, self._others = now, self._last.end, []

    def offline(self) -> None:
        """End the session at the last call of `online`: the device is offline."""
        self._since = None

    def worked(
        self, steps: int, seconds: float, up_bytes: int = 0, up_seconds: float = 0.0, planned: int = 0
    ) -> None:
        """Log a piece of work that has just ended.

        Parameters
        ----------
        steps, seconds
            Finished local steps, and their duration.
        up_bytes, up_seconds
            Size of the reply, and duration of the upload, after the steps; 0 if unknown.
        planned
            Planned local steps; 0 if unknown.
        """
        speed = f"{steps / seconds:.6g}" if steps > 0 and seconds > 0 else ""
        up_rate = f"{up_bytes / up_seconds:.6g}" if up_bytes > 0 and up_seconds > 0 else ""
        note = (
            f"# client {self.client}: {steps}{f' of {planned}' if planned else ''} steps in {seconds:.3f} s"
        )
        note += f", {up_bytes} bytes up{f' in {up_seconds:.3f} s' if up_seconds else ''}\n"
        self._append(seconds + up_seconds, speed, up_rate, note)

    def _append(self, seconds: float, speed: str = "", up_rate: str = "", note: str = "") -> bool:
        """Write a session of this length that ends now; return False if the clock cannot be right.

        With a note, the session is a piece of work and starts after the client's last entry. Without one, it
        is time online since the last call of `online`, from which other entries written since are cut out.
        """
        with self._locked() as file:
            now, last = round(self._clock(), 3), self._last
            start = round(now - max(seconds, _SHORTEST), 3)
            covered = last.end if note else self._floor
            uncovered = covered if start - covered < _MAX_GAP else start
            pieces = []
            for begin, end in [] if note else sorted(self._others):
                if uncovered < begin:
                    pieces.append((uncovered, begin))
                uncovered = max(uncovered, end)
            earliest = max(_EARLIEST, last.end)
            plausible = now > earliest
            self.held_back = ""
            if plausible:
                speed, up_rate = speed or last.speed, up_rate or last.up_rate
                for begin, end in [*pieces, (uncovered, now)]:
                    note += f"{self.client},{begin:.3f},{end:.3f},{speed},{up_rate}\n"
            elif earliest - now > _STEP:
                date = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(earliest))
                self.held_back = f"the clock shows a time before {date} UTC"
            self._write(file, note.encode())
        return plausible

    def _reset(self) -> None:
        self._inode, self._position, self._line = 0, 0, 0  # how much of the log has been read
        self._has_header, self._last = False, Entry(0.0, "", "")

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Open and lock the log, read new lines, replace a torn last line, and add a missing header."""
        with self.path.open("a+b") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            state = os.fstat(file.fileno())
            if state.st_ino != self._inode or state.st_size < self._position:  # another file, or truncated
                self._reset()
            self._inode = state.st_ino
            file.seek(self._position)
            torn = b""
            for line in file:
                if line.endswith(b"\n"):
                    self._read(line)
                else:  # left by a power cut
                    torn = line
                    file.truncate(self._position)
            if torn:
                self._write(file, f"# torn line, left out: {torn[:200]!r}\n".encode())
            if not self._has_header:
                self._write(file, HEADER)
                _sync_folder(self.path.parent)
            yield file

    def _write(self, file: BinaryIO, lines: bytes) -> None:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
        for line in lines.splitlines(keepends=True):
            self._read(line)

    def _read(self, line: bytes) -> None:
        """Update what is known of the client's entries by a line of the log."""
        self._position += len(line)
        self._line += 1
        place = f"record: {self.path}, line {self._line}"
        if line.startswith(b"#") or not line.strip():
            return
        if not self._has_header:
            if line.strip() != HEADER.strip():
                raise ValueError(f"{place}: expected the header {HEADER.decode().strip()}, use another file")
            self._has_header = True
            return
        fields = line.decode(errors="replace").strip().split(",")
        try:
            client, start, end = int(fields[0]), float(fields[1]), float(fields[2])
            if len(fields) != HEADER.count(b",") + 1 or not math.isfinite(start + end):
                raise ValueError
        except (ValueError, IndexError):
            raise ValueError(f"{place}: not a line of a device log, repair it or use another file") from None
        if client == self.client and self._since is not None:
            self._others.append((start, end))
        if client == self.client and end >= self._last.end:
            self._last = Entry(end, fields[3] or self._last.speed, fields[4] or self._last.up_rate)


def _sync_folder(folder: Path) -> None:
    """Write a new file's name to disk as well, where folders can be opened."""
    if os.name != "nt":
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def reachable(address: str, seconds: float = 5.0) -> bool:
    """Return whether HOST:PORT accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError:
        return False
    return True


def record(recorder: Recorder, every: float, server: str, stop: threading.Event) -> None:
    """Log time online until `stop` is set; report each problem once on stderr."""
    reported = ""
    while True:
        problem = ""
        try:
            if server and not reachable(server):
                recorder.offline()
                problem = f"{server} is unreachable, the device counts as offline"
            else:
                recorder.online()
                problem = recorder.held_back and f"{recorder.held_back}, time online is kept in memory"
        except (OSError, ValueError) as error:
            problem = f"{error}; will try again, time online is kept in memory"
        if problem and problem != reported:
            print(f"record: {problem.removeprefix('record: ')}", file=sys.stderr, flush=True)
        reported = problem
        if stop.is_set():
            return
        stop.wait(every)


def main(arguments: list[str] | None = None) -> int:
    """Run the recorder from the command line."""
    parser = argparse.ArgumentParser("python -m traces.record", description="Record when a device is online.")
    parser.add_argument("--client", type=int, required=True, metavar="K", help="the client, 0 or more")
    parser.add_argument("--file", required=True, help="the log, or a folder with one log per client")
    parser.add_argument(
        "--every", type=float, default=60.0, metavar="SECONDS", help="interval between lines (60)"
    )
    parser.add_argument(
        "--server",
        default="",
        metavar="HOST:PORT",
        help="count time online only while this address can be reached",
    )
    options = parser.parse_args(arguments)
    if not options.every > 0:
        parser.error(f"--every is {options.every:g}, give a positive number of seconds")
    if options.server and not options.server.rpartition(":")[2].isdecimal():
        parser.error(f"--server is {options.server!r}, give HOST:PORT")
    try:
        recorder = Recorder(options.file, options.client)
    except (OSError, ValueError) as error:
        print(f"record: {str(error).removeprefix('record: ')}", file=sys.stderr)
        return 1
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    record(recorder, options.every, options.server, stop)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
