"""SYNTHETIC(alpha, beta): examples generated on demand, for any number of clients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked, NotNegative, Range
from fedtide.tasks.criteria import CROSS_ENTROPY, Criterion
from fedtide.tasks.data import TEST_SHARE, Examples, FederatedData, holdout_counts, require_holdout
from fedtide.tasks.partition import PartitionFn
from fedtide.tasks.sizes import SizesFn

FEATURES, CLASSES = 60, 10
TEST_CLIENTS, TEST_LIMIT = 1_000, 100_000
# Standard deviation of feature j = 1..60, whose variance is j^-1.2.
SCALE = np.arange(1, FEATURES + 1) ** -0.6


@dataclass(frozen=True)
class ClientModel:
    """Generative model of a client's examples: x ~ N(v, Sigma) and y = argmax(x W + b).

    The shapes of W, b and v are (60, 10), (10,) and (60,).
    """

    W: NDArray[np.float64]
    b: NDArray[np.float64]
    v: NDArray[np.float64]

    def draw(self, count: int, rng: np.random.Generator) -> Examples:
        """Draw `count` examples, read-only because the cache shares them."""
        x = self.v + SCALE * rng.standard_normal((count, FEATURES))
        # The paper's softmax does not change the argmax.
        y = np.argmax(x @ self.W + self.b, axis=1).astype(np.int64)
        x32 = x.astype(np.float32)
        x32.flags.writeable = y.flags.writeable = False
        return x32, y


@dataclass(frozen=True, kw_only=True)
class Synthetic(Checked):
    """SYNTHETIC(alpha, beta): 60 features, 10 classes, examples generated for any number of clients.

    Client k labels with y = argmax(softmax(x W_k + b_k)), where the entries of W_k and b_k are
    N(u_k, 1) and u_k ~ N(0, alpha); its inputs are x ~ N(v_k, Sigma), where Sigma is diagonal with
    entries j^-1.2, the entries of v_k are N(B_k, 1) and B_k ~ N(0, beta). The second argument of N is
    a variance, as in the paper; the authors' published code passes alpha and beta as standard
    deviations, which makes no difference at 0 and 1. The test set has new examples of each of the
    first 1,000 clients, a fifth as many as the client has, and at most about 100,000 in total, in the
    same proportions.

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (arXiv 2018), 5.1.

    Attributes
    ----------
    alpha, beta
        Variances between clients: of the means of their models, and of the means of their inputs.
    iid
        One W, b ~ N(0, 1) and v = 0 for all clients; alpha and beta are then unused.
    mean_size
        Mean number of examples of a client: mean_size * N examples are divided among the N clients.
    """

    alpha: NotNegative = 1.0
    beta: NotNegative = 1.0
    iid: bool = False
    mean_size: Annotated[int, Range(least=1, most=10_000_000)] = 100  # the largest draws take 5 GB

    clients_are_apart: ClassVar[bool] = True
    default_partition: ClassVar[None] = None
    default_model: ClassVar[str] = "logistic"

    def client_model(self, client: int, seed: int) -> ClientModel:
        """Return the generative model of a client."""
        if self.iid:
            rng = np.random.default_rng([seed, *b"synthetic-model"])
            return ClientModel(
                rng.normal(size=(FEATURES, CLASSES)), rng.normal(size=CLASSES), np.zeros(FEATURES)
            )
        rng = np.random.default_rng([seed, *b"synthetic-model", client])
        u = rng.normal(0, math.sqrt(self.alpha))
        B = rng.normal(0, math.sqrt(self.beta))
        return ClientModel(
            rng.normal(u, 1, (FEATURES, CLASSES)), rng.normal(u, 1, CLASSES), rng.normal(B, 1, FEATURES)
        )

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        """Fix the clients' sizes; see `TaskSource.federate`."""
        totals = sizes(num_clients, self.mean_size * num_clients, np.random.default_rng([seed, *b"sizes"]))
        training = totals - holdout_counts(totals, holdout)
        return SyntheticData(self, seed, totals, training, self._test(totals, seed), holdout)

    def _test(self, totals: NDArray[np.int64], seed: int) -> Examples:
        tested = totals[:TEST_CLIENTS]
        share = min(TEST_SHARE, TEST_LIMIT / int(tested.sum()))
        draws = [
            self.client_model(k, seed).draw(count, np.random.default_rng([seed, *b"synthetic-test", k]))
            for k, count in enumerate(np.ceil(share * tested).astype(int))
        ]
        return np.concatenate([x for x, _ in draws]), np.concatenate([y for _, y in draws])


@lru_cache(maxsize=32)
def client_examples(family: Synthetic, seed: int, client: int, count: int) -> Examples:
    """Return all examples of a client, read-only and the same in every call.

    They depend on nothing but the family, the seed and the client; a smaller count gives the first of more.
    """
    rng = np.random.default_rng([seed, *b"synthetic-examples", client])
    return family.client_model(client, seed).draw(count, rng)


@dataclass(frozen=True)
class SyntheticData:
    """Clients of a synthetic family, for which only the sizes are stored.

    The examples of a client are independent draws, so that its last ones can serve as the hold-out.
    """

    family: Synthetic
    seed: int
    totals: NDArray[np.int64]
    sizes: NDArray[np.int64]
    test: Examples
    holdout_share: float
    input_shape: ClassVar[tuple[int, ...]] = (FEATURES,)
    num_outputs: ClassVar[int] = CLASSES
    criterion: ClassVar[Criterion] = CROSS_ENTROPY

    def examples(self, client: int, rows: NDArray[np.intp]) -> Examples:
        x, y = self._all(client)
        n = self.sizes[client]
        return x[:n][rows], y[:n][rows]

    def train_set(self, clients: NDArray[np.intp]) -> Examples:
        return self._join(clients, np.zeros_like(self.sizes[clients]), self.sizes[clients])

    def holdout(self, clients: NDArray[np.intp]) -> Examples:
        require_holdout(self.holdout_share)
        return self._join(clients, self.sizes[clients], self.totals[clients])

    def without(self, clients: Sequence[int]) -> FederatedData:
        none = np.isin(np.arange(len(self.sizes)), clients)
        return replace(self, totals=np.where(none, 0, self.totals), sizes=np.where(none, 0, self.sizes))

    def _join(
        self, clients: NDArray[np.intp], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> Examples:
        xs, ys = [np.empty((0, FEATURES), np.float32)], [np.empty(0, np.int64)]
        for client, start, stop in zip(clients, starts, stops, strict=True):
            x, y = self._all(int(client))
            xs.append(x[start:stop])
            ys.append(y[start:stop])
        return np.concatenate(xs), np.concatenate(ys)

    def _all(self, client: int) -> Examples:
        return client_examples(self.family, self.seed, client, int(self.totals[client]))
