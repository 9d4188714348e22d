"""Checks of how somebody's own code divides the data; ours is checked by its tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.errors import SettingsError
from fedtide.tasks import Partition, PartitionFn, SizesFn


def checked_sizes(name: str, sizes: SizesFn) -> SizesFn:
    """Return sizes that raise ValueError where what they return cannot be the clients' sizes."""

    def check(num_clients: int, num_examples: int, rng: np.random.Generator) -> NDArray[np.int64]:
        given = _numbers(f"sizes {name}", sizes(num_clients, num_examples, rng))
        if given.shape != (num_clients,):
            raise SettingsError(f"sizes {name} gives shape {given.shape}, not ({num_clients},)")
        if given.min() < 1 or given.sum() > num_examples:
            least = f"{given.min()} to {given.max()}, together {given.sum()}"
            raise SettingsError(
                f"sizes {name} gives {least}; each must be positive, of {num_examples} in all"
            )
        return given

    return check


def checked_partition(name: str, partition: PartitionFn) -> PartitionFn:
    """Return a partition that raises ValueError where what it returns is none of the examples."""

    def check(labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator) -> Partition:
        given = partition(labels, sizes, rng)
        if len(given) != len(sizes):
            raise SettingsError(f"partition {name} has {len(given)} parts for {len(sizes)} clients")
        parts = [_numbers(f"partition {name}", part) for part in given]
        chosen = np.concatenate(parts)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(labels):
            outside = chosen.min() if chosen.min() < 0 else chosen.max()
            raise SettingsError(f"partition {name} gives position {outside} of {len(labels)} examples")
        if np.bincount(chosen, minlength=1).max() > 1:
            twice = np.bincount(chosen).argmax()
            raise SettingsError(f"partition {name} gives example {twice} away more than once")
        return parts

    return check


def _numbers(owner: str, given: Any) -> NDArray[np.int64]:
    """Return whole numbers in one dimension as an array."""
    try:
        array = np.asarray(given)
    except ValueError:
        array = np.empty(0, object)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise SettingsError(f"{owner} gives something else than whole numbers in one dimension")
    return array.astype(np.int64)
