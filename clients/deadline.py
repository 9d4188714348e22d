"""When a client that has a deadline stops its local steps."""

from __future__ import annotations

import time
from collections.abc import Callable


class LocalDeadline:
    """Whether there is time for another local step, if it takes as long as those before.

    A reply that comes after the end of the round is a late one, or lost; a step fewer costs little. The
    object is made when the first step begins. `until` is on the clock of `time.monotonic`; without it no
    clock is read, and `stop`, whether the work has to end now, is not asked.
    """

    def __init__(self, until: float | None, stop: Callable[[], bool] | None = None) -> None:
        self.until, self.stop = until, stop
        self.start = 0.0 if until is None else time.monotonic()

    def allows_another(self, done: int) -> bool:
        """Whether a step may follow the `done` steps, at least one, that are done."""
        if self.until is None:
            return True
        now = time.monotonic()
        return now + (now - self.start) / done <= self.until and not (self.stop and self.stop())
