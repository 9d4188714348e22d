"""Image data sets: scikit-learn's digits, and those that torchvision reads, downloads and checks."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked
from fedtide.base.download import obtaining
from fedtide.base.errors import SettingsError
from fedtide.base.preprocessing import Channels, Preprocessing
from fedtide.tasks.data import TEST_SHARE, Examples
from fedtide.tasks.dataset import Dataset, DatasetTask, DividedTask

if TYPE_CHECKING:
    from torch import Tensor

Split = Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"]
EMNIST_CLASSES: dict[Split, int] = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26}  # others: 10
DIGITS = Path("datasets", "data", "digits.csv.gz")  # in scikit-learn's folder: 64 pixels and the digit
BLOCK = 10_000  # images whose pixels are counted at a time
PADDING = 4  # pixels

Augment = Literal["none", "crop", "flip", "crop+flip"]


@dataclass(frozen=True)
class Pixels(Channels):
    """Standardises pixels, as shares of what their type can hold, by mean and deviation of a channel."""

    @classmethod
    def of(cls, pixels: NDArray[np.unsignedinteger]) -> Pixels:
        """Determine both from images of shape (n, C, H, W)."""
        levels = int(np.iinfo(pixels.dtype).max) + 1
        values = np.arange(levels) / (levels - 1)
        mean, deviation = [], []
        for channel in range(pixels.shape[1]):
            counts = np.zeros(levels)
            for start in range(0, len(pixels), BLOCK):
                counts += np.bincount(pixels[start : start + BLOCK, channel].ravel(), minlength=levels)
            shares = counts / counts.sum()
            mean.append(float(shares @ values))
            deviation.append(float(np.sqrt(shares @ (values - mean[-1]) ** 2)) or 1.0)
        return cls(tuple(mean), tuple(deviation))

    @property
    def black(self) -> tuple[float, ...]:
        """A pixel of 0, standardised, in each channel."""
        return tuple(-m / s for m, s in zip(self.mean, self.deviation, strict=True))

    def __call__(self, stored: Examples) -> Examples:
        """Return images, shape (n, C, H, W), as models get them, in one copy; and the same targets."""
        pixels, targets = stored
        x = pixels.astype(np.float32)
        x /= np.iinfo(pixels.dtype).max
        self.standardise(x)
        return x, targets


@dataclass(frozen=True)
class Augmentation:
    """Which changes are made, each image anew whenever it is used.

    `crop` pads images by four pixels of the value `black`, one for each channel, on each side, and cuts them
    back to their size anywhere; `flip` mirrors every other image.
    """

    crop: bool
    flip: bool
    black: tuple[float, ...]

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw a change for each of so many images; the first do not depend on how many follow."""
        places = (2 * PADDING + 1) ** 2
        return rng.integers(2 * places, size=count)

    def apply(self, images: Tensor, changes: Tensor) -> Tensor:
        """Return changed images, for images of shape (n, C, H, W) and what `draw` returned."""
        import torch

        n, channels, height, width = images.shape
        places = 2 * PADDING + 1
        rows, columns = torch.arange(height).expand(n, -1), torch.arange(width).expand(n, -1)
        rows, columns, changes = rows.to(images.device), columns.to(images.device), changes.to(images.device)
        if self.flip:
            mirrored = (changes % 2 == 1)[:, None]
            columns = torch.where(mirrored, width - 1 - columns, columns)
        if self.crop:
            images = self._padded(images)
            rows = rows + (changes // 2 % places)[:, None]
            columns = columns + (changes // (2 * places))[:, None]
        which = torch.arange(n, device=images.device)[:, None, None, None]
        channel = torch.arange(channels, device=images.device)[None, :, None, None]
        return images[which, channel, rows[:, None, :, None], columns[:, None, None, :]]

    def _padded(self, images: Tensor) -> Tensor:
        n, channels, height, width = images.shape
        black = images.new_tensor(self.black).view(1, channels, 1, 1)
        padded = black.expand(n, -1, height + 2 * PADDING, width + 2 * PADDING).clone()
        padded[..., PADDING : PADDING + height, PADDING : PADDING + width] = images
        return padded


def augmentation(text: Augment, black: tuple[float, ...]) -> Augmentation | None:
    """Return what an `Augment` names; None for ``none``."""
    return None if text == "none" else Augmentation("crop" in text, "flip" in text, black)


@dataclass(frozen=True, kw_only=True)
class ImageTask(DividedTask, Checked):
    """A data set of images; what is missing from its directory is downloaded into it.

    Attributes
    ----------
    data_dir
        Directory of the data, in torchvision's layout.
    normalize
        Standardise the pixels with mean and standard deviation of the training images; otherwise they are
        scaled to 0..1.
    augment
        Changes of training images, drawn anew whenever one is used: `crop` pads by 4 pixels and cuts out the
        old size, `flip` mirrors half of them.
    """

    data_dir: str = "data"
    normalize: bool = True
    augment: Augment = "none"

    source: ClassVar[str]
    """Name of its class in torchvision."""
    num_classes: ClassVar[int] = 10
    scale: ClassVar[tuple[tuple[float, ...], tuple[float, ...]] | None] = None
    """Mean and deviation of each channel, of pixels from 0 to 1; None: those of the training images."""
    by_hand: ClassVar[str]
    """How to obtain the files without a download, with `{}` for the directory."""

    def read(self, train: bool, **options: Any) -> Examples:
        """Return pixels of shape (n, C, H, W) and type uint8, and classes, of training or test images."""
        images = self.torchvision()(self.data_dir, train=train, download=True, **options)
        pixels, classes = np.asarray(images.data), np.asarray(images.targets)
        return pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2), classes

    def torchvision(self) -> Any:
        """Return the class that reads the images."""
        from torchvision import datasets  # slow to import, and only these tasks need it

        return getattr(datasets, self.source)

    def dataset(self) -> Dataset:
        with obtaining(
            f"task {self.name}", "images", self.data_dir, self.by_hand.format(Path(self.data_dir))
        ):
            train, test = self.read(train=True), self.read(train=False)
            channels = train[0].shape[1]
            pixels = Pixels((0.0,) * channels, (1.0,) * channels)
            if self.normalize:
                pixels = Pixels(*self.scale) if self.scale else Pixels.of(train[0])
            changes = augmentation(self.augment, pixels.black)
            done = Preprocessing(pixels=pixels)
            split = pixels(train), pixels(test)
            return Dataset(*split, self.num_classes, augmentation=changes, preprocessing=done)


class Mnist(ImageTask):
    """28x28 handwritten digits: 60,000 training and 10,000 test images (MNIST).

    LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998.
    """

    name, source = "mnist", "MNIST"
    scale = ((0.1307,), (0.3081,))
    by_hand = "unpack its four files into '{}/MNIST/raw'"


class FashionMnist(ImageTask):
    """28x28 images of clothing: 60,000 training and 10,000 test images (Fashion-MNIST).

    Xiao et al., Fashion-MNIST: a Novel Image Dataset for Benchmarking, 2017.
    """

    name, source = "fashion-mnist", "FashionMNIST"
    scale = ((0.2860,), (0.3530,))
    by_hand = "unpack its four files into '{}/FashionMNIST/raw'"


@dataclass(frozen=True, kw_only=True)
class Emnist(ImageTask):
    """28x28 handwritten letters and digits, in six selections of 10 to 62 classes (EMNIST).

    Letters stand upright. The download, 560 MB, has all selections. `balanced` has 112,800 training and
    18,800 test images of 47 classes; `bymerge` the same classes, and `byclass` all 62, with 697,932 and
    116,323 images, which take 3 GB of memory; `letters` has 26 classes, `digits` and `mnist` ten.

    Cohen et al., EMNIST: an Extension of MNIST to Handwritten Letters, 2017. Free to use, like NIST's data.
    """

    split: Split = "balanced"

    name, source = "emnist", "EMNIST"
    default_model = "cnn"
    by_hand = (
        "unpack the files of gzip.zip, from www.nist.gov/itl/products-and-services/emnist-dataset, "
        "into '{}/EMNIST/raw'"
    )

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        return EMNIST_CLASSES.get(self.split, 10)

    def read(self, train: bool, **options: Any) -> Examples:
        x, y = super().read(train, split=self.split)
        first = 1 if self.split == "letters" else 0  # the classes of letters are numbered from 1
        return x.swapaxes(2, 3), y - first


class Cifar10(ImageTask):
    """32x32 colour images of ten kinds of objects: 50,000 training and 10,000 test images (CIFAR-10).

    Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. No formal licence.
    """

    name, source = "cifar10", "CIFAR10"
    default_model = "cnn3x3"
    scale = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    by_hand = "unpack https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz in '{}'"


class Cifar100(ImageTask):
    """32x32 colour images of a hundred kinds of objects: 50,000 training and 10,000 test images (CIFAR-100).

    Classes are the fine ones. Source and terms as for CIFAR-10.
    """

    name, source = "cifar100", "CIFAR100"
    default_model = "resnet18"
    num_classes = 100
    scale = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    by_hand = "unpack https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz in '{}'"


class Svhn(ImageTask):
    """32x32 colour images of house numbers' digits: 73,257 training and 26,032 test images (SVHN).

    Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS workshop 2011.
    For non-commercial use only.
    """

    name, source = "svhn", "SVHN"
    default_model = "cnn3x3:hidden=128"
    scale = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
    by_hand = "put train_32x32.mat and test_32x32.mat from ufldl.stanford.edu/housenumbers into '{}'"

    def read(self, train: bool, **options: Any) -> Examples:
        images = self.torchvision()(self.data_dir, split="train" if train else "test", download=True)
        return images.data, images.labels


def digits() -> DatasetTask:
    """8x8 handwritten digits shipped with scikit-learn: 1797 images, no download.

    Pixels are scaled from 0..16 to 0..1; the input shape is (1, 8, 8). A fifth of each class forms
    the test set, which does not depend on the seed of the run.

    Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998.
    """
    return DatasetTask("digits", _load, default_model="logistic")


def load_digits() -> Examples:
    """Return the pixels, from 0 to 16, shape (1797, 64), and the digits, shape (1797,).

    SettingsError: scikit-learn is not installed.
    """
    package = find_spec("sklearn")
    file = Path(package.origin).parent / DIGITS if package is not None and package.origin else DIGITS
    if not file.is_file():  # another version may keep them elsewhere
        try:
            from sklearn import datasets
        except ModuleNotFoundError:
            own = "a device may have data of its own"
            raise SettingsError(
                f"the digits are scikit-learn's, which is not installed here; {own}"
            ) from None
        x, y = datasets.load_digits(return_X_y=True)
        return x, y
    table = np.loadtxt(file, np.uint8, delimiter=",")
    return table[:, :-1], table[:, -1]


def _load() -> Dataset:
    pixels, labels = load_digits()
    x, y = (pixels.reshape(-1, 1, 8, 8) / 16).astype(np.float32), labels.astype(np.int64)
    rng = np.random.default_rng([0, *b"digits"])
    test = np.zeros(len(y), dtype=bool)
    for c in range(10):
        members = np.flatnonzero(y == c)
        test[rng.choice(members, round(TEST_SHARE * len(members)), replace=False)] = True
    return Dataset((x[~test], y[~test]), (x[test], y[test]), num_outputs=10)
