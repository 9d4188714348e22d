"""REFL: first those who will soon be gone.

Abdelmoniem et al. 2023, "REFL: Resource-Efficient Federated Learning", EuroSys, intelligent participant
selection. Those who will leave in the next round or soon after it come first, as the others can still be
asked then. Its weights of late replies are `fedbuff:discount=refl`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from strategies import Clients, NotNegative, Positive, Replies, Roster, Selection, SettingsError

_NEWEST = 0.75  # weight of the last round in the mean duration


class REFL(Selection):
    """First, uniformly, those who leave after W to 2 W seconds, then uniformly of the others.

    Parameters
    ----------
    roster, seed
        See `Selection`.
    window
        W in virtual seconds; 0: the mean duration of a round, in which the last one counts 3/4.
    initial
        That mean before the first round.

    Raises
    ------
    ValueError
        Nobody knows how long clients stay: that takes a trace with a clock.
    """

    saved = ("duration",)

    def __init__(
        self, roster: Roster, seed: int, *, window: NotNegative = 0.0, initial: Positive = 100.0
    ) -> None:
        super().__init__(roster, seed)
        if roster.forecast is None:
            raise SettingsError(
                "select refl asks first who leaves soon, and nobody knows that here: take a trace with a "
                "clock, such as phones, recorded, flash or sessions"
            )
        self.forecast, self.window, self.duration = roster.forecast, window, initial

    def choose(self, eligible: Clients, count: int, server_round: int, rng: np.random.Generator) -> Clients:
        """Draw from those who leave soon; if they are too few, take all of them and draw the rest."""
        window, stay = self.window or self.duration, self.forecast.leave(server_round, eligible)
        soon = (window <= stay) & (stay < 2 * window)
        first, rest = eligible[soon], eligible[~soon]
        if len(first) >= count:
            return np.asarray(rng.choice(first, count, replace=False))
        return np.concatenate([first, rng.choice(rest, count - len(first), replace=False)])

    def note(self, server_round: int, replies: Replies, failed: Mapping[int, float]) -> None:
        """Update the mean duration of a round."""
        self.duration = _NEWEST * self.forecast.elapsed(server_round) + (1 - _NEWEST) * self.duration
