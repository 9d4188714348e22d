"""Power-of-Choice: of some candidates, those with the largest losses.

Cho, Wang, Joshi 2022, "Towards Understanding Biased Client Selection in Federated Learning", AISTATS, in the
variant rpow-d: d candidates are drawn with the probabilities p_k = n_k / n, and those with the largest loss
in their last reply are asked. The bias towards them is meant.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from strategies import ByClient, Clients, Count, Replies, Roster, Selection


class LastLosses(ByClient):
    """The mean loss in each client's last reply that counted; NaN: there was none."""

    saved = ("loss",)

    def __init__(self) -> None:
        self.loss = np.zeros(0)


class PowerOfChoice(Selection):
    """The largest losses among `d` candidates, who are drawn by their share of the data.

    Parameters
    ----------
    roster, seed
        See `Selection`.
    d
        Candidates; at least as many as are asked.
    """

    saved = ("last",)

    def __init__(self, roster: Roster, seed: int, *, d: Count) -> None:
        super().__init__(roster, seed)
        self.d, self.last = d, LastLosses()

    def choose(self, eligible: Clients, count: int, server_round: int, rng: np.random.Generator) -> Clients:
        """Return the candidates with the largest losses, first those who have none yet."""
        self.last.extend(len(self.roster))
        p = self.roster.share(eligible)
        candidates = np.sort(
            rng.choice(eligible, min(max(self.d, count), len(eligible)), replace=False, p=p / p.sum())
        )
        loss = self.last.loss[candidates]
        largest_first = np.argsort(-np.where(np.isnan(loss), np.inf, loss), kind="stable")
        return candidates[largest_first[:count]]

    def note(self, server_round: int, replies: Replies, failed: Mapping[int, float]) -> None:
        """Note the losses; who fails keeps the last one."""
        self.last.extend(len(self.roster))
        self.last.loss[replies.clients] = replies.train_loss

    def forget(self, client: int) -> None:
        self.last.forget(client)
