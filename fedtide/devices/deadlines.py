"""When a round of devices ends, and when each of them has to stop so that its reply is there by then."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from statistics import median

LEAST_SECONDS = 60.0  # of a deadline that is not set
TIMES_USUAL = 10
GRACE_SECONDS = 5.0  # a SuperNode looks for messages every 3 seconds
REMEMBERED = 21  # tasks of each client
PARTS = 60  # of a deadline: clients are told by which of them to stop
RECENT = 5  # of these, for the time besides work


class RoundDeadlines:
    """Knows how long clients usually take, and derives the deadlines of rounds from it.

    `seconds` is the deadline of every round; 0: ten times the median time that a client took so far, at least
    60 seconds, and of all clients of the round the longest.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._taken: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._met: dict[int, float] = {}
        self._besides: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))

    def learn(self, client: int, taken: float, at_work: object = None) -> None:
        """Note the seconds from a task to its reply, and those that the client says it was at work.

        An impossible duration of work counts as if the client had not said it.
        """
        self._taken[client].append(taken)
        if isinstance(at_work, int | float) and 0 <= at_work <= taken:
            self._besides[client].append(taken - at_work)

    def meet(self, client: int, taken: float) -> None:
        """Note how long a client took to identify itself, which is not work."""
        if not self._taken[client]:
            self._taken[client].append(taken)
            self._met[client] = taken

    def of(self, clients: Iterable[int]) -> float:
        """Return the seconds that a round of these clients may last, before the grace."""
        usual = [TIMES_USUAL * median(self._taken[k]) for k in clients if self._taken[k]]
        return self.seconds or max([LEAST_SECONDS, *usual])

    def of_work(self, client: int, seconds: float) -> float:
        """Return when a client has to stop in a round of so many seconds, after it has received its task.

        It is rounded down, so that many clients are sent the same.
        """
        besides = sorted(self._besides[client])
        if not besides:  # it may have identified itself late, as all nodes started at once
            left = seconds - min(self._met.get(client, 0.0), seconds / 2)
        else:  # A step less is better than a reply that comes too late; one mishap must not cost five rounds.
            left = seconds - (besides[-2] if len(besides) > 2 else besides[-1])
        return max(0.0, math.floor(left / seconds * PARTS) * seconds / PARTS)
