"""MNIST and Fashion-MNIST, read through torchvision."""

import sys
import zlib
from contextlib import redirect_stdout
from functools import partial

import numpy as np
from numpy.typing import NDArray

from flexfl.tasks.data import Examples
from flexfl.tasks.dataset import Dataset, DatasetTask


def mnist(*, data_dir: str = "data", normalize: bool = True) -> DatasetTask:
    """28x28 handwritten digits: 60,000 training and 10,000 test images (MNIST).

    The input shape is (1, 28, 28). Images missing from the directory are downloaded into it.

    Parameters
    ----------
    data_dir : str
        Directory of the images, in torchvision's layout (``MNIST/raw`` below it).
    normalize : bool
        Standardise the pixels with the data set's mean and standard deviation; otherwise scale them to
        0..1.

    Returns
    -------
    DatasetTask
        The task; its `federate` raises ValueError if the images are missing and cannot be downloaded.

    References
    ----------
    LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998.
    """
    return DatasetTask(
        "mnist", partial(_load, "MNIST", data_dir, *((0.1307, 0.3081) if normalize else (0.0, 1.0)))
    )


def fashion_mnist(*, data_dir: str = "data", normalize: bool = True) -> DatasetTask:
    """28x28 images of clothing: 60,000 training and 10,000 test images (Fashion-MNIST).

    The input shape is (1, 28, 28). Images missing from the directory are downloaded into it.

    Parameters
    ----------
    data_dir : str
        Directory of the images, in torchvision's layout (``FashionMNIST/raw`` below it).
    normalize : bool
        Standardise the pixels with the data set's mean and standard deviation; otherwise scale them to
        0..1.

    Returns
    -------
    DatasetTask
        The task; its `federate` raises ValueError if the images are missing and cannot be downloaded.

    References
    ----------
    Xiao et al., Fashion-MNIST: a Novel Image Dataset for Benchmarking, 2017.
    """
    scale = (0.2860, 0.3530) if normalize else (0.0, 1.0)
    return DatasetTask("fashion-mnist", partial(_load, "FashionMNIST", data_dir, *scale))


def _load(name: str, data_dir: str, mean: float, std: float) -> Dataset:
    from torchvision import datasets  # slow to import, and only these tasks need it

    def read(train: bool) -> Examples:
        images = getattr(datasets, name)(data_dir, train=train, download=True)
        x: NDArray[np.float32] = (images.data.numpy()[:, None].astype(np.float32) / 255 - mean) / std
        return x, images.targets.numpy().astype(np.int64)

    try:
        # Standard output is reserved for the run's results; download progress goes to standard error.
        with redirect_stdout(sys.stderr):
            return Dataset(read(True), read(False), num_outputs=10)
    except (OSError, RuntimeError, AssertionError, ValueError, LookupError, EOFError, zlib.error) as error:
        # Only the first line: torchvision adds one for each mirror that it tried.
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise ValueError(
            f"{name}: cannot read the images from directory '{data_dir}' or download them into it "
            f"({reason}); unpack the four files into '{data_dir}/{name}/raw', or set --data-dir to a "
            f"directory that has them"
        ) from error
