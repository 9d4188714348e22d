"""Data sets of the Hugging Face hub, or of a folder that `save_to_disk` has written: `--task hf:NAME,...`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked, Count, CountOrZero
from fedtide.base.errors import SettingsError
from fedtide.base.preprocessing import FIRST, Feature, Texts, TokenKind
from fedtide.base.wording import plain
from fedtide.tasks.data import Examples, FederatedData, PartitionedData, test_rows
from fedtide.tasks.dataset import (
    Groups,
    choose_clients,
    consecutive,
    counted_rows,
    default_partition,
    divided,
    rows_of,
)
from fedtide.tasks.hub_columns import HubColumn
from fedtide.tasks.images import Augment, Pixels, augmentation
from fedtide.tasks.language import METRICS, Blocks, Tokenizer, check_place, federated
from fedtide.tasks.partition import Partition, PartitionFn
from fedtide.tasks.sizes import SizesFn
from fedtide.tasks.tables import MAX_NAMES, Kind, Table
from fedtide.tasks.texts import Tokens, wide

if TYPE_CHECKING:
    from datasets import Dataset

EXTRA = "pip install datasets"


class Inputs(NamedTuple):
    """Inputs as they are stored, and what makes them those of a model."""

    x: NDArray[Any]
    derive: Callable[[Examples], Examples] | None = None
    vocabulary: int = 0  # of texts
    features: tuple[Feature, ...] = ()  # of a table


@dataclass(frozen=True, kw_only=True)
class Hub(Checked):
    """Data set of the Hugging Face hub, or in a folder (`save_to_disk`): images, texts or tables.

    A column has images, or texts, or several have features, and another what is predicted. Features are
    numbers, which are standardised over the training examples of the clients, vectors of numbers, and texts,
    classes and truth values, which become a feature of 0 or 1 for each of their values. `client` names the
    column that says whose example it is; of its values, the seed draws as many as there are clients. A data
    set of the hub is loaded into Hugging Face's own cache, and may change: see `revision`. It needs Hugging
    Face's datasets.

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
        Columns of a table, with `+` between them; default: all but the label, the client, the group and
        the index of pandas.
    label
        The column to predict.
    kind
        `classification`, where the label's values are classes, in their order; or `regression`, where they
        are numbers, and the mean absolute error is reported in their unit.
    client
        The column that says whose example it is. Without one, the rows are divided by a partition.
    group
        The column that says which group of clients each client belongs to, such as a ward; no feature.
    size
        Height and width to which images are resized; 0: all have the same.
    augment
        Changes of training images, see `--list --task cifar10`.
    tokens
        What a text consists of.
    length
        How many of its first tokens count; shorter texts are padded at the front.
    vocabulary
        Different tokens, the most frequent ones of the clients' training examples, with one for all others
        and one for padding.
    tokenizer
        Folder, or name on the hub, of a language model that predicts the next token of texts, not a label:
        a client's texts are cut into blocks of `length` tokens, which are its examples.
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
    kind: Kind = "classification"
    client: str = ""
    group: str = ""
    size: CountOrZero = 0
    augment: Augment = "none"
    tokens: TokenKind = "words"
    length: Count = 80
    vocabulary: Count = 10_000
    tokenizer: str = ""
    absent: tuple[int, ...] = ()  # clients that never come

    @property
    def default_partition(self) -> str | None:
        """None if a column names the clients."""
        return default_partition(bool(self.client), self.kind == "classification" and not self.tokenizer)

    @property
    def default_model(self) -> str:
        """A small one for such inputs, or the tokenizer's."""
        if self.tokenizer:
            return f"hf-lm:path={self.tokenizer}"
        return "cnn" if self.image else "lstm" if self.text else "logistic"

    @property
    def metrics(self) -> Sequence[str]:
        """What is reported beside the metric of the criterion."""
        return METRICS if self.tokenizer else ()

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        if sum(map(bool, (self.image, self.text, self.features))) > 1:
            raise SettingsError("task hf: set one of image, text and features, not several")
        if partition is None and not self.client:
            raise SettingsError(
                "task hf: name a partition such as iid, or the column with the clients (client=)"
            )
        table = self._table()
        if self.tokenizer:
            return self._language(table, num_clients, partition, sizes, holdout, seed)
        train, names = table.train, list[str]()
        if partition is None:
            parts, names = self._of_owners(table, num_clients, sizes, seed)
            table.counted = counted_rows(train, parts, self.absent)
        groups = self._groups(table)
        targets, target = table.targets("label", self.label, self.kind)
        if partition is not None:
            parts = divided(targets[train], num_clients, partition, sizes, seed)
        x, derive, vocabulary, features = self._inputs(table)
        pixels = derive if isinstance(derive, Pixels) else None
        preprocessing, num_outputs, criterion = table.prepared(target, features, pixels)
        return PartitionedData.divide(
            (x[train], targets[train]),
            (x[~train], targets[~train]),
            *(num_outputs, parts, holdout, seed, criterion, names, derive),
            augmentation=augmentation(self.augment, pixels.black) if pixels else None,
            vocabulary=vocabulary,
            preprocessing=preprocessing,
            client_groups=groups.of_clients(parts, names) if groups else (),
        )

    def _language(
        self,
        table: Table[HubColumn],
        num_clients: int,
        partition: PartitionFn | None,
        sizes: SizesFn,
        holdout: float,
        seed: int,
    ) -> FederatedData:
        """Divide the texts as blocks of tokens; see `federate`."""
        if not self.text:
            raise SettingsError("task hf: name the column with the texts that the tokenizer reads (text=)")
        tokenizer = Tokenizer(self.tokenizer)
        documents = tokenizer.documents(table.take("text", self.text).texts())

        def blocks(rows: NDArray[np.intp]) -> Blocks:
            tokens = [np.empty(0, np.int32), *(documents[row] for row in rows.tolist())]
            return Blocks.cut(np.concatenate(tokens), self.length)

        known, names, groups = np.flatnonzero(table.train), list[str](), self._groups(table)
        if partition is None:
            own, names = self._of_owners(table, num_clients, sizes, seed)
            of_clients = [blocks(known[rows]) for rows in own]
            train, parts = Blocks.joined(of_clients), consecutive(len(own.there) for own in of_clients)
        else:
            train, own = blocks(known), []
            parts = divided(train.tokens, num_clients, partition, sizes, seed)
        test = blocks(np.flatnonzero(~table.train))
        if not (len(train.there) and len(test.there)):
            raise SettingsError(
                f"task hf: the texts in column {self.text!r} are too short to train and test on"
            )
        named = groups.of_clients(own, names) if groups else ()
        return federated(train, test, parts, tokenizer.vocabulary, holdout, seed, names, named)

    def _groups(self, table: Table[HubColumn]) -> Groups | None:
        """Return the groups of clients that a column names, if any."""
        groups = table.groups(self.group)
        if groups and not self.client:
            raise SettingsError(f"task hf: group={self.group} is a group of clients: add client=COLUMN")
        return groups

    def _of_owners(
        self, table: Table[HubColumn], num_clients: int, sizes: SizesFn, seed: int
    ) -> tuple[Partition, list[str]]:
        """Return the training rows and the names of clients that are drawn from the values of the column."""
        values, owners = table.take("client", self.client).distinct()
        there, owners = np.unique(owners[table.train], return_inverse=True)
        what = f"values of column {self.client!r} in split {self.split}"
        chosen = choose_clients(f"hf:{self.name}", what, range(len(there)), num_clients, sizes, seed)
        rows = rows_of(owners, len(there))
        return [rows[client] for client in chosen], [str(values[there[client]]).strip() for client in chosen]

    def _inputs(self, table: Table[HubColumn]) -> Inputs:
        if self.image:
            pixels = table.take("image", self.image).pixels(self.size)
            return Inputs(pixels, Pixels.of(pixels[table.counted]))
        if self.text:
            texts = table.take("text", self.text).texts()
            tokens = Tokens.of(self.tokens, texts, self.length)
            known = tokens.frequent(table.counted, self.vocabulary)
            done = Texts(self.text, self.tokens, self.length, tuple(tokens.names[k] for k in known))
            # Boards read their texts from CSV files, in which spaces at the ends do not count.
            is_told = self.tokens == "words" or all(text == text.strip() for text in texts)
            return Inputs(tokens.numbered(known), wide, FIRST + len(known), (done,) if is_told else ())
        columns = table.take_all("features", self.features) or [*table.rest().values()]
        x, features = table.features(columns)
        return Inputs(x, features=features)

    def _table(self) -> Table[HubColumn]:
        """Load the data set; return the rows of its training and then of its test split."""
        splits = self._splits()
        test = self.test or ("test" if "test" in splits and self.split != "test" else "")
        for option, name in (("split", self.split), *([("test", test)] if test else [])):
            if name not in splits:
                known = ", ".join(plain(known, 40) for known in [*splits][:MAX_NAMES])
                raise SettingsError(f"task hf: {self.name} has no split {name!r} ({option}); splits: {known}")
        if test == self.split:
            raise SettingsError(f"task hf: split and test are both {test}; leave test out, or name another")
        parts = {name: splits[name] for name in (self.split, test) if name}
        first, count = parts[self.split], len(parts[self.split])
        if test and parts[test].features != first.features:
            raise SettingsError(
                f"task hf: splits {self.split} and {test} of {self.name} have different columns"
            )
        what = f"task hf: {self.name}"
        columns = {name: HubColumn(f"{what}: column {name!r}", name, parts) for name in first.features}
        train = np.arange(count + len(parts[test])) < count if test else ~test_rows(count)
        return Table(what, columns, train)

    def _splits(self) -> dict[str, Dataset]:
        """Return the splits by name; ValueError: there is no such data set, or `datasets` is missing."""
        try:
            import datasets
        except ImportError:
            raise SettingsError(f"task hf: Hugging Face's datasets is not installed; {EXTRA}") from None
        folder = Path(self.name)
        try:
            check_place(self.name)
            if folder.is_dir():
                found = datasets.load_from_disk(self.name)
            elif folder.exists():
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
