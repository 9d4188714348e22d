"""A task made from arrays, for callers in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.base.errors import SettingsError
from fedtide.tasks.criteria import SquaredError
from fedtide.tasks.data import Examples, are_classes, test_rows
from fedtide.tasks.dataset import Dataset, DividedTask, Owners, default_partition, distinct


@dataclass(frozen=True)
class Task(DividedTask):
    """Examples in memory: classes to predict if the targets are whole numbers, else numbers (regression)."""

    train: Examples
    test: Examples
    owners: Owners | None
    default_model: str = "logistic"

    name = "arrays"

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        *,
        clients: ArrayLike | None = None,
        test: tuple[ArrayLike, ArrayLike] | None = None,
        model: str = "logistic",
    ) -> Task:
        """Make a task of examples.

        Parameters
        ----------
        x
            Inputs, shape (n, ...): numbers, scaled as the model wants them.
        y
            Targets, shape (n,): classes 0, 1, ... or False and True, or floating-point numbers.
        clients
            Whose example it is, shape (n,): a number from 0 to N - 1, or a name; clients are then numbered in
            the order of their names. Default: `partition` divides the examples.
        test
            Inputs and targets of the test set; default: a fifth of the examples, always the same ones.
        model
            Used if the settings name none.

        Raises
        ------
        ValueError
            The arrays do not fit together.
        """
        inputs, targets = _array("x", x), _numbered("y", y)
        given = None if clients is None else _array("clients", clients)
        for name, array in (("y", targets), ("clients", given)):
            if array is not None and array.shape != (len(inputs),):
                raise SettingsError(
                    f"{name} has shape {array.shape}; {len(inputs)} inputs need ({len(inputs)},)"
                )
        if test is not None:
            owners = _owners(given, np.ones(len(inputs), np.bool_))
            held_out = _array("test inputs", test[0]), _numbered("test targets", test[1])
            return cls((inputs, targets), held_out, owners, model)
        held = test_rows(len(inputs))
        train, held_out = ((inputs[rows], targets[rows]) for rows in (~held, held))
        return cls(train, held_out, _owners(given, ~held), model)

    @property
    def default_partition(self) -> str | None:  # type: ignore[override]
        """None if the examples say whose they are."""
        return default_partition(self.owners is not None, are_classes(self.train[1]))

    def dataset(self) -> Dataset:
        """Return the examples as a data set."""
        targets = self.train[1]
        if are_classes(targets):
            return Dataset(self.train, self.test, int(targets.max(initial=0)) + 1, owners=self.owners)
        return Dataset(self.train, self.test, 1, SquaredError(), owners=self.owners)


def _array(name: str, given: ArrayLike) -> NDArray[Any]:
    """Return what was given as an array; SettingsError: it cannot be one, or some of it is masked."""
    try:
        array = np.asarray(given)
    except (RuntimeError, TypeError, ValueError) as error:  # RuntimeError: of PyTorch's tensors
        raise SettingsError(f"{name}: {error}") from None
    if array.dtype == object and not array.ndim:
        raise SettingsError(f"{name} is a {type(given).__name__}; convert it to an array, as by toarray()")
    if np.ma.is_masked(given):
        raise SettingsError(f"{name}: a number is missing (masked)")
    return array


def _numbered(name: str, targets: ArrayLike) -> NDArray[Any]:
    """Return targets, False and True as classes 0 and 1."""
    array = _array(name, targets)
    return array.astype(np.int64) if array.dtype == bool else array


def _owners(given: NDArray[Any] | None, train: NDArray[np.bool_]) -> Owners | None:
    """Return the owners of the training examples, given those of all examples, as numbers or names."""
    if given is None:
        return None
    what = "the examples say whose they are"
    if are_classes(given) and given.min(initial=0) >= 0:
        return Owners(what, given[train], int(given.max(initial=-1)) + 1)
    stripped = [name.strip() if isinstance(name, str) else "" for name in given.tolist()]
    if not all(stripped):
        raise SettingsError("clients must be whole numbers from 0 on, or names")
    names, clients = distinct(stripped)
    return Owners(what, clients[train], len(names), names)
