"""Who takes part, the model and two baselines of FOCUS's program (Ying, Li & Yang 2025), as it computes them.

    python sim.py --config experiments/focus-cifar10.toml

BichengYing/FedASL at 72ea664 draws participation from NumPy's generator with seed 66, so that the rounds are
those of its logs. On one device its FedAvg and FedAU train one present client after the other, each from the
weights of the last: FedAvg with one client a round, see `in_turn`. Its SCAFFOLD divides by 10, not by the
number of those present.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from strategies import Replies
from strategies.scaffold import Scaffold
from traces import RoundAvailability
from traces.base import SeededTrace, complete_if_online

PROGRAM_SEED = 66


class Participation(SeededTrace):
    """The rounds of the paper's program.

    By default its "bern": nine of ten clients are there with a probability from 0.1 to 0.3, the others from
    0.1 to 0.9. With `markov`, all are with 0.2: the two rows of its transition matrix are the same. With
    `in_turn`, a round has one client, and those of a round of the program follow each other.
    """

    def __init__(self, num_clients: int, seed: int, *, markov: bool = False, in_turn: bool = False) -> None:
        super().__init__(num_clients, seed)
        self.markov, self.in_turn = markov, in_turn
        self._draws = np.random.RandomState(PROGRAM_SEED)
        low = 0 if markov else num_clients * 9 // 10
        often = self._draws.uniform(0.1, 0.3, low), self._draws.uniform(0.1, 0.9, num_clients - low)
        self._p = np.concatenate(often)
        if markov:
            self._draws.binomial(1, self._p)  # the states before the first round, which have no effect
        self._rounds: list[np.ndarray] = []

    def availability(self, t: int) -> RoundAvailability:
        """Return who is there in round t."""
        while len(self._rounds) < t:
            there = self._draw()
            self._rounds += [*np.eye(self.num_clients, dtype=bool)[there]] if self.in_turn else [there]
        return complete_if_online(self._rounds[t - 1].copy())

    def _draw(self) -> np.ndarray:
        """Draw the next round, shape (N,)."""
        if self.markov:
            return np.array([self._draws.choice([0, 1], p=[0.8, 0.2]) for _ in self._p]) == 1
        return self._draws.binomial(1, self._p) == 1


def cnn(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Three 3x3 convolutions (16, 32, 64) with max pooling, then 500 units: 541,094 parameters."""
    channels, height, width = input_shape
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(64 * (height // 8) * (width // 8), 500), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(500, num_outputs))


class ScaffoldByTen(Scaffold):
    """SCAFFOLD that moves by a tenth of the sum over those present, instead of by their mean."""

    def update(self, replies: Replies) -> None:
        """Algorithm 1 with a server rate of |S| / 10."""
        before = self.weights.copy()
        super().update(replies)
        self.weights = before + len(replies) / 10 * (self.weights - before)
