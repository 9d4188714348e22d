"""The base class of traces with a seed, and checks of their options."""

from typing import Annotated, Any, get_args

import numpy as np

from traces.base import Trace

# What options may be, as `--list` shows it; a check below, or the trace's own, refuses all else.
Probability = Annotated[float, "from 0 to 1"]
Positive = Annotated[float, "positive"]
NotNegative = Annotated[float, "at least 0"]
Count = Annotated[int, "at least 1"]


class SeededTrace(Trace):
    """A trace whose draws depend only on the seed, the purpose of the draw and the round.

    A client's draws do not depend on how many clients come after it: a larger N leaves the first clients
    unchanged.

    Parameters
    ----------
    num_clients : int
        N, at least 1.
    seed : int
        Seed of all draws, at least 0.

    Raises
    ------
    ValueError
        If `num_clients` < 1 or `seed` < 0.
    """

    def __init__(self, num_clients: int, seed: int) -> None:
        check_clients_and_seed(num_clients, seed)
        self.num_clients = num_clients
        self.seed = seed

    def rng(self, purpose: str, t: int) -> np.random.Generator:
        """Return a new generator for one purpose in round t; t = 0 for draws made once for all rounds."""
        return generator(self.seed, purpose, t)


def generator(seed: int, purpose: str, t: int) -> np.random.Generator:
    """Return a new generator for one purpose in round t; t = 0 for draws made once for all rounds."""
    return np.random.default_rng([seed, *f"trace-{purpose}".encode(), t])


def check_clients_and_seed(num_clients: int, seed: int) -> None:
    """Raise ValueError unless there is a client and the seed is not negative."""
    if num_clients < 1:
        raise ValueError(f"trace: num_clients is {num_clients}, a trace needs at least 1 client")
    if seed < 0:
        raise ValueError(f"trace: seed is {seed}, give 0 or more")


def check_choice(trace: str, option: str, value: str, choices: Any) -> None:
    """Raise ValueError unless the value of a trace's option is one of a `Literal`."""
    *others, last = get_args(choices)
    if value not in (*others, last):
        raise ValueError(f"trace {trace}: {option} is {value!r}, give {', '.join(others)} or {last}")


def check_probability(trace: str, option: str, value: float) -> float:
    """Return the value of a trace's option; raise ValueError unless it is a probability."""
    if not 0 <= value <= 1:
        raise ValueError(f"trace {trace}: {option} is {value}, give a probability from 0 to 1")
    return value


def check_at_least(trace: str, option: str, value: float, minimum: float) -> None:
    """Raise ValueError if a trace's option is below its minimum."""
    if not value >= minimum:
        raise ValueError(f"trace {trace}: {option} is {value}, give {minimum} or more")


def check_positive(trace: str, option: str, value: float) -> None:
    """Raise ValueError unless a trace's option is positive."""
    if not value > 0:
        raise ValueError(f"trace {trace}: {option} is {value}, give a positive number")
