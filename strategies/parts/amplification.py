"""Amplified updates, for clients that take part periodically.

Wang & Ji 2022, "A Unified Analysis of Federated Learning with Arbitrary Client Participation", NeurIPS,
Algorithm 1. After every P rounds the change of the period is multiplied: w := anchor + eta (w - anchor), the
next anchor. P should be a multiple of the period of participation. Rounds without replies count.
"""

from __future__ import annotations

from fedtide.base.errors import SettingsError
from strategies import Layer, Vector


class Amplification(Layer):
    """Multiplies the change of every period of P rounds by eta, `factor`; a large one diverges."""

    saved = ("anchor", "began")

    def __init__(self, weights: Vector, *, period: int, factor: float) -> None:
        if period < 1:
            raise SettingsError(f"amplify: the period is {period} rounds; it must be at least 1")
        self.period, self.factor = period, factor
        self.anchor = weights.copy()
        self.began = 0  # round before the period

    def ends(self, server_round: int) -> bool:
        """Whether the period ends with this round."""
        return server_round - self.began >= self.period

    def apply(self, before: Vector, after: Vector, server_round: int, lag: int) -> Vector:
        if not self.ends(server_round):
            return after
        amplified: Vector = self.anchor + self.factor * (after - self.anchor)
        self.anchor, self.began = amplified.copy(), server_round
        return amplified

    def restart(self, weights: Vector, server_round: int) -> None:
        self.anchor, self.began = weights.copy(), server_round
