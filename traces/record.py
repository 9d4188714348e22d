"""Recorder of a device: when it was online and how fast it worked, in the log that `recorded:file=` replays.

    python -m traces.record --client 3 --file log.csv

writes down that the device is on, every minute, until it is stopped (Ctrl-C, SIGTERM). A program that trains
calls `Recorder.worked` after each piece of work, as the ClientApp does where its node config names
`record-trace`; both may write to one file. This needs the standard library only, and runs copied alone, too.

A line tells of a stretch of time that is over, and is never changed. A session of an hour is 60 lines that
touch each other, which the reader takes as one. So a power cut costs what came after the last line, no more.
"""

from __future__ import annotations

import argparse
import fcntl
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

HEADER = b"client,start,end,steps_per_second,up_bytes_per_second\n"
_EARLIEST = 1577836800.0  # 2020; a clock that shows less was not set since the device was switched on
_TOUCH = 1.0  # seconds; sessions that lie closer together are one


class Entry(NamedTuple):
    """A client's last line: when its session ended, and speed and upload rate as they are written there."""

    end: float
    speed: str
    up_rate: str


class Recorder:
    """Appends the sessions of one client to a log, which other recorders may append to as well.

    An entry is on the disk when the method that writes it returns. It is written while no other recorder
    writes, and leaves out what other entries of the client cover, so that sessions never overlap.

    Where it lies is told by the system's clock, how long it is by a clock that nobody sets. While the
    system's clock cannot be right, since it shows a year before 2020 or a time before the end of the log,
    time online is held in memory; it is written, at its right place, once that clock has been set.

    Parameters
    ----------
    file : str
        The log, made if there is none. If it is a folder: the file `client-K.csv` in it.
    client : int
        Whose log it is.
    clock, stopwatch : callable
        Return seconds: since 1970, and since any moment.

    Attributes
    ----------
    held_back : str
        Why time online is held in memory at present; empty where it is not.

    Raises
    ------
    ValueError
        If the client's number is negative or the file is no such log.
    OSError
        If the file cannot be read or written; the next entry makes up for one that was not written.
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
        self._since: float | None = None  # time online from here on is not written yet, by the stopwatch
        self._floor = 0.0  # end of the client's last entry then
        self._others: list[tuple[float, float]] = []  # the client's entries after it
        self._forget()
        with self._alone():
            pass

    def online(self) -> None:
        """Write down that the device was online since the last call; the first one begins a session.

        The speed and the upload rate that were measured last are written again.
        """
        now = self._stopwatch()
        if self._since is None:
            with self._alone():
                self._floor, self._others = self._last.end, []
            self._since = now
        elif self._append(now - self._since):
            self._since, self._floor, self._others = now, self._last.end, []

    def offline(self) -> None:
        """End the session with the last call of `online`: the device is not there."""
        self._since = None

    def worked(
        self, steps: int, seconds: float, up_bytes: int = 0, up_seconds: float = 0.0, planned: int = 0
    ) -> None:
        """Write down a piece of work that is just over.

        Parameters
        ----------
        steps : int
            Local steps that were done.
        seconds : float
            What they took.
        up_bytes : int
            Size of the reply.
        up_seconds : float
            What sending it took, after the work; 0 where that is not known.
        planned : int
            Steps that were asked for by the deadline; 0 where that is not known.
        """
        speed = f"{steps / seconds:.6g}" if steps > 0 and seconds > 0 else ""
        up_rate = f"{up_bytes / up_seconds:.6g}" if up_bytes > 0 and up_seconds > 0 else ""
        note = (
            f"# client {self.client}: {steps}{f' of {planned}' if planned else ''} steps in {seconds:.3f} s"
        )
        note += f", {up_bytes} bytes up{f' in {up_seconds:.3f} s' if up_seconds else ''}\n"
        self._append(seconds + up_seconds, speed, up_rate, note)

    def _append(self, seconds: float, speed: str = "", up_rate: str = "", note: str = "") -> bool:
        """Write a session of this length that ends now; False if the clock cannot be right.

        With a note it is a piece of work, which is cut where another entry reaches into it. Without one it is
        time online since the last call of `online`: what others have written meanwhile is left out of it.
        """
        with self._alone() as file:
            now, last = round(self._clock(), 3), self._last
            start = round(now - seconds, 3)
            at = last.end if note else self._floor
            at = at if start - at < _TOUCH else start
            pieces = []
            for begin, end in [] if note else sorted(self._others):
                if at < begin:
                    pieces.append((at, begin))
                at = max(at, end)
            right = now > max(_EARLIEST, last.end)
            if right:
                speed, up_rate = speed or last.speed, up_rate or last.up_rate
                for begin, end in [*pieces, (at, now)]:
                    note += f"{self.client},{begin:.3f},{end:.3f},{speed},{up_rate}\n"
                self.held_back = ""
            else:
                least = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(max(_EARLIEST, last.end)))
                self.held_back = f"the clock shows a time before {least} UTC"
            self._write(file, note.encode())
        return right

    def _forget(self) -> None:
        self._inode, self._position, self._line = 0, 0, 0  # what has been read of the log
        self._headed, self._last = False, Entry(0.0, "", "")

    @contextmanager
    def _alone(self) -> Iterator[BinaryIO]:
        """Open the log and lock it, read what is new, and end it properly."""
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = os.fstat(file.fileno())
            if state.st_ino != self._inode or state.st_size < self._position:  # another file, or emptied
                self._forget()
            self._inode = state.st_ino
            file.seek(self._position)
            torn = b""
            for line in file:
                if line.endswith(b"\n"):
                    self._take(line)
                else:  # what a power cut left
                    torn = line
                    file.truncate(self._position)
            if torn:
                self._write(file, f"# torn line, left out: {torn[:200]!r}\n".encode())
            if not self._headed:
                self._write(file, HEADER)
                _sync_folder(self.path.parent)
            yield file

    def _write(self, file: BinaryIO, lines: bytes) -> None:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
        for line in lines.splitlines(keepends=True):
            self._take(line)

    def _take(self, line: bytes) -> None:
        """Remember what a line says of the client."""
        self._position += len(line)
        self._line += 1
        place = f"record: {self.path}, line {self._line}"
        if line.startswith(b"#") or not line.strip():
            return
        if not self._headed:
            if line.strip() != HEADER.strip():
                raise ValueError(f"{place}: expected the header {HEADER.decode().strip()}, use another file")
            self._headed = True
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
    """Have a new file's name on the disk as well."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reachable(address: str, seconds: float = 5.0) -> bool:
    """Whether somebody listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError:
        return False
    return True


def record(recorder: Recorder, every: float, server: str, stop: threading.Event) -> None:
    """Write down time online until told to stop; what goes wrong meanwhile is said on stderr, once."""
    said = ""
    while True:
        trouble = ""
        try:
            if server and not reachable(server):
                recorder.offline()
                trouble = f"{server} is unreachable, the device counts as offline"
            else:
                recorder.online()
                trouble = recorder.held_back and f"{recorder.held_back}, time online is kept in memory"
        except (OSError, ValueError) as error:
            trouble = f"{error}; will try again, time online is kept in memory"
        if trouble and trouble != said:
            print(f"record: {trouble.removeprefix('record: ')}", file=sys.stderr, flush=True)
        said = trouble
        if stop.is_set():
            return
        stop.wait(every)


def main(arguments: list[str] | None = None) -> int:
    """Record on the command line."""
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
