"""The score of a run: the mean of its evaluations over the last cycle of its trace, or its last tenth.

Single values swing with whoever took part last. Whatever is judged is judged by the score: runs that stop at
a target, the trials of a search, and the rows of a comparison.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence

from fedtide.base.errors import SettingsError
from fedtide.base.wording import count
from fedtide.config import Settings
from traces import Trace
from traces.base import SECOND

CYCLES = 2  # that a run has at least if it is judged over one of them: it learns in the first
FEWEST = 5  # evaluations of a cycle
PART = 10  # of a run without cycles, of which the last is judged


def score(at: Sequence[float], values: Sequence[float], cycle: float, last: int = -1) -> float:
    """Return the mean of an evaluation and those before it.

    Parameters
    ----------
    at
        When each was evaluated: rounds or, with a clock, virtual seconds, ascending; 0 is before training.
    values
        The values of the evaluations, at least one.
    cycle
        As of `cycle_of`.
    last
        Which evaluation the score is of.

    Returns
    -------
    float
        The score; NaN if a value is not a number, or the first cycle is not over.
    """
    now, end = at[last], range(len(at))[last]
    if now < cycle:
        return math.nan
    begin = min(bisect_right(at, now - (cycle or now / PART)), end)  # before training, there is one value
    return statistics.fmean(values[begin : end + 1])


def cycle_of(trace: Trace, settings: Settings) -> float:
    """Return over how many rounds, or virtual seconds of a clock, scores are means; 0: over the last tenth.

    That is after how many participation repeats, if the run is to have two such cycles. SettingsError: the
    trace is the user's own, and says something else.
    """
    repeats = trace.repeats_after
    if not isinstance(repeats, int | float) or not 0 <= repeats < math.inf:
        advice = "must be a finite number of rounds, at least 0"
        raise SettingsError(f"trace {trace.name}: repeats_after is {repeats!r}; it {advice}")
    end = trace.ends(1)
    unit = 1.0 if end is None else end / SECOND
    planned = 0.0 if settings.round_ends else settings.num_rounds * unit
    if settings.until:
        planned = min(planned or settings.until, settings.until)
    return repeats * unit if CYCLES * repeats * unit <= planned else 0.0


def advice(trace: Trace, settings: Settings) -> str:
    """Return what keeps scores from covering a cycle of the trace evenly, and what helps; empty: nothing.

    Of recorded days nothing is said if the run is shorter than two, as most are.
    """
    cycle = math.ceil(trace.repeats_after)
    if not cycle or settings.round_ends or settings.evaluate_seconds:
        return ""
    if settings.num_rounds < CYCLES * cycle and trace.ends(1) is None:
        once = f"the trace repeats after {count(cycle, 'round')}, and the run has {settings.num_rounds}"
        return (
            f"{once}: scores are means over its last tenth and depend on who is there; "
            f"--num-rounds {CYCLES * cycle} helps"
        )
    every = settings.evaluate_every
    if (even := longest_interval(trace, settings, every)) == every:
        return ""
    return (
        f"evaluate-every {every} does not cover the trace's cycle of {count(cycle, 'round')} evenly: "
        f"try --evaluate-every {even}"
    )


def longest_interval(trace: Trace, settings: Settings, most: int) -> int:
    """Return the largest number of rounds, up to `most`, after which evaluations cover a cycle evenly.

    Recorded days have no turns that evaluations could coincide with.
    """
    cycle = math.ceil(trace.repeats_after)
    if not cycle or settings.round_ends or settings.num_rounds < CYCLES * cycle:
        return most
    most, has_clock = max(1, min(most, cycle // FEWEST)), trace.ends(1) is not None
    return next(every for every in range(most, 0, -1) if has_clock or math.gcd(every, cycle) == 1)
