"""Clients with given rates of participation, the same for all or drawn from a range."""

from fedtide.ground.allowed import Count, CountOrZero, Share, checked
from fedtide.ground.errors import SettingsError
from traces.base import generator
from traces.patterns.dynamics import CYCLE, Cycle, Dynamics, RateTrace, with_dynamics


@checked
def rates(
    num_clients: Count,
    seed: CountOrZero,
    *,
    p: Share = 0.1,
    highest: Share = 0.0,
    dynamics: Dynamics = "bernoulli",
    cycle: Cycle = CYCLE,
) -> RateTrace:
    """Client k is online at rate p_k; dynamics: bernoulli, staircase, sine, interleaved, markov or cyclic.

    The rates are p for all clients or, with `highest`, drawn uniformly from p..highest. `bernoulli`, `markov`
    and `cyclic` are the dynamics of Wang and Ji, "FedAU", ICLR 2024; `staircase`, `sine` and `interleaved`,
    which lower the rates in some rounds, those of Xiang et al., "FedAWE", NeurIPS 2024: see
    `traces.patterns.dynamics`. Online clients complete all their steps.

    Parameters
    ----------
    p
        Rate of all clients, or the lowest.
    highest
        Highest rate, at least p; 0: the same as p.
    dynamics
        How clients come and go.
    cycle
        Length of a cycle in rounds, for dynamics `cyclic`.
    """
    highest = highest or p
    if highest < p:
        raise SettingsError(f"trace rates: highest is {highest}; it must be at least p, {p}")
    p_k = p + (highest - p) * generator(seed, "rates", 0).random(num_clients)
    return with_dynamics("rates", dynamics, cycle, p_k, seed)
