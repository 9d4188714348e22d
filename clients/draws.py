"""Which of its examples a client uses in a round: drawn from the seed, the client and the round.

Needs NumPy only, so that a client without PyTorch draws the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.contract import FitConfig

Indices = NDArray[np.intp]


class BatchIndices(NamedTuple):
    """Which of a client's examples each of its local steps uses."""

    indices: Indices  # of the examples of all steps, concatenated
    lengths: NDArray[np.intp]  # (s,), number of examples in each step's batch
    changes: NDArray[np.int64] | None = None  # of each example at random, see `fedtide.tasks.Augmentation`
    seeds: NDArray[np.int64] | None = None  # (s,), of what the model draws in each step, as for dropout

    def split(self) -> list[Indices]:
        """Return the indices of each step."""
        return np.split(self.indices, np.cumsum(self.lengths)[:-1])

    @property
    def padded_length(self) -> int:
        """Length B to which batches are padded: that of the longest, rounded up to three significant bits.

        It depends on this client alone, so that the same sums are taken in the same order whoever else is in
        the cohort. Rounding leaves few lengths, so that clients with different numbers of examples can train
        together.
        """
        return _rounded_up(max(self.lengths.tolist()))


@lru_cache(maxsize=1024)
def _rounded_up(size: int) -> int:
    """Round up to a number with three significant bits, at least 2.

    BLAS may round products with a vector, unlike products of matrices, differently for one client than for
    several.
    """
    unit = 1 << max(0, size.bit_length() - 3)
    return max(2, -(-size // unit) * unit)


def draw_batches(num_examples: int, batch_size: int, steps: int, rng: np.random.Generator) -> BatchIndices:
    """Draw the batches of a client's local steps; batch size 0 takes all examples in every step.

    Every epoch shuffles the data anew; its last batch may be smaller. The first s of E batches do not depend
    on E: an incomplete client does the same first steps as a complete one.
    """
    lengths, epochs, total = _lengths(num_examples, batch_size, steps)
    passes = [rng.permutation(num_examples) for _ in range(epochs)]
    indices = passes[0] if epochs == 1 else np.concatenate(passes)
    return BatchIndices(indices[:total], lengths)


@lru_cache(maxsize=1024)
def _lengths(num_examples: int, batch_size: int, steps: int) -> tuple[NDArray[np.intp], int, int]:
    """Return the lengths of batches, the epochs that they begin, and their sum: often the same ones."""
    size = min(batch_size, num_examples) or num_examples
    per_epoch = -(-num_examples // size)
    lengths = np.full(steps, size, np.intp)
    lengths[per_epoch - 1 :: per_epoch] = num_examples - size * (per_epoch - 1)
    lengths.setflags(write=False)
    return lengths, -(-steps // per_epoch), int(lengths.sum())


def client_rng(seed: int, purpose: bytes, client: int, server_round: int) -> np.random.Generator:
    """Return a random generator for one client, round and purpose.

    It is counter-based, and its counter starts at client and round. That takes a tenth of the time of
    hashing a seed, which counts: every client needs one in every round.
    """
    return np.random.Generator(np.random.Philox(_key(seed, purpose), counter=[0, 0, client, server_round]))


class _Key(np.random.SeedSequence):
    """A seed that Philox takes its key from; given a key alone, NumPy would fetch entropy for no use."""

    def __init__(self, seed: int, purpose: bytes) -> None:
        super().__init__([seed, *purpose])
        self._key = super().generate_state(2, np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Return the key, which is computed once; Philox asks for nothing else."""
        return self._key


@lru_cache(maxsize=8)
def _key(seed: int, purpose: bytes) -> _Key:
    return _Key(seed, purpose)


def draw_fisher(num_examples: int, config: FitConfig, client: int, seed: int) -> Indices:
    """Draw the examples of the Fisher information: `fisher-batches` batches without repetition; 0: all."""
    wanted = int(config.own["fisher-batches"]) * config.batch_size or num_examples
    rng = client_rng(seed, b"fisher", client, config.round)
    return rng.permutation(num_examples)[:wanted]
