"""When a client that has a deadline stops its local steps."""

from __future__ import annotations

import time
from collections.abc import Callable


class LocalDeadline:
    """Whether there is time for another local step, if it takes as long as those before.

    A reply that comes after the end of the round is a late one, or lost; a step fewer costs little.

    Parameters
    ----------
    until
        When the work has to be done, on the clock of `time.monotonic`; None: whenever.
    stop
        Whether the work has to end now; not asked without a deadline. None: it has not.

    Notes
    -----
    Made when the first step begins. Without a deadline no clock is read.
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
