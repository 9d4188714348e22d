"""What cells read, for workers on other machines: read here, and sent through Ray's object store."""

from __future__ import annotations

import hashlib
import pickle  # noqa: TID251 - of what this program has pickled itself, as Ray does
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray
from ray.cloudpickle import CloudPickler

from fedtide.config import Settings
from fedtide.plan import Plan

LARGE = 1 << 16  # bytes of an array that is an object of its own


class Shipped(NamedTuple):
    """Data and trace of a cell without their large arrays, these, and hashes of the user's files."""

    pickled: Any
    arrays: Sequence[Any]
    sources: Mapping[str, str]

    def unpack_into(self, plan: Plan) -> None:
        """Give a plan what was shipped; its arrays stay in the object store, one copy for each machine."""
        unpickler = pickle.Unpickler(BytesIO(ray.get(self.pickled)))
        unpickler.persistent_load = ray.get([*self.arrays]).__getitem__  # type: ignore[method-assign]
        plan.data, plan.trace = unpickler.load()
        plan.sources = self.sources


class Shipping:
    """Ships what cells read; what several of them have is read once, and equal arrays are sent once."""

    def __init__(self) -> None:
        self._known: dict[Settings, tuple[Any, Sequence[Any]]] = {}
        self._arrays: dict[bytes, Any] = {}  # by digest

    def ship(self, settings: Settings) -> Shipped:
        """Read the data and the trace of a cell; ValueError: they cannot be read."""
        # The clients' settings, without two that neither data nor trace depend on.
        key = replace(settings.for_clients(), learning_rate=1.0, batch_size=0)
        plan = Plan.of(settings)
        if key not in self._known:
            self._known[key] = self._packed((plan.data, plan.trace))
        return Shipped(*self._known[key], plan.sources)

    def _packed(self, content: Any) -> tuple[Any, Sequence[Any]]:
        arrays: list[Any] = []

        def number(array: NDArray[Any]) -> int:
            arrays.append(self._put(array))
            return len(arrays) - 1

        file = BytesIO()
        _Pickler(file, number).dump(content)
        return ray.put(file.getvalue()), arrays

    def _put(self, array: NDArray[Any]) -> Any:
        """Put an array into the object store unless an equal one is there."""
        digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
        if (known := digest.digest()) not in self._arrays:
            self._arrays[known] = ray.put(array)
        return self._arrays[known]


class _Pickler(CloudPickler):  # type: ignore[misc]
    """Pickles everything but large arrays, for which `number` gives what stands for them."""

    def __init__(self, file: BytesIO, number: Any) -> None:
        super().__init__(file)
        self._number = number

    def persistent_id(self, found: Any) -> int | None:
        if type(found) is np.ndarray and found.nbytes >= LARGE and not found.dtype.hasobject:
            return int(self._number(found))
        return None
