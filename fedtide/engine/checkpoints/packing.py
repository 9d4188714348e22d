"""A state as bytes in NumPy's .npz format, without pickle: arrays, and JSON for everything else."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.state import Rows, StateDict

VALUES = "JSON values"  # the name of all that is not an array
KEYS, VERSIONS = "keys of ", "versions of "  # followed by the name of the `Rows`


def pack(state: StateDict) -> NDArray[np.uint8]:
    """Return a state, of `Rows` their keys and versions only, as bytes.

    ValueError or TypeError: a value is neither an array of numbers or texts nor a JSON value.
    """
    arrays: dict[str, Any] = {}
    values: StateDict = {}
    for name, value in state.items():
        if isinstance(value, Rows):
            arrays[KEYS + name], arrays[VERSIONS + name] = value.keys, value.versions
        elif isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            values[name] = value
    for name, array in arrays.items():
        if array.dtype.kind not in "biufU":
            raise ValueError(f"{name} is an array of type {array.dtype}")
    arrays[VALUES] = np.frombuffer(json.dumps(values, default=_plain).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return np.frombuffer(file.getbuffer(), np.uint8)


def unpack(data: NDArray[np.uint8]) -> StateDict:
    """Return what `pack` was given."""
    with np.load(io.BytesIO(data.data), allow_pickle=False) as file:
        state = {name: file[name] for name in file.files}
    values: StateDict = json.loads(state.pop(VALUES).tobytes())
    return state | values


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is neither an array nor a JSON value")
