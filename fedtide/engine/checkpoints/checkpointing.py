"""When a run saves a checkpoint, what is in it, and how a run resumes from it."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from rich.console import Console

from fedtide.base.errors import SettingsError
from fedtide.base.wording import say
from fedtide.config import Settings
from fedtide.engine.checkpoints.resume import ResumeError, check_kept, flags, what_changed
from fedtide.engine.checkpoints.store import CheckpointStore
from fedtide.engine.observers import Observer, Record
from fedtide.engine.run_folder import RunFolder
from fedtide.engine.transports.base import Transport
from strategies import FlatParameters, FlexibleStrategy
from strategies.core.state import StateDict, Stateful, nested, take, within
from strategies.fedavg import FedAvg

FOLDER = "checkpoint"
SHARE = 0.05  # of a run's time that checkpoints may take, unless a number of rounds is set
PAUSE = 10.0  # minimum seconds between two of them
MEGABYTE = 1e6
ASSUMED_SPEED = 200 * MEGABYTE  # bytes a second, until one has been written


class Position(NamedTuple):
    """How far a run has come: its last round (None: not started) and its seconds so far."""

    round: int | None = None
    seconds: float = 0.0


class Checkpointing(Observer):
    """Saves what a run needs to resume: the strategy, the clients' memories, and how far the records reach.

    The trace has no state: it is a function of the round.
    """

    def __init__(
        self,
        strategy: FlexibleStrategy,
        transport: Transport,
        folder: RunFolder,
        settings: Settings,
        console: Console,
    ) -> None:
        self.strategy, self.transport, self.folder = strategy, transport, folder
        self.settings, self.every, self.console = settings, settings.checkpoint_every, console
        self._store = CheckpointStore(folder.path / FOLDER)
        self._unsaved = Unsaved(self.strategy)
        self._saved = -1  # round of the last checkpoint
        self._spent, self._seconds_a_byte = 0.0, 1 / ASSUMED_SPEED
        self._start = self._last = time.perf_counter()
        self._seconds_before = 0.0
        self._warned = False

    def resume(self) -> Position:
        """Load the newest undamaged checkpoint of a resumed run; without any checkpoint, start over.

        ResumeError: all checkpoints are damaged, or belong to another run. Until all is loaded, the folder
        stays what it is.
        """
        if not self.folder.resumed:
            return Position()
        try:
            found = self._store.load(lambda state: self.folder.check(take(state, "metrics")))
            if found is None:
                if (self.folder.path / "metrics.jsonl").stat().st_size:
                    say(self.console, f"{self.folder.path} has no checkpoint: the run starts over")
                self.folder.go_on()
                return Position()
            state = found.state
            check_kept(take(state, "settings"), self.settings.as_mapping(), "config.toml was changed: ")
            if state.get("frozen_checksum", 0.0) != self.strategy.wire.frozen_checksum:
                raise SettingsError("the model's frozen weights are not those that the run began with")
            self.strategy.load_state_dict(within("strategy", state))
            self.transport.load_state_dict(within("transport", state))
            changes = what_changed(self.folder.path, self.folder.parts)
            self.folder.go_on(take(state, "metrics"))
        except (OSError, ValueError) as error:
            self._store.close()
            raise ResumeError(f"resume {self.folder.path}: {error}") from error
        for change in changes:
            what = "the results may differ from those of an uninterrupted run"
            say(self.console, f"warning: {change}: {what}")
        for reason in found.damaged:
            say(self.console, f"{reason}; resuming after round {found.round}")
        self._saved, self._seconds_before = found.round, take(state, "seconds")
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
        """Save a checkpoint after the last round, so that the run can be extended.

        `always`: also if it exceeds the share of the time that checkpoints may take.
        """
        if self.every >= 0 and server_round != self._saved:
            self.save(server_round, math.inf if self.every or always else SHARE)

    def save(self, server_round: int, share: float = math.inf) -> None:
        """Save a checkpoint after a round, unless all of them together would exceed this share of the time.

        A failure is a warning, once.
        """
        start, size = time.perf_counter(), 0
        try:
            state = self._state()
            size = self._store.to_write(state)
            if self._spent + self._seconds_a_byte * size > share * (start - self._start):
                self._last = start
                return
            self._store.save(server_round, state)
        except (OSError, ValueError, TypeError) as error:
            if not self._warned:
                last = f"the last is of round {self._saved}" if self._saved >= 0 else "there is none yet"
                say(self.console, f"warning: no checkpoint of round {server_round}: {error}; {last}")
            self._warned = True
        else:
            self._warn_of_unsaved()
            self._saved, self._warned = server_round, False
        self._last = time.perf_counter()
        self._spent += self._last - start
        self._seconds_a_byte = max(self._last - start, 1e-3) / max(size, MEGABYTE)

    def how_to_resume(self) -> str:
        """Return advice for resuming a run that has failed."""
        if self._saved < 0:
            return "there is no checkpoint"
        return f"{flags(self.folder.path, self.settings)} continues after round {self._saved}"

    def close(self) -> None:
        self._store.close()

    def _state(self) -> StateDict:
        return {
            "seconds": self._seconds_before + time.perf_counter() - self._start,
            # `auto` may be what the settings of a cell say, and the choice for it those of a run.
            "settings": {k: v for k, v in self.settings.as_mapping().items() if k != "cohort"},
            "metrics": self.folder.written(),
            "frozen_checksum": self.strategy.wire.frozen_checksum,
            **nested("strategy", self.strategy.state_dict()),
            **nested("transport", self.transport.state_dict()),
        }

    def _warn_of_unsaved(self) -> None:
        """Name, with the first checkpoint, the attributes that a resumed run would reset."""
        if self._saved < 0 and (names := self._unsaved.changed()):
            what = f"{', '.join(names)} of {type(self.strategy).__name__} changes and is not in its `saved`"
            say(self.console, f"warning: {what}: a resumed run would reset it (docs/extending.md)")


class Unsaved:
    """Detects changes of those attributes of a strategy that are not saved, from the start of a run on.

    Strategies of this project are not examined: they have tests.
    """

    def __init__(self, strategy: FlexibleStrategy) -> None:
        self.strategy = strategy
        self._before: dict[str, Any] = {}
        if not type(strategy).__module__.startswith(("strategies.", "fedtide.")):
            known = vars(FedAvg(FlatParameters(strategy.weights, strategy.layout))).keys()
            left_out = {*known, *strategy.saved}
            self._before = {
                name: _digest(value) for name, value in vars(strategy).items() if name not in left_out
            }

    def changed(self) -> list[str]:
        now = vars(self.strategy)
        return [name for name, before in self._before.items() if _digest(now.get(name)) != before]


def _digest(value: Any) -> Any:
    """Return something that is equal as long as the value is."""
    if isinstance(value, np.ndarray):
        return value.shape, crc32(np.ascontiguousarray(value).view(np.uint8).data) if value.size else 0
    if isinstance(value, Stateful):
        return _digest(value.state_dict())
    if isinstance(value, dict):
        return [(key, _digest(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [_digest(part) for part in value]
    return value if isinstance(value, bool | int | float | str) else None
