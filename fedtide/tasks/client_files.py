"""Data that others have divided among clients: a file for each client, or LEAF's JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked
from fedtide.base.errors import SettingsError, why
from fedtide.base.files import arrays_in, open_regular, parse_json, read_text
from fedtide.base.numbers import exact
from fedtide.tasks.criteria import CROSS_ENTROPY, Criterion, SquaredError
from fedtide.tasks.data import Examples, FederatedData, PartitionedData, test_rows
from fedtide.tasks.dataset import Dataset, choose_clients, rows_of
from fedtide.tasks.partition import PartitionFn
from fedtide.tasks.sizes import SizesFn
from fedtide.tasks.tables import Kind
from fedtide.tasks.texts import numbered_characters

MAX_BYTES = 4 << 30  # of a file, once it is unpacked


Readers = Mapping[str, Callable[[], Examples]]
"""What reads the examples of each client, by the client's name."""


@dataclass(frozen=True, kw_only=True)
class ClientFiles(Checked, ABC):
    """Examples that files assign to clients; all attributes are options."""

    folder: str
    shape: str = ""
    kind: Kind = "classification"

    clients_are_apart: ClassVar[bool] = True
    default_partition: ClassVar[None] = None
    default_model: ClassVar[str] = "logistic"  # takes any numbers; texts need `lstm`
    name: ClassVar[str]

    @abstractmethod
    def readers(self) -> tuple[Readers, Readers | None]:
        """Return those of examples to train and to test on, None of the latter where no client has any.

        SettingsError: there are no clients.
        """

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        train_of, test_of = self.readers()
        there = sorted(train_of, key=float if exact([*train_of]) else str)
        names = choose_clients(self.name, f"clients in {self.folder}", there, num_clients, sizes, seed)
        own = [(name, train_of[name]()) for name in names]
        count = sum(len(y) for _, (_, y) in own)
        if test_of is not None:
            found = ((f"{name} (test)", test_of[name]()) for name in names if name in test_of)
            tested = [(name, examples) for name, examples in found if len(examples[1])]
            if not tested:
                raise SettingsError(
                    f"{self.folder}: the examples to test on are of none of the clients that are drawn; "
                    "without the folder test, a fifth of all examples is for testing"
                )
            own += tested
        (x, y), owners = self._joined(own)
        if test_of is not None:
            train = np.arange(len(owners)) < count
        elif count < 2:
            raise SettingsError(f"{self.folder}: it has {count} examples; training and testing take 2")
        else:
            train = ~test_rows(count)
        x, vocabulary = self._inputs(x)
        y, outputs, criterion = self._targets(y)
        data = Dataset((x[train], y[train]), (x[~train], y[~train]), outputs, criterion)
        parts = rows_of(owners[train], num_clients)
        stored = (data.train, data.test, outputs, parts, holdout, seed, criterion)
        return PartitionedData.divide(*stored, client_names=names, vocabulary=vocabulary)

    def _joined(self, own: Sequence[tuple[str, Examples]]) -> tuple[Examples, NDArray[np.intp]]:
        """Return the examples of clients one after the other, and the position of the client of each."""
        first, (x, y) = own[0]
        for name, (inputs, targets) in own:
            where = f"{self.folder}: client {name}"
            if targets.shape != (len(inputs),):
                shapes = f"inputs of shape {inputs.shape} and targets of shape {targets.shape}"
                raise SettingsError(f"{where} has {shapes}; there must be a target for each input")
            for what, here, known in (("inputs", inputs, x), ("targets", targets, y)):
                if (here.shape[1:], here.dtype.kind == "U") != (known.shape[1:], known.dtype.kind == "U"):
                    shown = f"{here.dtype} of shape {here.shape[1:]}, client {first} {known.dtype}"
                    raise SettingsError(f"{where} has {what} of type {shown} of shape {known.shape[1:]}")
        lengths = [len(targets) for _, (_, targets) in own]
        joined = tuple(np.concatenate(arrays) for arrays in zip(*(of for _, of in own), strict=True))
        return (joined[0], joined[1]), np.repeat(np.arange(len(own)), lengths)

    def _inputs(self, x: NDArray[Any]) -> tuple[NDArray[Any], int]:
        """Return inputs in their shape, characters as numbers in their order, and how many of those exist."""
        if x.dtype.kind == "U":
            numbers, names = numbered_characters(x.view(np.uint32))
            return numbers, len(names)
        try:
            return x.reshape(len(x), *map(int, self.shape.split("x"))) if self.shape else x, 0
        except ValueError:
            found = "x".join(map(str, x.shape[1:]))
            raise SettingsError(
                f"task {self.name}: shape={self.shape} is not that of inputs of shape {found}"
            ) from None

    def _targets(self, y: NDArray[Any]) -> tuple[NDArray[Any], int, Criterion]:
        """Return the targets, the number of outputs and the criterion; texts are classes in their order."""
        if self.kind == "regression":
            if y.dtype.kind not in "iuf":
                raise SettingsError(f"task {self.name}: targets are {y.dtype}, not numbers")
            return y.astype(np.float32), 1, SquaredError()
        if y.dtype.kind in "US":
            _, numbers = np.unique(y, return_inverse=True)
        else:
            with np.errstate(invalid="ignore"):
                numbers = y.astype(np.int64)
            if not np.array_equal(numbers, y) or numbers.min(initial=0) < 0:
                raise SettingsError(
                    f"task {self.name}: targets are not whole numbers from 0 on; set kind=regression, if "
                    "they are numbers to predict"
                )
        return numbers, int(numbers.max(initial=0)) + 1, CROSS_ENTROPY


@dataclass(frozen=True, kw_only=True)
class NpzFiles(ClientFiles):
    """A .npz file for each client, named by the client.

    It has the arrays `x`, inputs of shape (n, ...), and `y`, targets of shape (n,). The files lie in
    FOLDER/train, and FOLDER/test has those to test on; or all lie in FOLDER, and a fifth of all examples,
    always the same, is for testing. Of more clients than the run has, the seed draws as many. Inputs are not
    scaled.

    Attributes
    ----------
    folder
        Where the files are.
    shape
        Shape of an input, such as 1x28x28; default: as in the files.
    kind
        `classification`: targets are whole numbers from 0 on; or `regression`.
    """

    name: ClassVar[str] = "npz"

    def readers(self) -> tuple[Readers, Readers | None]:
        folder = Path(self.folder)
        is_split = (folder / "train").is_dir()
        train = _npz_readers(folder / "train" if is_split else folder)
        if not train:
            raise SettingsError(f"task npz: there are no files *.npz in {folder / 'train'} or {folder}")
        return train, _npz_readers(folder / "test") if is_split and (folder / "test").is_dir() else None


@dataclass(frozen=True, kw_only=True)
class Leaf(ClientFiles):
    """LEAF's JSON, with `users` and `user_data`: the files of FOLDER/train and of FOLDER/test.

    Inputs are lists of numbers, as of FEMNIST and Synthetic, or texts of one length, as of Shakespeare: their
    characters, and targets that are texts, are numbered in their order. Of more users than the run has
    clients, the seed draws as many; the test set has their test examples. Inputs are not scaled.

    Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.

    Attributes
    ----------
    folder
        Where the folders train and test are.
    shape
        Shape of an input, such as 1x28x28 of FEMNIST; default: as in the files.
    kind
        `classification`: targets are whole numbers from 0 on, or texts; or `regression`.
    """

    name: ClassVar[str] = "leaf"

    def readers(self) -> tuple[Readers, Readers | None]:
        train = self._readers("train", "user")
        if not train:
            raise SettingsError(f"task leaf: there are no users in {Path(self.folder) / 'train'}/*.json")
        return train, self._readers("test", "test examples of user") or None

    def _readers(self, split: str, what: str) -> Readers:
        users = _users(Path(self.folder) / split)
        return {name: partial(_lists, f"{self.folder}: {what} {name}", own) for name, own in users.items()}


def _npz_readers(folder: Path) -> Readers:
    return {path.stem: partial(_arrays, path) for path in folder.glob("[!.]*.npz")}


def _arrays(file: Path) -> Examples:
    """Read `x` and `y` of a .npz file; SettingsError: it has none."""
    try:
        with open_regular(file) as stream:
            found = arrays_in(stream, MAX_BYTES)
        return found["x"], found["y"]
    except KeyError as error:
        raise SettingsError(f"{file}: it has no array {error}") from None
    except (OSError, ValueError) as error:
        reason = why(error)
        if "allow_pickle" in reason:  # NumPy's words
            reason = "its arrays are pickled, as PFLlib's are; docs/tasks.md has the line that converts them"
        raise SettingsError(f"{file}: {reason}") from None


def _users(folder: Path) -> dict[str, Any]:
    """Return what the files of a folder have of each user."""
    users: dict[str, Any] = {}
    for file in sorted(folder.glob("[!.]*.json")):
        try:
            content = parse_json(read_text(file, MAX_BYTES))
            own = {str(name): content["user_data"][name] for name in content["users"]}
            if twice := sorted(users.keys() & own):
                raise ValueError(f"user {twice[0]!r} is in a file before it, too; put all of a user into one")
            users |= own
        except (OSError, ValueError) as error:
            raise SettingsError(f"{file}: {why(error)}") from None
        except (KeyError, TypeError):
            raise SettingsError(f"{file}: it lacks users, or the user_data of one") from None
    return users


def _lists(what: str, own: Any) -> Examples:
    """Return the lists `x` and `y` as arrays; texts of one length as rows of characters."""
    try:
        x, y = own["x"], own["y"]
        texts = bool(x) and isinstance(x[0], str)
        return np.array([[*text] for text in x] if texts else x), np.array(y)
    except (KeyError, TypeError):
        raise SettingsError(f"{what}: it has no lists x and y") from None
    except ValueError:
        raise SettingsError(f"{what}: its inputs, or its targets, are of different lengths") from None
