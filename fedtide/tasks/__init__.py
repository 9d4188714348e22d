"""Learning tasks: data sets, their partitions among clients, and models."""

from collections.abc import Callable

from fedtide.tasks.augmentation import Augmentation
from fedtide.tasks.criteria import (
    ACCURACY,
    CROSS_ENTROPY,
    BinaryCrossEntropy,
    Criterion,
    CrossEntropy,
    Metric,
    SquaredError,
)
from fedtide.tasks.data import Examples, FederatedData, PartitionedData, are_classes, blank, some_examples
from fedtide.tasks.dataset import Dataset, DatasetTask, TaskSource
from fedtide.tasks.digits import digits
from fedtide.tasks.hub import Hub
from fedtide.tasks.images import Cifar10, Cifar100, Emnist, FashionMnist, Mnist, Svhn
from fedtide.tasks.models import MODELS, initialise
from fedtide.tasks.partition import PARTITIONS, Partition, PartitionFn
from fedtide.tasks.sentiment140 import Sentiment140
from fedtide.tasks.shakespeare import Shakespeare
from fedtide.tasks.sizes import SIZES, SizesFn
from fedtide.tasks.synthetic import Synthetic
from fedtide.tasks.tabular import Tabular

TASKS: dict[str, Callable[..., TaskSource]] = {
    "digits": digits,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "emnist": Emnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "svhn": Svhn,
    "shakespeare": Shakespeare,
    "sentiment140": Sentiment140,
    "synthetic": Synthetic,
    "csv": Tabular,
    "hf": Hub,
}
"""Tasks by name: ``(*, options)``, which do not load anything yet."""

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
    "some_examples",
]
