"""The task of a client in a round, in Python and as the scalars that Flower carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from flexfl.contract.rule import SGD

Scalar = bool | bytes | float | int | str


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What the server asks of a client in a round.

    On the wire it is Flower's `FitIns.config`: the field names in kebab-case. Fields that are None or zero
    where that is the default are not sent, so that plain SGD needs no client of this project.

    Attributes
    ----------
    round
        Counted from 1.
    learning_rate
        eta of the local steps.
    batch_size
        Examples per step; 0: the client's whole set.
    model_arrays
        How many of the arrays sent are weights, one per tensor; the others are the method's. 0: all of them.
    local_steps
        E, the steps of a complete client; 0 where `local_epochs` says how many.
    local_epochs
        Passes over the client's data, in place of `local_steps`.
    rule
        Name of the rule of the local steps, see `flexfl.contract.Rule`.
    last_accepted
        Last round in which the server accepted this client, 0 for never; None where the rule keeps no state.
    farewell
        Whether the client leaves: it does not train but sends the state that it keeps for the method.
    own
        The method's own scalars, such as mu; their names are the keys on the wire.
    """

    round: int
    learning_rate: float
    batch_size: int
    model_arrays: int = 0
    local_steps: int = 0
    local_epochs: int = 0
    rule: str = SGD.name
    last_accepted: int | None = None
    farewell: bool = False
    own: Mapping[str, Scalar] = field(default_factory=dict)

    def planned_steps(self, num_examples: int) -> int:
        """E_k, the local steps of a complete client with this many examples."""
        return planned_steps(self.local_steps, self.local_epochs, self.batch_size, num_examples)

    @property
    def common(self) -> tuple[Any, ...]:
        """What clients that train together have in common: all but the rate and `last_accepted`."""
        amount = (self.batch_size, self.local_steps, self.local_epochs)
        return (self.round, *amount, self.rule, self.farewell, *self.own.items())

    def to_wire(self) -> dict[str, Scalar]:
        """Return the scalars to send."""
        values = {key: getattr(self, name) for key, (name, _) in _FIELDS.items()}
        sent = {key: value for key, value in values.items() if value != _FIELDS[key][1]}
        return sent | dict(self.own)

    @classmethod
    def from_wire(cls, config: Mapping[str, Any]) -> FitConfig:
        """Read the scalars of a task.

        Raises
        ------
        ValueError
            One that every task has is missing or is no number.
        """
        values: dict[str, Any] = {}
        own: dict[str, Scalar] = {}
        for key, value in config.items():
            if key in _FIELDS:
                values[_FIELDS[key][0]] = value
            else:
                own[key] = value
        for name, kind in _NUMBERS.items():
            key = name.replace("_", "-")
            if name not in values and name in _NEEDED:
                raise ValueError(f"the task has no {key!r}; the server's strategy has to send it")
            if name in values and not isinstance(values[name], kind):
                raise ValueError(f"the task has {key} {values[name]!r}, which is not a number")
        if not (values.get("local_steps") or values.get("local_epochs")):
            raise ValueError("the task has neither 'local-steps' nor 'local-epochs'")
        return cls(**values, own=own)


def planned_steps(local_steps: int, local_epochs: int, batch_size: int, num_examples: int) -> int:
    """E_k: `local_steps`, or the batches of `local_epochs` passes over a client's examples.

    Parameters
    ----------
    local_steps
        E where all clients are asked for as many.
    local_epochs
        Passes over the data; 0: `local_steps` counts.
    batch_size
        Examples per step; 0: all of them.
    num_examples
        n_k.
    """
    if not local_epochs:
        return local_steps
    return local_epochs * (-(-num_examples // batch_size) if batch_size else 1)


# Key on the wire -> name and default of each field that is sent under its own name.
_FIELDS: dict[str, tuple[str, Any]] = {
    f.name.replace("_", "-"): (f.name, f.default) for f in fields(FitConfig) if f.name != "own"
}
_NUMBERS: dict[str, Any] = {
    "round": int,
    "learning_rate": int | float,
    "batch_size": int,
    "model_arrays": int,
    "local_steps": int,
    "local_epochs": int,
    "last_accepted": int,
}
_NEEDED = ("round", "learning_rate", "batch_size")
