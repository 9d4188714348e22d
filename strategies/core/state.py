"""What a strategy has to remember between two rounds, so that an interrupted training can be resumed.

A state is a flat dictionary of arrays, JSON values and `Rows`: it can be written without pickle. The names of
nested objects are joined by dots, as in `roster.member`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

StateDict = dict[str, Any]


class Vectors(Sequence[NDArray[Any]]):
    """Vectors that are read, or made, one at a time when they are used.

    Parameters
    ----------
    count
        How many.
    read
        Returns one, given its position.
    """

    def __init__(self, count: int, read: Callable[[int], NDArray[Any]]) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, position: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, position: slice) -> list[NDArray[Any]]: ...
    def __getitem__(self, position: int | slice) -> NDArray[Any] | list[NDArray[Any]]:
        positions = range(self._count)[position]
        return self._read(positions) if isinstance(positions, int) else [self._read(i) for i in positions]


class Rows(NamedTuple):
    """Vectors of which most stay the same between two states: only those that changed have to be written.

    Attributes
    ----------
    keys
        What each vector belongs to, such as a client, shape (R,).
    versions
        Numbers that are others whenever the vector of a key is another one, shape (R,).
    vectors
        The vectors, shape (R, M), or a sequence of arrays of one dimension and any length.
    """

    keys: NDArray[np.int64]
    versions: NDArray[np.int64]
    vectors: NDArray[Any] | Sequence[NDArray[Any]]


class Stateful:
    """An object whose state can be saved and restored.

    Attributes
    ----------
    saved
        Names of the attributes that are state: arrays, dictionaries of scalars, JSON values, and objects that
        are `Stateful` themselves, or lists of such. A leading underscore is left out in the state.
    """

    saved: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> StateDict:
        """Return the state; tables in it are views, to be written before the next round."""
        state: StateDict = {}
        for name in self.saved:
            value, key = _parts(getattr(self, name)), name.lstrip("_")
            if isinstance(value, Stateful):
                state |= nested(key, value.state_dict())
            elif isinstance(value, dict):
                state[f"{key}.keys"], state[f"{key}.values"] = np.array([*value]), np.array([*value.values()])
            else:
                state[key] = value.copy() if isinstance(value, np.ndarray | list) else value
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from a state that `state_dict` returned.

        Raises
        ------
        ValueError
            Something is missing or has another shape: the state belongs to another object.
        """
        for name in self.saved:
            value, key = _parts(getattr(self, name)), name.lstrip("_")
            if isinstance(value, Stateful):
                value.load_state_dict(within(key, state))
            elif isinstance(value, dict):
                keys, values = take(state, f"{key}.keys"), take(state, f"{key}.values")
                setattr(self, name, dict(zip(keys.tolist(), values.tolist(), strict=True)))
            elif isinstance(value, np.ndarray):
                setattr(self, name, np.array(take(state, key), value.dtype))
            else:
                part = take(state, key)
                setattr(self, name, part.copy() if isinstance(part, list) else part)


class _List(Stateful):
    """The state of a list of objects, each under its position."""

    def __init__(self, parts: list[Stateful]) -> None:
        self.saved = tuple(f"part{i}" for i in range(len(parts)))  # type: ignore[misc]
        for name, part in zip(self.saved, parts, strict=True):
            setattr(self, name, part)


def _parts(value: Any) -> Any:
    """Return a list of `Stateful` objects as one of them, anything else as it is."""
    listed = isinstance(value, list) and value and all(isinstance(part, Stateful) for part in value)
    return _List(value) if listed else value


def nested(name: str, state: StateDict) -> StateDict:
    """Return a state as a part, of this name, of a larger one."""
    return {f"{name}.{key}": part for key, part in state.items()}


def within(name: str, state: StateDict) -> StateDict:
    """Return the part of this name of a larger state."""
    return {key.removeprefix(f"{name}."): part for key, part in state.items() if key.startswith(f"{name}.")}


def take(state: StateDict, key: str) -> Any:
    """Return one entry of a state; a missing one is refused by its name."""
    if key not in state:
        raise ValueError(
            f"the state has no {key!r}: it was saved by another version or another strategy, or is incomplete"
        )
    return state[key]
