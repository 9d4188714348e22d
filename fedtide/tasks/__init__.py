"""Learning tasks: data sets, their partitions among clients, and models."""

from collections.abc import Callable

from fedtide.tasks.arrays import Task
from fedtide.tasks.client_files import Leaf, NpzFiles
from fedtide.tasks.criteria import (
    ACCURACY,
    CROSS_ENTROPY,
    BinaryCrossEntropy,
    Criterion,
    CrossEntropy,
    Metric,
    SquaredError,
)
from fedtide.tasks.data import Examples, FederatedData, PartitionedData, are_classes, some_examples
from fedtide.tasks.dataset import Dataset, DatasetTask, TaskSource
from fedtide.tasks.foreign_partitions import (
    flwr_dirichlet,
    flwr_linear,
    flwr_pathological,
    flwr_shard,
    flwr_square,
    indices,
)
from fedtide.tasks.hub import Hub
from fedtide.tasks.image_folder import ImageFolder
from fedtide.tasks.images import Augmentation, Cifar10, Cifar100, Emnist, FashionMnist, Mnist, Svhn, digits
from fedtide.tasks.language import TextFiles
from fedtide.tasks.models import MODELS, RATE, RATES, initialise
from fedtide.tasks.partition import Partition, classes, dirichlet, iid, label, similarity
from fedtide.tasks.shakespeare import Shakespeare
from fedtide.tasks.sizes import SIZES
from fedtide.tasks.synthetic import Synthetic
from fedtide.tasks.tables import Tabular
from fedtide.tasks.texts import Sentiment140

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
    "npz": NpzFiles,
    "leaf": Leaf,
    "folder": ImageFolder,
    "text": TextFiles,
    "hf": Hub,
}
"""Tasks by name: ``(*, options)``, which do not load anything yet."""

PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "classes": classes,
    "label": label,
    "dirichlet": dirichlet,
    "similarity": similarity,
    "indices": indices,
    "flwr-dirichlet": flwr_dirichlet,
    "flwr-pathological": flwr_pathological,
    "flwr-shard": flwr_shard,
    "flwr-linear": flwr_linear,
    "flwr-square": flwr_square,
}
"""Partitions by name: ``(labels, sizes, rng, *, options)``."""

__all__ = [
    "ACCURACY",
    "CROSS_ENTROPY",
    "MODELS",
    "PARTITIONS",
    "RATE",
    "RATES",
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
    "PartitionedData",
    "SquaredError",
    "Task",
    "TaskSource",
    "are_classes",
    "initialise",
    "some_examples",
]
