"""Images in folders: one for each class, maybe within one for each client, or FedScale's mapping of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked, CountOrZero
from fedtide.base.errors import SettingsError, why
from fedtide.base.images import IMAGES, opened, stacked
from fedtide.base.preprocessing import Preprocessing
from fedtide.base.tables import read_table
from fedtide.tasks.data import FederatedData, PartitionedData, test_rows
from fedtide.tasks.dataset import (
    choose_clients,
    counted_rows,
    default_partition,
    distinct,
    divided,
    rows_of,
)
from fedtide.tasks.images import Augment, Pixels, augmentation
from fedtide.tasks.partition import PartitionFn
from fedtide.tasks.sizes import SizesFn

MAPPING = "client_data_mapping"  # FedScale's folder
COLUMNS = ("client_id", "sample_path", "label_id")  # of its files
TEST = ("test", "val", "validation")  # names of the test split; the first that is there


class Image(NamedTuple):
    """The file of an image, its class, and the client that has it; empty: a partition divides the images."""

    file: Path
    label: str
    client: str


@dataclass(frozen=True, kw_only=True)
class ImageFolder(Checked):
    """Images in folders.

    PATH has a folder for each class, PATH/CLASS/*.png; or one for each client, PATH/CLIENT/CLASS/*.png, and
    of more clients than the run has, the seed draws as many. Folders PATH/train and PATH/test (or val) may
    divide them; otherwise a fifth of the images, always the same, is for testing. If test images belong to
    clients, those of the clients drawn are taken. FedScale's PATH/client_data_mapping/train.csv and test.csv
    (client_id, sample_path, label_id) are read, too. Classes that are all numbers are those numbers, from 0
    on; others are numbered in the order of their names.

    Attributes
    ----------
    path
        The folder.
    size
        Height and width to which images are resized; 0: all have the same.
    normalize
        Standardise the pixels with mean and standard deviation of the training images; otherwise they are
        scaled to 0..1.
    augment
        Changes of training images, see `--list --task cifar10`.
    """

    path: str
    size: CountOrZero = 0
    normalize: bool = True
    augment: Augment = "none"
    absent: tuple[int, ...] = ()  # clients that never come

    default_model: ClassVar[str] = "cnn"

    @property
    def default_partition(self) -> str | None:
        """None if there is a folder for each client."""
        root = Path(self.path)
        train = root / "train" if (root / "train").is_dir() else root
        first = _folders(train)[:1] if train.is_dir() else []  # a folder that is missing is no client's
        owned = (root / MAPPING).is_dir() or any(_folders(folder) for folder in first)
        return default_partition(owned, classes=True)

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        train, test = self._splits()
        numbers = _class_numbers(f"task folder: {self.path}", [*train, *test])
        names: list[str] = []
        clients = np.empty(0, np.intp)
        if train[0].client:
            there, clients = distinct([image.client for image in train])
            what = f"clients in {self.path}"
            chosen = choose_clients("folder", what, range(len(there)), num_clients, sizes, seed)
            names = [there[client] for client in chosen]
            drawn = np.isin(clients, chosen)
            clients = np.searchsorted(chosen, clients[drawn])
            train = [image for image, taken in zip(train, drawn, strict=True) if taken]
            test = [image for image in test if image.client in names] or test
        images = [*train, *test]
        counted = rows = np.arange(len(images)) < len(train) if test else ~test_rows(len(images))
        pixels = self._pixels(images)
        targets = np.array([numbers[image.label] for image in images], np.int64)
        if names:
            parts = rows_of(clients[rows[: len(train)]], num_clients)
            counted = counted_rows(rows, parts, self.absent)
        elif partition is not None:
            parts = divided(targets[rows], num_clients, partition, sizes, seed)
        else:
            raise SettingsError("task folder: name a partition such as dirichlet:alpha=0.5")
        channels = pixels.shape[1]
        scale = Pixels.of(pixels[counted]) if self.normalize else Pixels((0.0,) * channels, (1.0,) * channels)
        return PartitionedData.divide(
            (pixels[rows], targets[rows]),
            (pixels[~rows], targets[~rows]),
            max(numbers.values()) + 1,
            parts,
            holdout,
            seed,
            augmentation=augmentation(self.augment, scale.black),
            client_names=names,
            derive=scale,
            preprocessing=Preprocessing(pixels=scale),
        )

    def _splits(self) -> tuple[list[Image], list[Image]]:
        """Return the training and the test images; of the latter there may be none."""
        root = Path(self.path)
        split = ("train", next((name for name in TEST if (root / name).is_dir()), ""))
        try:
            if (root / MAPPING).is_dir():
                test = next((name for name in TEST if (root / MAPPING / f"{name}.csv").exists()), "")
                train, held = (_mapped(root, name) if name else [] for name in ("train", test))
            elif (root / "train").is_dir():
                train, held = (_listed(root / name) if name else [] for name in split)
            else:
                train, held = _listed(root), []
        except OSError as error:
            where = error.filename or self.path
            raise SettingsError(f"task folder: {where}: {why(error)}") from None
        if not train:
            raise SettingsError(f"task folder: {self.path} has no images in CLASS/ or CLIENT/CLASS/")
        return train, held

    def _pixels(self, images: Sequence[Image]) -> NDArray[np.unsignedinteger]:
        def read() -> Iterator[Any]:
            for image in images:
                try:
                    with opened(image.file) as found:
                        yield found
                except (OSError, ValueError) as error:
                    raise SettingsError(f"task folder: {image.file}: {why(error)}") from None

        def where(row: int) -> str:
            return f"task folder: {images[row].file}"

        return stacked(read(), len(images), self.size, f"task folder: {self.path}", where)


def _listed(folder: Path) -> list[Image]:
    """Return the images of a split: in folders of classes, or of clients and classes."""
    found = []
    if loose := sorted(
        entry for entry in folder.glob("[!.]*") if entry.suffix.lower() in IMAGES and entry.is_file()
    ):
        raise SettingsError(f"task folder: {loose[0]} is not in the folder of a class")
    for outer in _folders(folder):
        for inner in _folders(outer):
            if deeper := _folders(inner):
                where = "images lie in CLASS/ or CLIENT/CLASS/"
                raise SettingsError(f"task folder: {deeper[0]} is one folder too deep: {where}")
            found += [Image(file, inner.name, outer.name) for file in _files(inner)]
        found += [Image(file, outer.name, "") for file in _files(outer)]
    if len({bool(image.client) for image in found}) > 1:
        alone = next(image.file for image in found if not image.client)
        raise SettingsError(
            f"task folder: {alone} lies in the folder of a class, and others in one of a client and a class"
        )
    return found


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")


def _files(folder: Path) -> list[Path]:
    """Return the images of a folder; SettingsError: it has another file."""
    files = sorted(entry for entry in folder.iterdir() if not entry.is_dir() and entry.name[0] != ".")
    if other := [file for file in files if file.suffix.lower() not in IMAGES]:
        raise SettingsError(f"task folder: {other[0]} is not an image; take it out of the folder")
    return files


def _mapped(root: Path, split: str) -> list[Image]:
    """Return the images that one of FedScale's files names, by their path in the folder or in its split."""
    file = root / MAPPING / f"{split}.csv"
    try:
        table = read_table(file)
        if missing := [name for name in COLUMNS if name not in table.names]:
            raise SettingsError(f"it has no column {missing[0]}")
        columns = [table.names.index(name) for name in COLUMNS]
        rows = [[row[column] for column in columns] for _, row in table.rows]
        if outside := [path for _, path, _ in rows if Path(path).is_absolute() or ".." in Path(path).parts]:
            raise SettingsError(f"{outside[0]!r} is not in the folder")
    except ValueError as error:
        raise SettingsError(f"task folder: {file}: {error}") from None
    base = root / split if rows and (root / split / rows[0][1]).exists() else root
    return [Image(base / path, label, client) for client, path, label in rows]


def _class_numbers(where: str, images: Sequence[Image]) -> dict[str, int]:
    """Return the number of each class by its name."""
    names = sorted({image.label for image in images})
    if len(names) < 2:
        raise SettingsError(f"{where} has images of one class, {names[0]}")
    if all(name.isascii() and name.isdigit() and len(name) < 6 for name in names):
        return {name: int(name) for name in names}
    return {name: number for number, name in enumerate(names)}
