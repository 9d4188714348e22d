"""Traces: which clients take part in which round, and how much of their work they finish."""

from collections.abc import Callable

from traces.base import RoundAvailability, Trace, finished_steps
from traces.generators import Always, Bernoulli
from traces.membership import Membership, parse_rounds
from traces.pools import Pools

# Name -> factory. A factory takes (num_clients, seed); its keyword-only parameters are the user's options.
TRACES: dict[str, Callable[..., Trace]] = {
    "always": Always,
    "bernoulli": Bernoulli,
    "pools": Pools,
}

__all__ = [
    "TRACES",
    "Always",
    "Bernoulli",
    "Membership",
    "Pools",
    "RoundAvailability",
    "Trace",
    "finished_steps",
    "parse_rounds",
]
