"""Stragglers: clients that do fewer epochs than they are asked for."""

from dataclasses import dataclass

import numpy as np

from fedtide.ground.allowed import Count, Share
from traces.base import RoundAvailability, SeededTrace, online_throughout


@dataclass(frozen=True, kw_only=True)
class Stragglers(SeededTrace):
    """All clients are online; in each round a random share of them does 1 to X of X epochs, drawn uniformly.

    The setting of FedProx (shares of 0, 0.5 and 0.9, X = 20) and, with share=1 and X = 5, of FedNova. The
    others complete all their steps. A client that does x epochs has a completion of x / X, of however many
    steps its round has.

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, 5.1 and 5.2. Wang et al.,
    Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020, 5.

    Attributes
    ----------
    share
        Probability of being a straggler in a round, for each client independently.
    epochs
        X, from which the number of epochs is drawn.
    """

    share: Share = 0.5
    epochs: Count = 20

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        straggles = self.rng("stragglers", t).random(self.num_clients) < self.share
        done = self.rng("stragglers-epochs", t).integers(1, self.epochs + 1, size=self.num_clients)
        completion = np.where(straggles, done / self.epochs, 1.0).astype(np.float32)
        return online_throughout(completion)
