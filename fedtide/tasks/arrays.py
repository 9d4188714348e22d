"""Tasks for callers in Python, from arrays or from folders of images."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.base.errors import SettingsError
from fedtide.tasks.criteria import CROSS_ENTROPY, BinaryCrossEntropy, Criterion, SquaredError
from fedtide.tasks.data import Examples, are_classes, test_rows
from fedtide.tasks.dataset import Dataset, DividedTask, Groups, Owners, default_partition, distinct


@dataclass(frozen=True)
class Task(DividedTask):
    """Examples in memory: classes to predict if the targets are whole numbers, else numbers (regression)."""

    train: Examples
    test: Examples
    owners: Owners | None
    default_model: str = "logistic"
    criterion: Criterion | None = None

    name = "arrays"
    clients_are_apart = True

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        *,
        clients: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        test: tuple[ArrayLike, ArrayLike] | None = None,
        model: str = "logistic",
        criterion: Criterion | None = None,
    ) -> Task:
        """Make a task of examples.

        Parameters
        ----------
        x
            Inputs, shape (n, ...): numbers, scaled as the model wants them.
        y
            Targets, shape (n,): classes 0, 1, ... or False and True, or floating-point numbers; with a
            `criterion`, also several for an example, shape (n, ...).
        clients
            Whose example it is, shape (n,): a number from 0 to N - 1, or a name; clients are then numbered in
            the order of their names. Default: `partition` divides the examples.
        groups
            Which group of clients the example's client belongs to, such as a ward, shape (n,): whole numbers
            or names. Evaluations of clients tell their groups apart.
        test
            Inputs and targets of the test set; default: a fifth of the examples, always the same ones.
        model
            Used if the settings name none.
        criterion
            The loss and the metric; default: cross-entropy and accuracy for classes, else half the squared
            error and the mean absolute error.

        Raises
        ------
        ValueError
            The arrays do not fit together.
        """
        inputs, targets = _array("x", x), _numbered("y", y, criterion)
        given = None if clients is None else _array("clients", clients)
        grouped = None if groups is None else _array("groups", groups)
        if grouped is not None and given is None:
            raise SettingsError("groups are groups of clients: give clients, too")
        if criterion is not None and not isinstance(criterion, Criterion):
            raise SettingsError("criterion must be a Criterion object, such as BinaryCrossEntropy()")
        for name, array in (("y", targets), ("clients", given), ("groups", grouped)):
            shape = () if array is None else array.shape[:1] if name == "y" and criterion else array.shape
            if array is not None and shape != (len(inputs),):
                raise SettingsError(
                    f"{name} has shape {array.shape}; {len(inputs)} inputs need ({len(inputs)},)"
                )
        if test is not None:
            owners = _owners(given, grouped, np.ones(len(inputs), np.bool_))
            held_out = _array("test inputs", test[0]), _numbered("test targets", test[1], criterion)
            return cls((inputs, targets), held_out, owners, model, criterion)
        held = test_rows(len(inputs))
        train, held_out = ((inputs[rows], targets[rows]) for rows in (~held, held))
        return cls(train, held_out, _owners(given, grouped, ~held), model, criterion)

    @staticmethod
    def from_folder(path: str | os.PathLike[str], **options: Any) -> str:
        """Return the task of a folder of images, as `--task` has it; `--list --task folder` has the options.

        SettingsError: the path cannot stand there.
        """
        where = os.path.abspath(path)
        if "," in where:
            raise SettingsError(f"path {where}: a comma ends it in `--task`; rename the folder")
        return ",".join([f"folder:path={where}", *(f"{key}={value}" for key, value in options.items())])

    @property
    def default_partition(self) -> str | None:  # type: ignore[override]
        """None if the examples say whose they are."""
        return default_partition(self.owners is not None, are_classes(self.train[1]))

    def dataset(self) -> Dataset:
        targets, criterion = self.train[1], self.criterion
        if np.issubdtype(targets.dtype, np.integer):
            count = int(max(part.max(initial=0) for part in (targets, self.test[1]))) + 1
            criterion = criterion or CROSS_ENTROPY
        else:
            count, criterion = int(np.prod(targets.shape[1:])), criterion or SquaredError()
        return Dataset(self.train, self.test, count, criterion, owners=self.owners)


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


def _numbered(name: str, targets: ArrayLike, criterion: Criterion | None) -> NDArray[Any]:
    """Return targets, False and True as classes 0 and 1; those that mark labels as floating-point numbers."""
    array = _array(name, targets)
    if isinstance(criterion, BinaryCrossEntropy) and array.dtype.kind in "biu":
        return array.astype(np.float32)
    return array.astype(np.int64) if array.dtype == bool else array


def _owners(
    given: NDArray[Any] | None, grouped: NDArray[Any] | None, train: NDArray[np.bool_]
) -> Owners | None:
    """Return the owners of the training examples, and their groups, given those of all examples."""
    if given is None:
        return None
    what, groups = "the examples say whose they are", None
    if grouped is not None:
        known = grouped.tolist()
        if "" in known or not any(all(isinstance(one, kind) for one in known) for kind in (int, str)):
            raise SettingsError("groups must be whole numbers or names, and none may be missing")
        values, positions = np.unique(grouped[train], return_inverse=True)
        groups = Groups("groups", positions, values.tolist())
    if are_classes(given) and given.min(initial=0) >= 0:
        return Owners(what, given[train], int(given.max(initial=-1)) + 1, groups=groups)
    stripped = [name.strip() if isinstance(name, str) else "" for name in given.tolist()]
    if not all(stripped):
        raise SettingsError("clients must be whole numbers from 0 on, or names")
    names, clients = distinct(stripped)
    return Owners(what, clients[train], len(names), names, groups)
