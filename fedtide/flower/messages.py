"""What a strategy and the clients of a Flower app say to each other, in Flower's records.

The app's own records are those of Flower's FedAvg: arrays under the app's names, a configuration, metrics.
What is a method's own lies beside them, in records called `fedtide`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from strategies import FlatParameters, Layout
from strategies.core.parameters import FloatVector

OWN = "fedtide"  # the ConfigRecord with a method's scalars; in a reply, what the client has done
OWN_ARRAYS = "fedtide.arrays"  # the ArrayRecord with a method's vectors
LIMIT = "step-limit"  # in a task: how many steps count, if that is not the app's affair
BUFFER_NAMES = "buffers"  # in a task: see `NamedArrays.buffers`
RATES = ("lr", "learning-rate", "learning_rate")  # where apps have the clients' rate in their configuration

BUFFERS = ("running_mean", "running_var")  # of the layers in PyTorch that keep any


@dataclass(frozen=True)
class NamedArrays:
    """Which of an app's arrays are weights, which are buffers, and which are neither.

    Attributes
    ----------
    dtypes
        Type of each array, by name, in the app's order.
    order
        Names of the floating-point arrays as they lie in the vector: weights first, buffers after them.
    layout
        Of that vector.
    constants
        All other arrays, such as BatchNorm's counter of batches: they are sent and never averaged.
    """

    dtypes: Mapping[str, np.dtype[Any]]
    order: tuple[str, ...]
    layout: Layout
    constants: Mapping[str, Array]

    @classmethod
    def of(cls, record: ArrayRecord, buffers: Collection[str] = ()) -> NamedArrays:
        """Sort an app's arrays; the name of a buffer, or its end, is one of `buffers` or of BUFFERS.

        SettingsError: no weights are left, some are not finite or complex, or one of `buffers` is the name of
        none.
        """
        arrays = {key: array.numpy() for key, array in record.items()}
        if odd := [key for key, array in arrays.items() if array.dtype.kind == "c"]:
            raise SettingsError(
                f"array {odd[0]} has complex numbers, which would not be averaged: keep a weight as pairs of "
                "real numbers, on which forward calls torch.view_as_complex, and a constant in a buffer with "
                "persistent=False"
            )
        floating = [key for key, array in arrays.items() if array.dtype.kind == "f"]
        named = [key for key in floating if _is_one_of(key, (*buffers, *BUFFERS))]
        if odd := [key for key in floating if key not in named and not np.isfinite(arrays[key]).all()]:
            raise SettingsError(
                f"array {odd[0]} has numbers that are not finite; if it is no weight, buffers=[{odd[0]!r}]"
            )
        if unknown := [name for name in buffers if not any(_is_one_of(key, (name,)) for key in named)]:
            raise SettingsError(
                f"buffers: no floating-point array is called {unknown[0]!r}; there are {floating}"
            )
        order = (*(key for key in floating if key not in named), *named)
        if len(order) == len(named):
            raise SettingsError(
                f"the initial arrays, {[*arrays]}, have no weights: floating-point arrays and no buffers; "
                "models without any, such as trees, need a strategy of Flower's, such as FedXgbBagging"
            )
        layout = Layout.of([arrays[key] for key in order], len(named))
        constants = {key: record[key] for key in arrays if key not in floating}
        return cls({key: array.dtype for key, array in arrays.items()}, order, layout, constants)

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers."""
        return self.order[len(self.order) - self.layout.num_buffers :]

    def vector(self, record: ArrayRecord) -> FloatVector:
        """Return the floating-point arrays of a record as one vector; ValueError: it has others."""
        if record.keys() != self.dtypes.keys():
            missing, more = self.dtypes.keys() - record.keys(), record.keys() - self.dtypes.keys()
            raise ValueError(f"arrays are missing, {sorted(missing)}, or not known, {sorted(more)}")
        return self._flat(record, self.order, self.layout)

    def buffer_vector(self, record: ArrayRecord) -> FloatVector:
        """Return the buffers of a record that has nothing else; ValueError: it has others."""
        if {*record} != {*self.buffers}:
            raise ValueError(f"arrays {sorted(record)} where {sorted(self.buffers)} are expected")
        return self._flat(record, self.buffers, self.layout.buffers)

    @staticmethod
    def _flat(record: ArrayRecord, order: Sequence[str], layout: Layout) -> FloatVector:
        arrays = {key: record[key].numpy() for key in order}
        if wrong := [key for key, array in arrays.items() if array.dtype.kind != "f"]:
            raise ValueError(f"array {wrong[0]} is of type {arrays[wrong[0]].dtype}")
        return layout.flatten([*arrays.values()])

    def parameters(self, record: ArrayRecord) -> FlatParameters:
        """Return a record as methods know it."""
        return FlatParameters(self.vector(record), self.layout)

    def record(self, vector: FloatVector) -> ArrayRecord:
        """Return a vector as a record, under the app's names and in its order and types."""
        parts = dict(zip(self.order, self.layout.split(vector), strict=True))
        arrays = {
            key: self.constants[key] if key in self.constants else Array(parts[key].astype(dtype, copy=False))
            for key, dtype in self.dtypes.items()
        }
        return ArrayRecord(arrays)


def app_record(content: RecordDict) -> ArrayRecord:
    """Return the app's arrays in a message or a reply; ValueError: there are none, or several records."""
    records = [record for key, record in content.array_records.items() if key != OWN_ARRAYS]
    if len(records) != 1:
        raise ValueError(f"{len(records)} ArrayRecords where one is expected")
    return records[0]


def own_vectors(content: RecordDict) -> list[NDArray[Any]]:
    """Return the method's own arrays in a message or a reply."""
    record = content.array_records.get(OWN_ARRAYS, ArrayRecord())
    return [record[str(i)].numpy() for i in range(len(record))]


def own_record(arrays: Sequence[NDArray[Any]]) -> ArrayRecord:
    """Return a method's own arrays as a record."""
    return ArrayRecord({str(i): Array(np.asarray(array)) for i, array in enumerate(arrays)})


def with_the_same_metrics(contents: Sequence[RecordDict]) -> list[RecordDict]:
    """Return records of only the metrics that all have alike, as means of others would count some as 0."""
    records = [next(iter(content.metric_records.values())) for content in contents]

    def kinds(record: MetricRecord) -> set[tuple[str, int]]:
        return {(key, len(value) if isinstance(value, list) else -1) for key, value in record.items()}

    common = set.intersection(*map(kinds, records)) if records else set()
    keys = {key for key, _ in common}
    return [RecordDict({"metrics": MetricRecord({k: v for k, v in r.items() if k in keys})}) for r in records]


def _is_one_of(key: str, names: Collection[str]) -> bool:
    """Whether an array, such as `bn1.running_mean`, has one of these names, or ends in it."""
    return any(key == name or key.endswith(f".{name}") for name in names)
