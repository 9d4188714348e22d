"""Learning tasks: data sets, their partitions among clients, and models."""

from collections.abc import Callable

from flexfl.tasks.augmentation import Augmentation
from flexfl.tasks.cifar import cifar10, cifar100
from flexfl.tasks.criteria import (
    ACCURACY,
    CROSS_ENTROPY,
    BinaryCrossEntropy,
    Criterion,
    CrossEntropy,
    Metric,
    SquaredError,
)
from flexfl.tasks.data import Examples, FederatedData, PartitionedData, are_classes, blank
from flexfl.tasks.dataset import Dataset, DatasetTask
from flexfl.tasks.digits import digits
from flexfl.tasks.models import MODELS, initialise
from flexfl.tasks.partition import PARTITIONS
from flexfl.tasks.partition_base import Partition, PartitionFn
from flexfl.tasks.sentiment140 import sentiment140
from flexfl.tasks.shakespeare import shakespeare
from flexfl.tasks.sizes import SIZES, SizesFn
from flexfl.tasks.source import TaskSource
from flexfl.tasks.synthetic import synthetic
from flexfl.tasks.tabular import tabular
from flexfl.tasks.vision import emnist, fashion_mnist, mnist, svhn

TASKS: dict[str, Callable[..., TaskSource]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "emnist": emnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "shakespeare": shakespeare,
    "sentiment140": sentiment140,
    "synthetic": synthetic,
    "csv": tabular,
}
"""Tasks by name: ``(*, options)``."""

__all__ = [
    "ACCURACY",
    "CROSS_ENTROPY",
    "MODELS",
    "PARTITIONS",
    "SIZES",
    "TASKS",
    "Augmentation",
    "BinaryCrossEntropy",
    "Criterion",
    "CrossEntropy",
    "Dataset",
    "DatasetTask",
    "Examples",
    "FederatedData",
    "Metric",
    "Partition",
    "PartitionFn",
    "PartitionedData",
    "SizesFn",
    "SquaredError",
    "TaskSource",
    "are_classes",
    "blank",
    "initialise",
]
