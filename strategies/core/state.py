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
    """Vectors that are read, or made, one at a time when they are used: `read` returns that of a position."""

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
    """Vectors of which most stay the same between two states: only those that changed have to be written."""

    keys: NDArray[np.int64]  # what each vector belongs to, such as a client, shape (R,)
    versions: NDArray[np.int64]  # changes whenever the vector of the key changes, shape (R,)
    vectors: NDArray[Any] | Sequence[NDArray[Any]]  # shape (R, M), or arrays of one dimension and any length


class Stateful:
    """An object whose state can be saved and restored.

    Attributes
    ----------
    saved
        Names of the attributes that are state: arrays, dictionaries of scalars, JSON values, and objects that
        are `Stateful` themselves, or lists of such. A class names its own; those of its bases are added. A
        leading underscore is left out in the state.
    """

    saved: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        inherited = [name for base in cls.__bases__ for name in getattr(base, "saved", ())]
        cls.saved = tuple(dict.fromkeys((*inherited, *cls.saved)))

    def state_dict(self) -> StateDict:
        """Return the state; tables in it are views, to be written before the next round."""
        state: StateDict = {}
        for name in self.saved:
            value, key = getattr(self, name), name.lstrip("_")
            if parts := _parts(key, value):
                for prefix, part in parts.items():
                    state |= nested(prefix, part.state_dict())
            elif isinstance(value, dict):
                state[f"{key}.keys"], state[f"{key}.values"] = np.array([*value]), np.array([*value.values()])
            else:
                state[key] = value.copy() if isinstance(value, np.ndarray | list) else value
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state that `state_dict` returned.

        Raises
        ------
        ValueError
            Something is missing or has another shape: the state belongs to another object.
        """
        for name in self.saved:
            value, key = getattr(self, name), name.lstrip("_")
            if parts := _parts(key, value):
                for prefix, part in parts.items():
                    part.load_state_dict(within(prefix, state))
            elif isinstance(value, dict):
                keys, values = take(state, f"{key}.keys"), take(state, f"{key}.values")
                setattr(self, name, dict(zip(keys.tolist(), values.tolist(), strict=True)))
            elif isinstance(value, np.ndarray):
                setattr(self, name, np.array(take(state, key), value.dtype))
            else:
                part = take(state, key)
                setattr(self, name, part.copy() if isinstance(part, list) else part)


class ByClient(Stateful):
    """Numbers of each client, which grow as clients arrive: the arrays of `saved`, shape (N,) or longer."""

    def extend(self, size: int) -> None:
        """Make room for `size` clients; a new one has 0, or NaN among floating-point numbers."""
        for name in self.saved:
            array = getattr(self, name)
            setattr(self, name, extend(array, size, _unknown(array)))

    def forget(self, client: int) -> None:
        """Make a client one that nothing is known of."""
        for name in self.saved:
            array = getattr(self, name)
            array[client : client + 1] = _unknown(array)


def _unknown(array: NDArray[Any]) -> float:
    """Return what stands for a client that nothing is known of."""
    return np.nan if array.dtype.kind == "f" else 0


def extend(array: NDArray[Any], size: int, fill: float) -> NDArray[Any]:
    """Lengthen an array to at least `size`, ahead of need, so that arrivals one by one stay cheap."""
    if size <= len(array):
        return array
    more = np.full(max(size, 2 * len(array)) - len(array), fill, array.dtype)
    return np.concatenate([array, more])


def _parts(key: str, value: Any) -> dict[str, Stateful]:
    """Return the objects with a state of their own that an attribute holds, by their names in the state."""
    if isinstance(value, list):
        return {f"{key}.part{i}": part for i, part in enumerate(value) if isinstance(part, Stateful)}
    return {key: value} if isinstance(value, Stateful) else {}


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
