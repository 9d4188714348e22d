"""Learning tasks: data sets, their partitions among clients, and models."""

from collections.abc import Callable

from flexfl.tasks.data import Examples, FederatedData, PartitionedData
from flexfl.tasks.digits import digits
from flexfl.tasks.models import MODELS, initialise
from flexfl.tasks.partition import PARTITIONS, Partition, PartitionFn
from flexfl.tasks.sizes import SIZES, SizesFn
from flexfl.tasks.source import TaskSource
from flexfl.tasks.synthetic import synthetic
from flexfl.tasks.vision import fashion_mnist, mnist

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
