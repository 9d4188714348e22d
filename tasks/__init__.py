"""Learning tasks: data sets, how they are divided among clients, and models."""

from collections.abc import Callable

from tasks.data import Examples, FederatedData, PartitionedData
from tasks.digits import digits
from tasks.models import MODELS, initialise
from tasks.partition import PARTITIONS, Partition, PartitionFn
from tasks.sizes import SIZES, SizesFn
from tasks.source import TaskSource
from tasks.synthetic import synthetic
from tasks.vision import fashion_mnist, mnist

TASKS: dict[str, Callable[..., TaskSource]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "synthetic": synthetic,
}
"""Tasks by name: ``(*, options)``."""

__all__ = [
    "MODELS",
    "PARTITIONS",
    "SIZES",
    "TASKS",
    "Examples",
    "FederatedData",
    "Partition",
    "PartitionFn",
    "PartitionedData",
    "SizesFn",
    "TaskSource",
    "initialise",
]
