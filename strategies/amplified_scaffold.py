"""Amplified SCAFFOLD: control variates and amplified updates for clients that take part periodically.

Crawshaw & Liu 2024, "Federated Learning under Periodic Client Participation and Heterogeneous Data: A New
Communication-Efficient Algorithm and Analysis", NeurIPS, from the authors' programs. In a period of P rounds,
clients do steps y -= eta (g(y) - c_k + c), and each round

    x := x + mean_S delta_k,   h_k := h_k + sum of the raw gradients,   m_k := m_k + s_k   for k in S.

At the end of the period x := anchor + gamma (x - anchor), the next anchor; c_k := h_k / m_k for those who
took part in it, c := mean of all members' c_k, h := m := 0. P = 1 with gamma = 1 is SCAFFOLD.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies import Clients, ClientTable, Count, Positive, Replies, extend
from strategies.parts.amplification import Amplification
from strategies.scaffold import Scaffold, ScaffoldOptions

_ROWS = 64  # vectors that are in memory at a time when a period ends


class AmplifiedScaffold(Scaffold):
    """SCAFFOLD with control variates over a period, at the end of which the change is amplified."""

    suits = "clients that take part in a known period, such as a day"
    options: AmplifiedScaffoldOptions
    saved = ("gradients", "steps")

    def setup(self) -> None:
        """Start with c = c_k = 0 and the first period."""
        super().setup()
        self.gradients = ClientTable(self.layout, self.options)  # h_k
        self.steps: NDArray[np.int64] = np.zeros(0, np.int64)  # m_k
        period, gamma = self.options.period, self.options.gamma
        self.amplification = Amplification(self.weights, period=period, factor=gamma)
        self.layers.append(self.amplification)  # on top: its anchor is the model

    def update(self, replies: Replies) -> None:
        """Move by the mean update, and add up the raw gradients, for some of the M weights at a time."""
        clients, steps = replies.clients, replies.steps[:, None]
        share, dx = replies.mean_coefficients("uniform"), np.empty(self.layout.size)
        for at, delta, h in self.gradients.blocks(replies):
            dx[at] = share @ delta
            delta /= -self.learning_rate
            h += delta
            direction = np.subtract(self.c[at], self.table.read(clients, at), out=delta)  # c - c_k
            direction *= steps
            h -= direction
        self.weights += self.options.server_rate * dx
        self.steps = extend(self.steps, int(clients.max()) + 1, 0)
        self.steps[clients] += replies.steps
        self._end_period()

    def on_restart(self) -> None:
        """Begin a period, as the layer does: drop h_k and m_k of the one that was cut off."""
        self.gradients = ClientTable(self.layout, self.options)
        self.steps = np.zeros_like(self.steps)

    def empty_round(self) -> None:
        """Count the round: a period may end with it."""
        self._end_period()

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Take the c_l of those who left out of the sum; drop their h_l and m_l."""
        super().members_changed(arrived, left)
        self.steps = extend(self.steps, int(left.max(initial=-1)) + 1, 0)
        self.steps[left] = 0
        for client in left.tolist():
            self.gradients.drop(client)

    def _end_period(self) -> None:
        """Renew the control variates, if P rounds have passed; the layer then amplifies the change."""
        if not self.amplification.ends(self.round):
            return
        active = np.flatnonzero(self.steps)
        for start in range(0, len(active), _ROWS):
            some = active[start : start + _ROWS]
            self.table.write(some, self.gradients.read(some) / self.steps[some][:, None])
        self.on_restart()


@dataclass(frozen=True, kw_only=True)
class AmplifiedScaffoldOptions(ScaffoldOptions):
    """Options of Amplified SCAFFOLD.

    Attributes
    ----------
    period
        P, rounds of a period; it should be a multiple of the period of participation.
    gamma
        By which the change of a period is multiplied.
    """

    period: Count = 10
    gamma: Positive = 1.5
