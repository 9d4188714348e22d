"""Stragglers: clients that do fewer epochs than they are asked for."""

import numpy as np

from traces.base import RoundAvailability, check_round, online_throughout
from traces.seeded import Count, Probability, SeededTrace, check_at_least, check_probability


class Stragglers(SeededTrace):
    """All clients are online; in each round a random share of them does 1 to X of X epochs, drawn uniformly.

    The setting of FedProx (shares of 0, 0.5 and 0.9, X = 20) and, with share=1 and X = 5, of FedNova. The
    others complete all their steps. A client that does x epochs has a completion of x / X, of however many
    steps its round has.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of all draws.
    share : float
        Probability of being a straggler in a round, 0..1, for each client independently.
    epochs : int
        X, from which the number of epochs is drawn.

    Raises
    ------
    ValueError
        If the share is outside 0..1, or there is no epoch.

    References
    ----------
    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, 5.1 and 5.2. Wang et al.,
    Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020, 5.
    """

    def __init__(self, num_clients: int, seed: int, *, share: Probability = 0.5, epochs: Count = 20) -> None:
        super().__init__(num_clients, seed)
        self.share = check_probability("stragglers", "share", share)
        check_at_least("stragglers", "epochs", epochs, 1)
        self.epochs = epochs

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        straggles = self.rng("stragglers", t).random(self.num_clients) < self.share
        done = self.rng("stragglers-epochs", t).integers(1, self.epochs + 1, size=self.num_clients)
        completion = np.where(straggles, done / self.epochs, 1.0).astype(np.float32)
        return online_throughout(completion)
