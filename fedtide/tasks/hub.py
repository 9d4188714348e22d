"""Data sets of the Hugging Face hub, or of a folder that `save_to_disk` has written: `--task hf:NAME,...`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Checked, Count, CountOrZero
from fedtide.ground.errors import SettingsError
from fedtide.ground.wording import plain
from fedtide.tasks.augmentation import Augment, augmentation
from fedtide.tasks.criteria import CROSS_ENTROPY, Criterion, SquaredError
from fedtide.tasks.data import Examples, FederatedData, PartitionedData, test_rows
from fedtide.tasks.dataset import divided
from fedtide.tasks.hub_columns import MAX_NAMES, Columns, Pixels
from fedtide.tasks.partition import Partition, PartitionFn
from fedtide.tasks.sizes import SizesFn
from fedtide.tasks.texts import DerivedData, choose_clients
from fedtide.tasks.tokens import Tokens, wide

if TYPE_CHECKING:
    from datasets import Dataset

EXTRA = "pip install 'fedtide[data]'"


@dataclass(frozen=True, kw_only=True)
class Hub(Checked):
    """Data set of the Hugging Face hub, or in a folder (`save_to_disk`): images, texts or tables.

    A column has images, or texts, or several have features, and another what is predicted. Features are
    numbers, which are standardised over the training examples, vectors of numbers, and texts, classes and
    truth values, which become a feature of 0 or 1 for each of their values. `client` names the column that
    says whose example it is; of its values, the seed draws as many as there are clients. It needs the extra
    `[data]`. A data set of the hub is loaded into Hugging Face's own cache, and may change: see `revision`.

    Attributes
    ----------
    name
        Its name on the hub, or a folder.
    subset, revision
        Which of several subsets (configurations), and which commit, branch or tag, on the hub.
    split
        The split that is divided among the clients.
    test
        The split to test on; default: `test` if there is one, else a fifth of the rows, always the same.
    image, text
        The column with images, all grey or the first one in colour, of 8 or 16 bits, which are scaled to
        0..1 and standardised; or with texts.
    features
        Columns of a table, with `+` between them; default: all but the label and the client.
    label
        The column to predict.
    kind
        `classification`, where the label's values are classes, in their order; or `regression`, where they
        are numbers, and the mean absolute error is reported in their unit.
    client
        The column that says whose example it is. Without one, the rows are divided by a partition.
    size
        Height and width to which images are resized; 0: all have the same.
    augment
        Changes of training images, see `--list --task cifar10`.
    tokens
        What a text consists of.
    length
        How many of its first tokens count; shorter texts are padded at the front.
    vocabulary
        Different tokens, the most frequent ones of the training examples, with one for all others and one for
        padding.
    """

    name: str
    subset: str = ""
    revision: str = ""
    split: str = "train"
    test: str = ""
    image: str = ""
    text: str = ""
    features: str = ""
    label: str = "label"
    kind: Literal["classification", "regression"] = "classification"
    client: str = ""
    size: CountOrZero = 0
    augment: Augment = "none"
    tokens: Literal["words", "characters"] = "words"
    length: Count = 80
    vocabulary: Count = 10_000

    @property
    def default_partition(self) -> str | None:
        """None if a column names the clients."""
        if self.client:
            return None
        return "dirichlet:alpha=0.5" if self.kind == "classification" else "iid"

    @property
    def default_model(self) -> str:
        """A small one for such inputs."""
        return "cnn" if self.image else "lstm" if self.text else "logistic"

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        """Divide the training examples among the clients; see `TaskSource.federate`."""
        if sum(map(bool, (self.image, self.text, self.features))) > 1:
            raise SettingsError("task hf: set one of image, text and features, not several")
        if partition is None and not self.client:
            raise SettingsError(
                "task hf: name a partition such as iid, or the column with the clients (client=)"
            )
        columns = self._columns()
        train = columns.train
        targets, num_outputs, criterion = self._targets(columns)
        owners = columns.take("client", self.client).distinct() if self.client else None
        x, derive, vocabulary = self._inputs(columns)
        names: list[str] = []
        if owners is not None:
            parts, names = self._of_owners(owners[0], owners[1][train], num_clients, sizes, seed)
        else:
            assert partition is not None
            parts = divided(targets[train], num_clients, partition, sizes, seed)
        changes = augmentation(self.augment, derive.black) if isinstance(derive, Pixels) else None
        known, held = (x[train], targets[train]), (x[~train], targets[~train])
        stored = PartitionedData.divide(
            known, held, num_outputs, parts, holdout, seed, criterion, changes, names
        )
        return stored if derive is None else DerivedData(stored, derive, vocabulary)

    def _of_owners(
        self, values: list[Any], owners: NDArray[np.intp], num_clients: int, sizes: SizesFn, seed: int
    ) -> tuple[Partition, list[str]]:
        """Return the rows and the names of clients that are drawn from the values of the column."""
        there, owners = np.unique(owners, return_inverse=True)
        what = f"values of column {self.client!r} in split {self.split}"
        chosen = choose_clients(f"hf:{self.name}", what, len(there), num_clients, sizes, seed)
        ends = np.cumsum(np.bincount(owners))
        rows = np.split(np.argsort(owners, kind="stable"), ends[:-1])
        return [rows[client] for client in chosen], [str(values[there[client]]).strip() for client in chosen]

    def _targets(self, columns: Columns) -> tuple[NDArray[Any], int, Criterion]:
        column = columns.take("label", self.label)
        if self.kind == "regression":
            numbers, deviation = column.numbers(columns.train)
            if len(deviation) > 1:
                raise SettingsError(
                    f"{column.what} has {len(deviation)} numbers in a row, not one to predict"
                )
            return numbers[:, 0].astype(np.float32), 1, SquaredError(unit=float(deviation[0]))
        classes, count = column.classes()
        return classes, count, CROSS_ENTROPY

    def _inputs(self, columns: Columns) -> tuple[NDArray[Any], Callable[[Examples], Examples] | None, int]:
        """Return the inputs as they are stored, what makes them those of a model, and the vocabulary."""
        if self.image:
            pixels = columns.take("image", self.image).pixels(self.size)
            return pixels, Pixels.of(pixels[columns.train]), 0
        if self.text:
            tokens = Tokens(self.tokens, self.length, self.vocabulary)
            x, count = tokens.numbered(columns.take("text", self.text).texts(), columns.train)
            return x, wide, count
        names = [name.strip() for name in self.features.split("+") if name.strip()]
        return columns.table(names or [*columns.names]), None, 0

    def _columns(self) -> Columns:
        """Load the data set; return the columns of its training and then of its test examples."""
        splits = self._splits()
        test = self.test or ("test" if "test" in splits and self.split != "test" else "")
        for option, name in (("split", self.split), *([("test", test)] if test else [])):
            if name not in splits:
                known = ", ".join(plain(known, 40) for known in [*splits][:MAX_NAMES])
                raise SettingsError(f"task hf: {self.name} has no split {name!r} ({option}); splits: {known}")
        if test == self.split:
            raise SettingsError(f"task hf: split and test are both {test}; leave test out, or name another")
        parts = {name: splits[name] for name in (self.split, test) if name}
        count = len(parts[self.split])
        if not test:
            return Columns(self.name, parts, ~test_rows(count))
        if parts[test].features != parts[self.split].features:
            raise SettingsError(
                f"task hf: splits {self.split} and {test} of {self.name} have different columns"
            )
        return Columns(self.name, parts, np.arange(count + len(parts[test])) < count)

    def _splits(self) -> dict[str, Dataset]:
        """Return the splits by name; ValueError: there is no such data set, or `datasets` is missing."""
        try:
            import datasets
        except ImportError:
            raise SettingsError(f"task hf: Hugging Face's datasets is not installed; {EXTRA}") from None
        folder = Path(self.name)
        try:
            if folder.is_dir():
                found = datasets.load_from_disk(self.name)
            elif folder.exists() or self.name.startswith((".", "/", "~")) or self.name.count("/") > 1:
                raise SettingsError("there is no such folder")
            elif self.name.isidentifier() and find_spec(
                f"datasets.packaged_modules.{self.name}"
            ):  # `pandas` unpickles whatever lies here
                raise SettingsError("it is a format of files, not a data set")
            else:
                found = datasets.load_dataset(self.name, self.subset or None, revision=self.revision or None)
        except Exception as error:  # of Arrow, of JSON, of HTTP
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            where = "" if folder.exists() else ", which is no folder here,"
            raise SettingsError(f"task hf: {self.name}{where} cannot be loaded: {reason}") from None
        splits = found if isinstance(found, dict) else {str(found.split or "train"): found}
        if empty := [name for name, part in splits.items() if not len(part)]:
            raise SettingsError(f"task hf: split {empty[0]} of {self.name} has no rows")
        return splits
