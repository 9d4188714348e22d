"""Steps that are the longer the longer their clients have worked, so that fast clients do not count more.

Mahran, Maranjyan & Richtarik 2026, "Rescaled Asynchronous SGD": a client that replies every tau_k seconds
takes 1 / tau_k steps a second, each of them scaled by tau_k over the mean of all clients. Here tau_k is the
duration of the task that is answered, and the mean is over the last tasks of the members that have replied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies import ByClient, Clients, FlexibleStrategy, Options, Replies, SettingsError, Vector


class Durations(ByClient):
    """How long each client's last task took."""

    saved = ("seconds",)

    def __init__(self) -> None:
        self.seconds: NDArray[np.float64] = np.empty(0)  # NaN: not known


class Rescaling(FlexibleStrategy):
    """Takes late replies and can scale each by the duration of its task."""

    options: RescalingOptions
    late_replies = "take"
    saved = ("durations",)

    def setup(self) -> None:
        """Refuse to rescale where all clients reply equally often."""
        self.durations = Durations()
        B, C = self.options.round_ends, self.options.clients_per_round or len(self.roster)
        if self.options.rescale and not 0 < B < C:
            raise SettingsError(
                f"rescale is for event time in which fast clients reply more often: set round-ends below {C}"
            )

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Forget how long those who left took."""
        for client in left.tolist():
            self.durations.forget(client)

    def rescaled(self, replies: Replies) -> Vector:
        """tau_k over the mean, 1 where it is not known or without `rescale`, shape (K,)."""
        if not self.options.rescale:
            return np.ones(len(replies))
        known = replies.seconds > 0  # False for NaN
        self.durations.extend(len(self.roster))
        seconds = self.durations.seconds
        seconds[replies.clients[known]] = replies.seconds[known]
        of_members = seconds[: len(self.roster)][self.roster.member]
        mean = of_members[np.isfinite(of_members)].mean() if known.any() else 1.0
        return np.where(known, replies.seconds / mean, 1.0)


@dataclass(frozen=True, kw_only=True)
class RescalingOptions(Options):
    """Options of methods that can rescale.

    Attributes
    ----------
    rescale
        Scale each reply by the duration of its task over the mean duration of the clients (Rescaled ASGD).
    """

    rescale: bool = False
