"""Evaluation of the global model at the server."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.common import Scalar
from numpy.typing import NDArray
from torch import nn

from clients.gradients.flat import FlatModel
from clients.simulated.evaluation import evaluate, mean_scores
from fedtide.base.contract import metrics
from fedtide.config import Settings
from fedtide.tasks import Examples, FederatedData
from strategies import Roster

LIMIT = 1_000_000  # examples that the training loss is computed on


class GlobalEvaluator:
    """Loss and metric of the global weights; an `evaluate_fn` for this project's and Flower's strategies.

    They are tested on the data set's test split, or on the held-out examples of clients: of those who are
    there now (`present`), of those in the objective (`objective`, Ruan et al., Figure 4), or of all clients,
    as each is a member in some round (`everybody`). The first two change when clients come and go.
    """

    def __init__(
        self, settings: Settings, data: FederatedData, build: Callable[[], nn.Module], roster: Roster
    ) -> None:
        self.settings, self.data, self.roster = settings, data, roster
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model, self.metric = FlatModel(build(), device, data.criterion), data.criterion.metric
        self._tested: bytes | None = None  # whose examples the test set has
        self._examples, self._counts = data.test, {metrics.TESTED_EXAMPLES: len(data.test[1])}

    def __call__(
        self, server_round: int, arrays: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[float, dict[str, Scalar]]:
        """Evaluate weights, given as one array per tensor."""
        self._load(arrays)
        loss, score = self._score(self._test_examples())
        measured: dict[str, Scalar] = {self.metric.name: score, **self._counts}
        if self.settings.train_loss:
            measured[metrics.TRAIN_LOSS] = self.train_loss(arrays)
        every, last = self.settings.evaluate_clients, self.settings.num_rounds
        if every and (server_round % every == 0 or server_round == last):
            found = self.by_client(np.flatnonzero(self.roster.member))
            if len(found):
                worst, tenth = (0, 10) if self.metric.higher_is_better else (100, 90)
                measured[metrics.WORST_CLIENT + self.metric.name] = float(np.percentile(found, worst))
                measured[metrics.TENTH_PERCENTILE + self.metric.name] = float(np.percentile(found, tenth))
        return loss, measured

    def by_client(self, clients: NDArray[np.intp]) -> NDArray[np.float64]:
        """Mean score of the loaded weights on the held-out examples of each client that has any."""
        parts = self._holdouts(clients)
        return mean_scores(self.model, parts)[[len(targets) > 0 for _, targets in parts]]

    def state_dict(self, arrays: list[NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Return the whole model with these weights, frozen ones included, as PyTorch names its tensors."""
        self._load(arrays)
        return self.model.module.state_dict()

    def train_loss(self, arrays: list[NDArray[Any]]) -> float:
        """F(w) = sum_k p_k F_k(w): the mean loss over the training data of all members.

        With more than `LIMIT` examples, it is computed on a sample of the members, always the same.
        """
        self._load(arrays)
        members = np.flatnonzero(self.roster.member)
        if self.data.sizes[members].sum() > LIMIT:
            members = np.random.default_rng([*b"train-loss"]).permutation(members)
            members = np.sort(members[np.cumsum(self.data.sizes[members]) <= LIMIT])
        total, count = 0.0, 0
        for start in range(0, len(members), 1000):  # all at once would double the memory
            examples = self.data.train_set(members[start : start + 1000])
            if n := len(examples[1]):
                total, count = total + n * self._score(examples)[0], count + n
        return total / count if count else math.nan

    def _load(self, arrays: list[NDArray[Any]]) -> None:
        self.model.load(np.concatenate([np.ravel(a) for a in arrays]))

    def _score(self, examples: Examples) -> tuple[float, float]:
        """Loss and mean score; NaN without examples, when the federation has no members."""
        return evaluate(self.model, examples) if len(examples[1]) else (math.nan, math.nan)

    def _test_examples(self) -> Examples:
        """Return the present test set, and note its size in `_counts`."""
        if self.settings.evaluate_on == "test":
            return self._examples
        tested = self._whose()
        if self._tested != (now := tested.tobytes()):
            parts = self._holdouts(np.flatnonzero(tested))
            counts = np.array([len(targets) for _, targets in parts], np.int64)
            nobody = self.data.holdout(np.empty(0, np.intp))
            x, targets = (np.concatenate(arrays) for arrays in zip(nobody, *parts, strict=True))
            self._examples = x, targets
            self._counts = {
                metrics.TESTED_EXAMPLES: int(counts.sum()),
                metrics.TESTED_CLIENTS: int((counts > 0).sum()),
            }
            self._tested = now
        return self._examples

    def _whose(self) -> NDArray[np.bool_]:
        """Whose held-out examples are the test set now, shape (N,)."""
        if self.settings.evaluate_on == "everybody":
            return np.ones(len(self.data.sizes), np.bool_)
        present = self.settings.evaluate_on == "present"
        return self.roster.member & ~self.roster.departed if present else self.roster.member

    def _holdouts(self, clients: NDArray[np.intp]) -> list[Examples]:
        return [self.data.holdout(np.array([client])) for client in clients.tolist()]
