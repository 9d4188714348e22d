"""A run on boards that goes on by itself, whatever ends its server: `fedtide fleet run FILE.toml`.

The file has the settings of `flwr run --run-config`. What was begun is resumed from its last checkpoint:
after a reboot, when the SuperLink has been restarted, or when the command itself is started again.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import tomli_w

from fedtide.base.errors import SettingsError, why
from fedtide.base.files import parse_toml, read_text
from fedtide.config import Settings
from fedtide.engine.checkpoints.resume import check_kept
from fedtide.engine.read_run import Run, find_runs
from fedtide.fleet.status import RUNS
from fedtide.fleet.superlink import connected

# Between two looks for the SuperLink, and after an attempt; doubled, up to five times, if no round has ended.
WAIT_SECONDS = 10.0
ATTEMPTS = 5  # at a first round: a process that lost its SuperLink holds the folder for a minute
MOST_BYTES = 2**20
Say = Callable[[str], object]


class LastingRun:
    """A run that is started again until it has finished.

    Parameters
    ----------
    file
        Its settings in TOML. The run is in a folder of `run-dir` with the file's name. `checkpoint-every` is
        by default 1.
    superlink
        The SuperLink's name in Flower's config.toml.
    app
        The folder of the app, this project's.
    say
        Called with each line for the user.
    """

    def __init__(self, file: Path, superlink: str, app: Path, say: Say) -> None:
        self.values, self.superlink, self.app, self.say = _settings(file), superlink, app, say
        self.file = file
        self.folder = Path(str(self.values["run-dir"]))
        self._number = 0  # Flower's, of the latest attempt
        self._noted = self.folder / "flower-run"  # has it, for the next process
        self._process: subprocess.Popen[str] | None = None
        self._stopped = threading.Event()

    def drive(self) -> None:
        """Go on until the run has finished, or SIGTERM stops it; SettingsError: it never ends a round."""
        signal.signal(signal.SIGTERM, self._stop)
        with suppress(OSError, ValueError):
            self._number = int(self._noted.read_text(encoding="utf-8"))
        self._end()  # if the process before this one was killed, its attempt may still go on
        useless = 0
        while not self._stopped.is_set():
            before = self._newest()
            if before is not None and self._is_done(before):
                self.say(f"finished: {before.path}")
                return
            if not self._superlink_answers():
                self._stopped.wait(WAIT_SECONDS)
                continue
            try:
                self._attempt(before)
            except OSError as error:  # such as a full disk, on which there may be room later
                self.say(f"{error.filename or 'the attempt'}: {why(error)}")
            now = self._newest()
            useless = 0 if _rounds(now) > _rounds(before) else useless + 1
            if useless >= ATTEMPTS and _rounds(now) < 1:
                raise SettingsError(f"no round has ended in {ATTEMPTS} attempts: see above")
            if not self._stopped.is_set() and (now is None or now.status != "finished"):
                self._stopped.wait(WAIT_SECONDS * 2 ** min(useless, ATTEMPTS))

    def _is_done(self, before: Run) -> bool:
        """Whether a run has finished; SettingsError: it was begun with other settings."""
        then = before.settings
        now = Settings.from_mapping(then.as_mapping() | self.values, str(self.file))
        told = f"{self.file}: give it another name, as {before.path} was begun with other settings: "
        check_kept(then.as_mapping(), now.as_mapping(), told)
        return before.status == "finished" and now.num_rounds <= then.num_rounds

    def _attempt(self, before: Run | None) -> None:
        """Start the run, or resume what was done before, and pass on what it says until it ends."""
        values = dict(self.values)
        if before is not None:
            values["resume"] = str(before.path)
            self.say(f"going on after round {before.last_round}: {before.path}")
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write(tomli_w.dumps(values))
            config.flush()
            flwr = [str(Path(sys.executable).with_name("flwr")), "run", str(self.app), self.superlink]
            self._process = subprocess.Popen(
                [*flwr, "--stream", "--run-config", config.name],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},  # a round's line is there when it ends
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self.say(line.rstrip("\n"))
                if started := re.search(r"started run (\d+)", line):
                    self._number = int(started[1])
                    with suppress(OSError):
                        self.folder.mkdir(parents=True, exist_ok=True)
                        self._noted.write_text(started[1], encoding="utf-8")
            self._process.wait()
        self._end()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped.set()
        self._end()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def _end(self) -> None:
        """Stop the run at the SuperLink, if it is still there: two must not write one folder."""
        number, self._number = self._number, 0
        if number:
            try:
                with connected(self.superlink) as superlink:
                    superlink.stop(number)
            except SettingsError:  # it is over, or the SuperLink has gone
                pass

    def _newest(self) -> Run | None:
        """Return the run that was begun last, if any."""
        found = find_runs(self.folder) if self.folder.is_dir() else []
        return max(found, key=lambda run: run.path.name, default=None)

    def _superlink_answers(self) -> bool:
        try:
            with connected(self.superlink) as superlink:
                superlink.nodes()
        except SettingsError as error:
            self.say(f"waiting: {error}")
            return False
        return True


def _rounds(run: Run | None) -> int:
    return -1 if run is None else run.last_round


def _settings(file: Path) -> dict[str, Any]:
    """Read the settings of a run; SettingsError: they are not valid."""
    try:
        values = parse_toml(read_text(file, MOST_BYTES))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file}: {why(error)}") from None
    if "resume" in values:
        raise SettingsError(f"{file}: resume: leave it out, what was begun is resumed")
    base = next((place for place in RUNS if place.is_dir()), RUNS[-1]).absolute()
    run_dir = Path(str(values.get("run-dir", base))) / file.stem  # where only this run is
    values = {"checkpoint-every": 1, **values, "run-dir": str(run_dir)}
    Settings.from_mapping(values, str(file))
    return values
