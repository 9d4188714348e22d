"""What a trace is: the members of each round, which of them are online, and how much work they complete."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.base.allowed import Checked, Count, CountOrZero, options_of
from fedtide.base.errors import ResultError, SettingsError


class RoundAvailability(NamedTuple):
    """The availability of all N clients in one round.

    Attributes
    ----------
    member : (N,) bool
        Part of the federation in this round: has arrived and not departed.
    online : (N,) bool
        Visible to the server at the start of the round. Only members are online.
    completion : (N,) float32
        Finished fraction of the E local steps, 0..1. It is 0 for clients that are not online; 0 for an online
        client means that it drops out mid-round.
    """

    member: NDArray[np.bool_]
    online: NDArray[np.bool_]
    completion: NDArray[np.float32]


Moments = NDArray[np.int64]
"""Moments and durations in microseconds of virtual time: who is first must not be a matter of rounding."""

NEVER = 1 << 61  # later than all that happens; the sum of two is an int64
SECOND = 1_000_000

Role = Literal["clock", "rounds", "speeds", "loss", "members", "filter", "run"]
GAMMA = 0x9E3779B97F4A7C15  # of SplitMix64, and shifts and factors of its two steps
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_RENAMED = {"late": "delay", "seconds": "ends (in microseconds)"}


class Trace(ABC):
    """A pure function from the round to the availability of all clients.

    Rounds t count from 1; `round` raises ValueError if t < 1. The result depends on the round alone, not on
    the order of calls. The returned arrays belong to the caller, who may modify them.

    Attributes
    ----------
    name : str
        What messages call it, such as `rates`: given with the class, or the name of the class.
    role : str
        What it says: who is there at any moment (`clock`) or in each round (`rounds`), how fast clients are
        (`speeds`), which replies are lost (`loss`), who is a member (`members`), or who of those whom the
        others have take part rests (`filter`); `run` is the record of a run.
    num_clients : int
        N. Clients are numbered 0..N-1.
    has_late_replies : bool
        Whether `delay` may return anything but zeros.
    devices : tuple of str
        The name of each client, N of them, "" for one without a device; empty unless the trace was recorded
        from devices with names.
    dates : tuple of float, optional
        The times of the calendar at virtual time 0 and at the end of the recording, in seconds since 1970;
        None unless the trace was recorded with such times.
    """

    name: ClassVar[str]
    role: ClassVar[Role] = "rounds"
    num_clients: int
    has_late_replies: bool = False
    devices: tuple[str, ...] = ()
    dates: tuple[float, float] | None = None

    def __init_subclass__(cls, name: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = name or cls.__name__
        for old, new in _RENAMED.items():
            if callable(vars(cls).get(old)):
                raise TypeError(f"{cls.__name__}.{old} is called {new} in a trace: rename it")

    @property
    def repeats_after(self) -> float:
        """After how many rounds participation repeats, if only in what is likely; 0: it does not."""
        return 0

    @property
    def drawn_by(self) -> Hashable:
        """What its draws depend on besides the seed: two traces in which it is equal would draw the same."""
        return type(self)

    @abstractmethod
    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t."""

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return whose replies of round t are lost after the work is done, shape (N,); by default none.

        To the server, a client whose reply is lost looks like an inactive one. The client does not notice.
        The value is without meaning for clients that send no reply.
        """
        return np.zeros(self.num_clients, np.bool_)

    def delay(self, t: int) -> NDArray[np.int32]:
        """Return by how many rounds replies to tasks of round t are late, shape (N,); by default 0.

        A reply that is late by d rounds arrives in round t + d; until then the client is at work, and gets no
        new task. If it is lost, it never arrives, and the client is free after round t. The value is without
        meaning for clients that send no reply.
        """
        return np.zeros(self.num_clients, np.int32)

    def participation(self, t: int) -> NDArray[np.float64] | None:
        """Return each client's probability of taking part in round t, shape (N,); None if it is not known.

        A client takes part if it is online, finishes a step, and its reply is not lost.
        """
        return None

    def ends(self, t: int) -> int | None:
        """Return when round t ends, in microseconds of virtual time; None if rounds have no duration."""
        return None


@dataclass(frozen=True)
class SeededTrace(Checked, Trace):
    """A trace whose draws depend only on the seed, the purpose of the draw and the round.

    A client's draws do not depend on how many clients come after it: a larger N leaves the first clients
    unchanged. The options of a trace are fields of its subclass. ValueError is raised if one is not allowed,
    or if the trace's file is not as described; the message then names file and line.
    """

    num_clients: Count
    seed: CountOrZero

    def round(self, t: int) -> RoundAvailability:
        check_round(t)
        return self.availability(t)

    @abstractmethod
    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t, which is at least 1."""

    def rng(self, purpose: str, t: int) -> np.random.Generator:
        """Return a new generator for one purpose in round t; t = 0 for draws made once for all rounds."""
        return np.random.default_rng([self.seed, *f"trace-{purpose}".encode(), t])


class Draws:
    """The draws for one purpose, of which each client has a SplitMix64 generator of its own.

    Unlike a generator of NumPy, it returns any of its numbers at once (Steele, Lea, Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014), for many clients together.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        sequence = np.random.SeedSequence([seed, *f"trace-{purpose}".encode()])
        self._key = sequence.generate_state(1, np.uint64)

    def uniform(self, clients: NDArray[np.intp], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return one draw for each pair of a client and a number from 0 on, from 0 to 1, both excluded."""
        start = _mixed(self._key + clients.astype(np.uint64) * np.uint64(GAMMA))
        bits = _mixed(start + numbers.astype(np.uint64) * np.uint64(GAMMA))
        return ((bits >> np.uint64(12)) + 0.5) / 2**52


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's outputs for some states."""
    for shift, factor in MIXING:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z ^ (z >> np.uint64(31))


def microseconds(seconds: ArrayLike) -> Moments:
    """Convert seconds, rounded to whole microseconds; those that are infinite or too many are `NEVER`."""
    limited = np.clip(np.asarray(seconds, np.float64), -NEVER / SECOND, NEVER / SECOND)
    return np.asarray(np.rint(limited * SECOND), np.int64)


def in_seconds(moments: ArrayLike) -> NDArray[np.float64]:
    """Convert microseconds to seconds; `NEVER` is infinite."""
    moments = np.asarray(moments)
    return np.where(moments >= NEVER, np.inf, moments / SECOND)


def availability_in(trace: Trace, t: int) -> RoundAvailability:
    """Return the availability in round t; ResultError: the trace returns something else."""
    given = trace.round(t)
    try:
        member, online, completion = map(np.asarray, given)
        now = RoundAvailability(member.astype(bool), online.astype(bool), completion.astype(np.float32))
    except (TypeError, ValueError):
        raise ResultError(trace.round, "returns something else than a RoundAvailability") from None
    for name, array in (("member", member), ("online", online), ("completion", completion)):
        if array.shape != (trace.num_clients,):
            raise ResultError(trace.round, f"gives {name} of shape {array.shape}, not ({trace.num_clients},)")
    if not (np.array_equal(now.member, member) and np.array_equal(now.online, online)):
        raise ResultError(trace.round, "gives member or online that is not True or False")
    if not 0 <= now.completion.min() <= now.completion.max() <= 1:  # False for NaN
        raise ResultError(trace.round, "gives a completion outside 0..1")
    return now


def complete_if_online(online: NDArray[np.bool_]) -> RoundAvailability:
    """Return an availability in which all are members and those online, shape (N,), complete."""
    return RoundAvailability(np.ones(len(online), np.bool_), online, online.astype(np.float32))


def online_throughout(completion: NDArray[np.float32]) -> RoundAvailability:
    """Return an availability in which all are members and online; completions have shape (N,)."""
    everyone = np.ones(len(completion), np.bool_)
    return RoundAvailability(everyone, everyone.copy(), completion)


def check_kind(trace: Trace, kind: str, own: Mapping[str, Collection[str]]) -> None:
    """Raise ValueError if a trace has an option that another kind of it has, but not this one.

    `own` names the options of each kind.
    """
    for option in options_of(type(trace)).values():
        value, name = getattr(trace, option.parameter), option.parameter
        if value != option.default and name in {*chain(*own.values())} - {*own[kind]}:
            raise SettingsError(
                f"trace {trace.name}: {option.name} is {value}, but {kind} has no {option.name}"
            )


def check_round(t: int) -> None:
    """Raise ValueError unless t is a round, counted from 1."""
    if t < 1:
        raise ValueError(f"trace: round {t} does not exist, rounds are counted from 1")


# In float32, 0.7 is 0.69999999, so that 0.7 of 10 steps would be floored to 6. The guard, in steps, covers
# this error (at most 3e-8 * E) up to E = 3000 and is far below one step.
_GUARD = 1e-4


def finished_steps(completion: ArrayLike, planned: ArrayLike) -> NDArray[np.intp]:
    """Convert completions, 0..1, into whole steps: ``max(1, floor(completion * E))``, and 0 for 0.

    The shapes of `completion` and `planned`, E, must broadcast. ValueError: a completion is outside 0..1, or
    a number of planned steps is negative.
    """
    fraction = np.asarray(completion, dtype=np.float64)
    limit = np.asarray(planned, dtype=np.intp)
    if not np.all((fraction >= 0) & (fraction <= 1)):
        worst = fraction[~((fraction >= 0) & (fraction <= 1))].flat[0]
        raise ValueError(
            f"finished_steps: completion {worst:g} is outside 0..1, give fractions of the planned steps"
        )
    if np.any(limit < 0):
        raise ValueError(f"finished_steps: {limit.min()} planned steps are negative, give 0 or more")
    whole = np.floor(fraction * limit + _GUARD).astype(np.intp)
    at_least_one = np.maximum(whole, fraction > 0)
    return np.asarray(np.minimum(at_least_one, limit), dtype=np.intp)
