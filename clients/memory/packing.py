"""A client's memory as named arrays, and as bytes in the safetensors format.

The bytes hold the arrays as they are, uncompressed, so that reading them takes no more memory than they do;
nothing is unpickled. Their metadata hold the names and tags, and a checksum: bytes that are torn or changed
are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from clients.memory.handshake import ClientState, Memory

FORMAT = "flexfl client memory 2"
_HEADER, _CHECKSUM = "memory", "sha256"  # keys of the metadata

Arrays = Mapping[str, NDArray[Any]]


def to_bytes(memory: Memory) -> bytes:
    """Return a memory as bytes."""
    header, arrays = _split(memory)
    return safetensors.numpy.save(arrays, {_HEADER: header, _CHECKSUM: _checksum(header, arrays)})


def from_bytes(data: bytes) -> Memory:
    """Return the memory that `to_bytes` was given; its arrays may be read-only.

    Raises
    ------
    ValueError
        The bytes are something else, or were changed.
    """
    try:
        arrays = safetensors.numpy.load(data)
        size = int.from_bytes(data[:8], "little")  # as safetensors begins, and `load` has checked
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        header, checksum = metadata[_HEADER], metadata[_CHECKSUM]
    except (safetensors.SafetensorError, LookupError) as error:
        raise ValueError(f"it is not in the format {FORMAT!r}: {error}") from None
    if checksum != _checksum(header, arrays):
        raise ValueError("its checksum is wrong")
    return _join(header, arrays)


def pack(memory: Memory) -> dict[str, NDArray[Any]]:
    """Return a memory as arrays: the numbered vectors, and a header with their names and the tags."""
    header, arrays = _split(memory)
    return {_HEADER: np.frombuffer(header.encode(), np.uint8), **arrays}


def unpack(arrays: Arrays) -> Memory:
    """Return the memory that `pack` was given.

    Raises
    ------
    ValueError
        The arrays are something else.
    """
    if _HEADER not in arrays:
        raise ValueError(f"it is not in the format {FORMAT!r}: it has no header")
    return _join(arrays[_HEADER].tobytes(), arrays)


def _split(memory: Memory) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return a memory's header, as JSON, and its vectors, which are numbered as they may have any names."""
    header = {
        "format": FORMAT,
        "tag": memory.tag,
        "pending-tag": memory.pending_tag,
        "committed": list(memory.committed),
        "pending": None if memory.pending is None else list(memory.pending),
    }
    states = {"committed": memory.committed, "pending": memory.pending or {}}
    arrays = {
        f"{version}-{i}": _plain(np.asarray(value))
        for version, state in states.items()
        for i, value in enumerate(state.values())
    }
    return json.dumps(header), arrays


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in contiguous memory and this machine's byte order, as safetensors needs it."""
    return np.array(array, array.dtype.newbyteorder("="), order="C", copy=None)


def _join(text: str | bytes, arrays: Arrays) -> Memory:
    """Return the memory that `_split` was given."""
    try:
        header = json.loads(text)
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r} where {FORMAT!r} is expected")

        def state(version: str) -> ClientState:
            return {str(name): arrays[f"{version}-{i}"] for i, name in enumerate(header[version])}

        pending = None if header["pending"] is None else state("pending")
        return Memory(state("committed"), int(header["tag"]), pending, int(header["pending-tag"]))
    except (LookupError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"its header is incomplete: {type(error).__name__}: {error}") from None


def _checksum(header: str, arrays: Arrays) -> str:
    """Return the SHA-256 of a memory's content."""
    content = hashlib.sha256(header.encode())
    for name, value in sorted(arrays.items()):
        content.update(f"\n{name} {value.dtype.name} {value.shape}\n".encode())
        content.update(value.tobytes())
    return content.hexdigest()
