"""A client's memory as bytes in the safetensors format.

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

FORMAT = "fedtide client memory 2"
_HEADER, _CHECKSUM = "memory", "sha256"  # keys of the metadata


def to_bytes(memory: Memory) -> bytes:
    """Return a memory as bytes; its vectors are numbered, as they may have any names."""
    states = {"committed": memory.committed, "pending": memory.pending}
    names = {version: None if state is None else list(state) for version, state in states.items()}
    header = json.dumps({"format": FORMAT, "tag": memory.tag, "pending-tag": memory.pending_tag, **names})
    arrays = {
        f"{version}-{i}": _plain(np.asarray(value))
        for version, state in states.items()
        for i, value in enumerate((state or {}).values())
    }
    return safetensors.numpy.save(arrays, {_HEADER: header, _CHECKSUM: _checksum(header, arrays)})


def from_bytes(data: bytes) -> Memory:
    """Return the memory that `to_bytes` was given; a ValueError says why the bytes are not one.

    The arrays may be read-only.
    """
    try:
        arrays = safetensors.numpy.load(data)
        size = int.from_bytes(data[:8], "little")  # as safetensors begins, and `load` has checked
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        text, checksum = metadata[_HEADER], metadata[_CHECKSUM]
    except (safetensors.SafetensorError, LookupError) as error:
        raise ValueError(f"it is not in the format {FORMAT!r}: {error}") from None
    if checksum != _checksum(text, arrays):
        raise ValueError("its checksum is wrong")
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']!r} where {FORMAT!r} is expected")

    def state(version: str) -> ClientState:
        return {name: arrays[f"{version}-{i}"] for i, name in enumerate(header[version])}

    pending = None if header["pending"] is None else state("pending")
    return Memory(state("committed"), header["tag"], pending, header["pending-tag"])


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in contiguous memory and this machine's byte order, as safetensors needs it."""
    return np.array(array, array.dtype.newbyteorder("="), order="C", copy=None)


def _checksum(header: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    content = hashlib.sha256(header.encode())
    for name, value in sorted(arrays.items()):
        content.update(f"\n{name} {value.dtype.name} {value.shape}\n".encode())
        content.update(value.tobytes())
    return content.hexdigest()
