"""A state as one file in the safetensors format: arrays as tensors, everything else as JSON beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from flexfl.engine.checkpoints.row_file import RowIndex
from strategies.core.state import StateDict

FORMAT = "flexfl checkpoint 1"
HEADER = "flexfl"  # the key of the JSON in the file's metadata
KINDS = "biuf"  # of arrays that are stored as tensors: numbers and truth values
INDEX = ("keys", "versions", "offsets", "lengths", "checksums")


def pack(state: StateDict, rows: Mapping[str, RowIndex]) -> bytes:
    """Return the content of a file.

    Parameters
    ----------
    state
        Arrays and JSON values by name.
    rows
        Where the vectors of each `Rows` are.

    Raises
    ------
    ValueError, TypeError
        A value is neither an array of numbers or texts nor a JSON value.
    """
    tensors: dict[str, NDArray[Any]] = {}
    texts, values = {}, {}
    for name, value in state.items():
        if not isinstance(value, np.ndarray):
            values[name] = value
        elif value.dtype.kind in KINDS:
            tensors[f"array.{name}"] = np.ascontiguousarray(value).reshape(value.shape)
        elif value.dtype.kind == "U":
            texts[name] = value.tolist()
        else:
            raise ValueError(f"{name} is an array of type {value.dtype}")
    for name, index in rows.items():
        for part in INDEX:
            tensors[f"rows.{name}.{part}"] = getattr(index, part)
    header = {
        "format": FORMAT,
        "values": values,
        "texts": texts,
        "rows": {name: index.dtype for name, index in rows.items()},
    }
    data: bytes = save(tensors, {HEADER: json.dumps(header, default=_plain)})
    return data


def unpack(data: bytes) -> tuple[StateDict, dict[str, RowIndex]]:
    """Return what `pack` was given.

    Raises
    ------
    ValueError
        The file is something else.
    """
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][HEADER])
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}, this program reads {FORMAT!r}")
        state: StateDict = dict(header["values"])
        state |= {name: np.array(texts, np.str_) for name, texts in header["texts"].items()}
        rows = {
            name: RowIndex(**{part: tensors.pop(f"rows.{name}.{part}") for part in INDEX}, dtype=dtype)
            for name, dtype in header["rows"].items()
        }
        return state | {name.removeprefix("array."): array for name, array in tensors.items()}, rows
    except (SafetensorError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no checkpoint: {type(error).__name__}: {error}") from None


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is neither an array nor a JSON value")
