"""The attributes of a strategy of Flower, which knows nothing of states, as a state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from flwr.common import Parameters
from flwr.server.strategy import Strategy
from numpy.typing import NDArray

from strategies.core.state import StateDict, Stateful, take

Arrays = dict[str, NDArray[Any]]


class Attributes(Stateful):
    """What a strategy has, and strategies that it wraps: numbers, arrays, and lists and dictionaries of them.

    Functions and classes are left as they are, and random generators and wrapped strategies are restored in
    place: a resumed run has those that the strategy was made with. Others, which came later, and whatever
    else cannot be saved, are a ValueError.
    """

    def __init__(self, of: Strategy) -> None:
        self.of = of
        self._made = dict(_objects(of, type(of).__name__))

    def state_dict(self) -> StateDict:
        name, arrays = type(self.of).__name__, Arrays()
        for place, value in _objects(self.of, name):
            if not _in_place(value, self._made.get(place)):
                raise ValueError(f"{place} is a {type(value).__name__} that it had not when it was made")
        return {"values": _encoded(self.of, name, arrays), **arrays}

    def load_state_dict(self, state: StateDict) -> None:
        _decoded(take(state, "values"), self.of, state)


def _objects(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield what a resumed run takes over from the strategy that it makes anew, by its places' names."""
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, list | tuple):
        parts = ((f"{name}[{i}]", part) for i, part in enumerate(value))
    elif type(value) is dict:
        parts = ((f"{name}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, Strategy):
        parts = ((f"{name}.{key}", part) for key, part in vars(value).items())
    if isinstance(value, Strategy | np.random.Generator) or callable(value):
        yield name, value
    for place, part in parts:
        yield from _objects(part, place)


def _in_place(value: Any, made: Any) -> bool:
    """Whether a state may leave an object out, as the one that a strategy was made with takes its place."""
    if isinstance(value, np.random.Generator):
        return isinstance(made, type(value)) and type(made.bit_generator) is type(value.bit_generator)
    return type(made) is type(value) if isinstance(value, Strategy) else made is value


def _encoded(value: Any, name: str, arrays: Arrays) -> Any:
    """Return a value as a pair of its kind and JSON, with its arrays apart."""
    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        key = str(len(arrays))
        arrays[key] = np.array(value)
        return ["array" if isinstance(value, np.ndarray) else "number", key]
    if isinstance(value, list | tuple):
        parts = [_encoded(part, f"{name}[{i}]", arrays) for i, part in enumerate(value)]
        return [type(value).__name__, parts] if type(value) in (list, tuple) else _refuse(value, name)
    if type(value) is dict:
        pairs = [
            [_encoded(key, f"a key of {name}", arrays), _encoded(part, f"{name}[{key!r}]", arrays)]
            for key, part in value.items()
        ]
        return ["dict", pairs]
    if isinstance(value, Parameters):
        tensors = [np.frombuffer(tensor, np.uint8) for tensor in value.tensors]
        return ["parameters", [value.tensor_type, _encoded(tensors, name, arrays)]]
    if isinstance(value, np.random.Generator):
        return ["generator", value.bit_generator.state]
    if isinstance(value, Strategy):
        own = {key: _encoded(part, f"{name}.{key}", arrays) for key, part in vars(value).items()}
        return ["object", own]
    if callable(value):
        return ["kept", None]
    return _refuse(value, name)


def _refuse(value: Any, name: str) -> Any:
    raise ValueError(f"{name} is a {type(value).__name__}, which cannot be saved")


def _decoded(encoded: Any, now: Any, state: StateDict) -> Any:
    """Return the value that was encoded; `now` is what the object has in its place."""
    kind, content = encoded
    if kind == "plain":
        return content
    if kind == "array":
        return np.array(take(state, content))
    if kind == "number":
        return take(state, content)[()]
    if kind in ("list", "tuple"):
        before = dict(enumerate(now)) if isinstance(now, list | tuple) else {}
        parts = [_decoded(part, before.get(i), state) for i, part in enumerate(content)]
        return parts if kind == "list" else tuple(parts)
    if kind == "dict":
        old = now if isinstance(now, dict) else {}
        keys = [_decoded(key, None, state) for key, _ in content]
        return {
            key: _decoded(part, old.get(key), state) for key, (_, part) in zip(keys, content, strict=True)
        }
    if kind == "parameters":
        tensor_type, tensors = content
        return Parameters([array.tobytes() for array in _decoded(tensors, None, state)], tensor_type)
    if kind == "generator":
        now.bit_generator.state = content
    if kind == "object":
        for name, part in content.items():
            setattr(now, name, _decoded(part, getattr(now, name, None), state))
    return now
