"""What a strategy has to remember between two rounds, so that an interrupted training can be resumed.

A state is a flat dictionary of arrays and JSON values: it can be written without pickle. The names of nested
objects are joined by dots, as in `roster.member`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

StateDict = dict[str, Any]


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
                state |= {f"{key}.{inner}": part for inner, part in value.state_dict().items()}
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
                value.load_state_dict(
                    {k.removeprefix(f"{key}."): part for k, part in state.items() if k.startswith(f"{key}.")}
                )
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


def take(state: StateDict, key: str) -> Any:
    """Return one entry of a state; a missing one is refused by its name."""
    if key not in state:
        raise ValueError(f"the state has no {key!r}: it was saved by another strategy, or is incomplete")
    return state[key]
