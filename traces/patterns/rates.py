"""Clients with given rates of participation, the same for all or drawn from a range."""

from traces.patterns.dynamics import CYCLE, Cycle, Dynamics, RateTrace, with_dynamics
from traces.seeded import Probability, check_clients_and_seed, check_probability, generator


def rates(
    num_clients: int,
    seed: int,
    *,
    p: Probability = 0.1,
    highest: Probability = 0.0,
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
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    p : float
        Rate of all clients, or the lowest, 0..1.
    highest : float
        Highest rate, p..1; 0: the same as p.
    dynamics : str
        How clients come and go.
    cycle : int
        Length of a cycle in rounds, for dynamics `cyclic`.

    Returns
    -------
    RateTrace
        The trace, with the rates as its attribute `p`.

    Raises
    ------
    ValueError
        If a rate is outside 0..1, `highest` is below p, or `with_dynamics` refuses the dynamics.
    """
    check_clients_and_seed(num_clients, seed)
    check_probability("rates", "p", p)
    highest = highest or p
    if not p <= highest <= 1:
        raise ValueError(f"trace rates: highest is {highest}, give a probability from p ({p}) to 1")
    p_k = p + (highest - p) * generator(seed, "rates", 0).random(num_clients)
    return with_dynamics("rates", dynamics, cycle, p_k, seed)
