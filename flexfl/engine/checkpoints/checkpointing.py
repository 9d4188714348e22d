"""When a run saves a checkpoint, what is in it, and how a run goes on from it."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from rich.console import Console

from flexfl.config import Settings
from flexfl.engine.checkpoints.folder import CheckpointFolder
from flexfl.engine.checkpoints.resume import what_changed
from flexfl.engine.checkpoints.unsaved import Unsaved
from flexfl.engine.observers import Observer, Record
from flexfl.engine.run_folder import RunFolder
from flexfl.engine.transports.base import Transport
from flexfl.ground.wording import say
from strategies import FlexibleStrategy
from strategies.core.state import StateDict, nested, take, within

FOLDER = "checkpoint"
SHARE = 0.05  # of a run's time that checkpoints may take, if no number of rounds is set
PAUSE = 10.0  # seconds between two of them at least
MEGABYTE = 1e6
USUAL_SPEED = 200 * MEGABYTE  # bytes a second, until one has been written


class Position(NamedTuple):
    """How far a run has come: its last round, None if it has not begun, and its seconds so far."""

    round: int | None = None
    seconds: float = 0.0


class ResumeError(ValueError):
    """A run cannot go on."""


class Checkpointing(Observer):
    """Saves what a run needs to go on: the strategy, the clients' memories, and how far the records reach.

    Parameters
    ----------
    folder
        Of the run.
    strategy, transport
        What has a state. The trace has none: it is a function of the round.
    every
        Rounds between two checkpoints; 0: as often as they take 5 % of the time; -1: none is saved.
    console
        Where to warn.
    """

    def __init__(
        self,
        folder: RunFolder,
        strategy: FlexibleStrategy,
        transport: Transport,
        every: int,
        console: Console,
    ) -> None:
        self.folder, self.strategy, self.transport = folder, strategy, transport
        self.every, self.console = every, console
        self._checkpoints = CheckpointFolder(folder.path / FOLDER)
        self._unsaved = Unsaved(strategy)
        self._saved = -1  # round of the last checkpoint
        self._spent, self._seconds_a_byte = 0.0, 1 / USUAL_SPEED
        self._start = self._last = time.perf_counter()
        self._seconds_before = 0.0
        self._warned = False

    def resume(self, settings: Settings) -> Position:
        """Go on from the newest checkpoint that is whole; without any, begin again.

        Raises
        ------
        ResumeError
            No checkpoint is whole, or it belongs to another run.
        """
        try:
            found = self._checkpoints.load(
                lambda state: self.folder.check_length(take(state, "metrics_bytes"))
            )
            if found is None:
                self.folder.go_on(0)
                say(self.console, f"{self.folder.path} has no checkpoint: the run begins again")
                return Position()
            for change in what_changed(self.folder.path, settings):
                what = "the numbers may differ from those of an undisturbed run"
                say(self.console, f"warning: {change}: {what}")
            for reason in found.damaged:
                say(self.console, f"{reason}; going on from round {found.round}")
            state, self._saved = found.state, found.round
            self.strategy.load_state_dict(within("strategy", state))
            self.transport.load_state_dict(within("transport", state))
            self.folder.go_on(take(state, "metrics_bytes"))
        except (OSError, ValueError) as error:
            raise ResumeError(f"resume {self.folder.path}: {error}") from error
        self._seconds_before = take(state, "seconds")
        self._start = self._last = time.perf_counter()
        return Position(found.round, self._seconds_before)

    def round(self, record: Record) -> None:
        """Save a checkpoint after this round, if one is due."""
        server_round = record["round"]
        if self.every:
            if self.every > 0 and server_round > 0 and server_round % self.every == 0:
                self.save(server_round)
        elif time.perf_counter() - self._last >= PAUSE:
            self.save(server_round, SHARE)

    def end(self, server_round: int, always: bool) -> None:
        """Save a checkpoint after the last round, so that the run can be made longer.

        Parameters
        ----------
        server_round
            The round.
        always
            Also if it takes longer than the share of the time that it may: the run was interrupted.
        """
        if self.every < 0 or server_round == self._saved:
            return
        self.save(server_round, math.inf if self.every or always else SHARE)

    def save(self, server_round: int, share: float = math.inf) -> None:
        """Save a checkpoint; if that fails, warn once, and go on.

        Parameters
        ----------
        server_round
            After which it is.
        share
            None is saved if all together would take more than this share of the time.
        """
        start, size = time.perf_counter(), 0
        try:
            state = self._state()
            size = self._checkpoints.to_write(state)
            if self._spent + self._seconds_a_byte * size > share * (start - self._start):
                self._last = start
                return
            self._checkpoints.save(server_round, state)
        except (OSError, ValueError, TypeError) as error:
            if not self._warned:
                last = f"the last is of round {self._saved}" if self._saved >= 0 else "there is none yet"
                say(self.console, f"warning: no checkpoint of round {server_round}: {error}; {last}")
            self._warned = True
        else:
            self._tell_unsaved()
            self._saved, self._warned = server_round, False
        self._last = time.perf_counter()
        self._spent += self._last - start
        self._seconds_a_byte = max(self._last - start, 1e-3) / max(size, MEGABYTE)

    def how_to_go_on(self) -> str:
        """Return what a user can do with a run that has ended too soon."""
        if self._saved < 0:
            return "there is no checkpoint"
        return f"--resume {self.folder.path} goes on after round {self._saved}"

    def close(self) -> None:
        """Close the files."""
        self._checkpoints.close()

    def _state(self) -> StateDict:
        return {
            "seconds": self._seconds_before + time.perf_counter() - self._start,
            "metrics_bytes": self.folder.synced_length(),
            **nested("strategy", self.strategy.state_dict()),
            **nested("transport", self.transport.state_dict()),
        }

    def _tell_unsaved(self) -> None:
        """Say once, with the first checkpoint, what a resumed run would not have."""
        if self._saved < 0 and (names := self._unsaved.changed()):
            what = f"{', '.join(names)} of {type(self.strategy).__name__} changes and is not in its `saved`"
            say(self.console, f"warning: {what}: a resumed run would start it anew (docs/extending.md)")
