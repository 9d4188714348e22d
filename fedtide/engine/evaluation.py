"""Evaluation of the global model at the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from flwr.common import Scalar
from numpy.typing import NDArray
from torch import nn

from clients.gradients.flat import FlatModel
from clients.simulated.evaluation import evaluate_with_views, part_scores
from fedtide.base.contract import metrics
from fedtide.base.errors import SettingsError
from fedtide.config import Settings
from fedtide.engine.groups import TimesActive, group_numbers, groups_of, reason_of, spread, values_of
from fedtide.engine.memory_check import check_metrics
from fedtide.tasks import Examples, FederatedData
from fedtide.tasks.metrics import MetricFunction, UndefinedMetricError, View, Views, targets_of, view_of
from strategies import Roster

LIMIT = 1_000_000  # examples that the training loss is computed on
TRIED = 10_000  # examples that metrics are tried on at a time
TRIED_OUTPUTS = 1 << 26  # of sequences, that they are tried on


class GlobalEvaluator:
    """Loss and metric of the global weights; an `evaluate_fn` for this project's and Flower's strategies.

    They are tested on the data set's test split, or on the held-out examples of clients: of those who are
    there now (`present`), of those in the objective (`objective`, Ruan et al., Figure 4), or of all clients,
    as each is a member in some round (`everybody`). The first two change when clients come and go.

    Further metrics are computed from the outputs of the same pass over these examples; one that has no value
    is NaN, and `say` is told why, once.
    """

    def __init__(
        self,
        settings: Settings,
        data: FederatedData,
        build: Callable[[], nn.Module],
        roster: Roster,
        functions: Sequence[MetricFunction] = (),
    ) -> None:
        self.settings, self.data, self.roster, self.functions = settings, data, roster, functions
        self.times_active = TimesActive(len(data.sizes))
        self.say: Callable[[str], object] = lambda line: None
        self._undefined: set[str] = set()  # metrics of which it was said
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model, self.metric = FlatModel(build(), device, data.criterion), data.criterion.metric
        self._tested: bytes | None = None  # whose examples the test set has
        self._examples, self._counts = data.test, {metrics.TESTED_EXAMPLES: len(data.test[1])}

    def __call__(
        self, server_round: int, arrays: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[float, dict[str, Scalar]]:
        """Evaluate weights, given as one array per tensor."""
        self._load(arrays)
        examples = self._test_examples()
        needed = {function.view for function in self.functions}
        loss, score, views = self._score(examples, needed)
        measured: dict[str, Any] = {self.metric.name: score, **self._counts}
        measured |= self._measured(server_round, examples[1], views)
        if self.settings.train_loss:
            measured[metrics.TRAIN_LOSS] = self.train_loss(arrays)
        every, last = self.settings.evaluate_clients, self.settings.num_rounds
        if every and (server_round % every == 0 or server_round == last):
            measured |= self._of_members(server_round, needed)
        return loss, measured

    def _of_members(self, server_round: int, needed: Collection[View]) -> dict[str, Any]:
        """Return the numbers of the members' held-out examples, by client and by group of clients."""
        members = np.flatnonzero(self.roster.member)
        found = part_scores(self.model, self._holdouts(members), needed)
        if not found.counted.any():
            return {}
        of_clients = spread(found.means[found.counted], self.metric.higher_is_better)
        now = self.roster.accepted == server_round if server_round else False  # not in the counts yet
        groups = groups_of(self.data, self.times_active.counts + now)
        return {
            metrics.WORST_CLIENT + self.metric.name: of_clients["worst"],
            metrics.TENTH_PERCENTILE + self.metric.name: of_clients["tenth_percentile"],
            metrics.GROUPS: group_numbers(groups, found, members, self.data, self.functions),
        }

    def check_metrics(self) -> str:
        """Try the further metrics; return a line on the memory that they take, if it is much.

        Classes are predicted at random, and numbers perfectly, as some metrics allow no negative ones.
        SettingsError: one does not suit the task or fails, or would take more memory than there is.
        """
        targets, criterion = self._test_examples()[1], self.data.criterion
        if not (self.functions and len(targets)):
            return ""
        numbers, width = criterion.predicts_numbers(targets), self.data.num_outputs
        positions = max(len(targets), self._most_tested()) * math.prod(targets.shape[1:])
        room = check_metrics(positions, width, {function.view for function in self.functions})
        rng = np.random.default_rng([*b"metrics"])
        shape = targets.shape if np.issubdtype(targets.dtype, np.floating) else (*targets.shape, width)
        if len(shape) > 2 and not numbers:  # a language model has too many outputs to draw them all
            targets = targets[: max(1, TRIED_OUTPUTS // math.prod(shape[1:]))]
        true = targets_of(criterion, targets)
        for function in self.functions:
            try:
                views = []
                for start in range(0, len(targets), TRIED):
                    batch = targets[start : start + TRIED]
                    outputs = batch if numbers else rng.standard_normal((len(batch), *shape[1:]), np.float32)
                    given = map(torch.from_numpy, (outputs, batch))
                    views.append(view_of(function.view, criterion, *given))
                function.value(true, np.concatenate(views), width)
            except UndefinedMetricError:
                continue  # of these predictions, perhaps of no others
            except Exception as error:
                raise SettingsError(f"metrics {function.spec}: {reason_of(error)}") from None
        return room

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
        total, count = 0.0, 0.0
        for start in range(0, len(members), 1000):  # all at once would double the memory
            examples = self.data.train_set(members[start : start + 1000])
            if n := self._terms(examples[1]):
                total, count = total + n * self._score(examples)[0], count + n
        return total / count if count else math.nan

    def _terms(self, targets: NDArray[Any]) -> float:
        """Return what the mean loss of these examples is a mean over: mostly the examples."""
        counts = self.data.criterion.counts(torch.from_numpy(targets))
        return len(targets) if counts is None else float(counts.sum())

    def _load(self, arrays: list[NDArray[Any]]) -> None:
        self.model.load(np.concatenate([np.ravel(a) for a in arrays]))

    def _score(self, examples: Examples, needed: Collection[View] = ()) -> tuple[float, float, Views]:
        """Loss, mean score and what metrics need; NaN without examples, when there are no members."""
        if not len(examples[1]):
            return math.nan, math.nan, {}
        return evaluate_with_views(self.model, examples, needed)

    def _measured(self, server_round: int, targets: NDArray[Any], views: Views) -> dict[str, Scalar]:
        """Return the further metrics, and say of which there are none."""

        def undefined(key: str, reason: str) -> None:
            if key not in self._undefined:
                self._undefined.add(key)
                self.say(f"{key} has no value in round {server_round}: {reason}")

        true = targets_of(self.data.criterion, targets)
        return values_of(self.functions, true, views, self.data.num_outputs, undefined)

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

    def _most_tested(self) -> int:
        """How many examples are tested at most, about: all that are held out, if these are."""
        held_out = self.settings.evaluate_on != "test" or self.settings.evaluate_clients
        share = self.settings.holdout if held_out else 0.0
        return round(int(self.data.sizes.sum()) * share / (1 - share))

    def _holdouts(self, clients: NDArray[np.intp]) -> list[Examples]:
        return [self.data.holdout(np.array([client])) for client in clients.tolist()]
