"""Image data sets, which torchvision reads, downloads and checks: MNIST and its relatives, CIFAR and SVHN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Checked
from fedtide.tasks.augmentation import Augment, augmentation
from fedtide.tasks.data import Examples
from fedtide.tasks.dataset import Dataset, DividedTask
from fedtide.tasks.download import obtaining

Scale = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, of pixels from 0 to 1."""

Split = Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"]
EMNIST_CLASSES: dict[Split, int] = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26}  # others: 10


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
    scale: ClassVar[Scale | None] = None
    """How pixels are standardised; None: determined from the training images."""
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
        """Read the images."""
        with obtaining(self.name, "images", self.data_dir, self.by_hand.format(self.data_dir)):
            train, test = self.read(train=True), self.read(train=False)
            channels = train[0].shape[1]
            mean, std = (0.0,) * channels, (1.0,) * channels
            if self.normalize:
                mean, std = self.scale or scale_of(train[0])
            black = tuple(-m / s for m, s in zip(mean, std, strict=True))
            first, second = ((standardised(x, mean, std), y) for x, y in (train, test))
            changes = augmentation(self.augment, black)
            return Dataset(first, second, self.num_classes, augmentation=changes)


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
        """Number of classes of the split."""
        return EMNIST_CLASSES.get(self.split, 10)

    def read(self, train: bool, **options: Any) -> Examples:
        """See `ImageTask.read`."""
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
        """See `ImageTask.read`."""
        images = self.torchvision()(self.data_dir, split="train" if train else "test", download=True)
        return images.data, images.labels


def standardised(
    pixels: NDArray[np.unsignedinteger], mean: tuple[float, ...], std: tuple[float, ...]
) -> NDArray[np.float32]:
    """Return pixels, as shares of what their type can hold, as (pixel - mean) / std of their channel.

    There are no further copies.
    """
    x = pixels.astype(np.float32)
    x /= np.iinfo(pixels.dtype).max
    for channel, (m, s) in enumerate(zip(mean, std, strict=True)):
        x[:, channel] -= m
        x[:, channel] /= s
    return x


def scale_of(pixels: NDArray[np.uint8]) -> Scale:
    """Return mean and standard deviation of all pixels, of images with one channel."""
    counts = np.bincount(pixels.reshape(-1), minlength=256).astype(np.float64)
    values, shares = np.arange(256) / 255, counts / counts.sum()
    mean = float(shares @ values)
    return (mean,), (float(np.sqrt(shares @ (values - mean) ** 2)) or 1.0,)
