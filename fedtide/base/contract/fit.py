"""A client's task in one round: in Python, and as the scalars that Flower carries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from fedtide.base.contract.rule import SGD

Scalar = bool | bytes | float | int | str
Arrays = list[NDArray[Any]]

# Keys of the scalars that may differ between the clients of a round.
LEARNING_RATE = "learning-rate"
LOCAL_STEPS = "local-steps"
FAREWELL = "farewell"
DEADLINE_SECONDS = "deadline-seconds"
REPLAY = "replay"
COMPLETION = "completion"
RUN = "run"
FROZEN_CHECKSUM = "frozen-checksum"  # of all clients alike
PREPROCESSING = "preprocessing"


class OwnScalars(dict[str, Scalar]):
    """A method's own scalars as a client received them: reading one that was not sent is a ValueError."""

    def __missing__(self, key: str) -> Scalar:
        raise ValueError(f"the task has no {key!r}; do server and client run the same version?")


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What the server asks of a client in one round.

    On the wire it is Flower's `FitIns.config`, with the field names in kebab-case. Fields that have their
    default value are not sent, so any Flower client can take part in plain SGD.

    Attributes
    ----------
    round
        Counted from 1; 0 in an evaluation before the first round.
    learning_rate
        eta of the local steps.
    batch_size
        Examples per step; 0: all examples of the client.
    model_arrays
        How many of the arrays sent are weights, one per tensor; the others are the method's own. 0: all.
    buffer_arrays
        How many of these, the last ones, are buffers, such as running means: training notes them, and no
        method's rule is applied to them.
    frozen_checksum
        `FlatModel.frozen_checksum` of the weights that are not sent, which the client has itself; 0: none.
    local_steps
        E, the steps of a complete client; 0 where `local_epochs` is set.
    local_epochs
        Passes over the client's data, instead of `local_steps`.
    rule
        Name of the rule of the local steps, see `fedtide.base.contract.Rule`.
    last_accepted
        Last round in which the server accepted a reply of this client, 0 for never; None where the rule keeps
        no state.
    farewell
        Whether the client leaves: it does not train but sends the state that it keeps for the method.
    deadline_seconds
        Seconds from now after which the client begins no further step and sends what it has; it does at
        least one. None: it has all the time that it needs.
    replay
        Whether a client of `flwr run` does only what the run's trace says, as in a simulation.
    completion
        Share of the planned steps for which a simulated client is available, 0..1; None: what the trace says
        of the round.
    run
        Flower's number of the run whose memory the client continues to use, as text; empty: this one.
    preprocessing
        What the run's task does to its data, for clients with data of their own: see
        `fedtide.base.preprocessing`; empty: nothing that they need to know.
    own
        The method's own scalars, such as mu, by their names on the wire.
    """

    round: int
    learning_rate: float
    batch_size: int
    model_arrays: int = 0
    buffer_arrays: int = 0
    frozen_checksum: float = 0.0
    local_steps: int = 0
    local_epochs: int = 0
    rule: str = SGD.name
    last_accepted: int | None = None
    farewell: bool = False
    deadline_seconds: float | None = None
    replay: bool = False
    completion: float | None = None
    run: str = ""
    preprocessing: str = ""
    own: Mapping[str, Scalar] = field(default_factory=dict)

    def planned_steps(self, num_examples: int) -> int:
        """E_k, the local steps of a complete client with this many examples."""
        return planned_steps(self.local_steps, self.local_epochs, self.batch_size, num_examples)

    @cached_property
    def common(self) -> tuple[Any, ...]:
        """What clients of one cohort have in common: all that their rule depends on but rates and rounds."""
        amount = (self.batch_size, self.local_steps, self.local_epochs)
        return (*amount, self.rule, self.farewell, *self.own.items())

    def split(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        """Separate the arrays of a message into the weights and the method's own."""
        count = self.model_arrays or max(1, len(arrays))
        if len(arrays) < count:
            raise ValueError(f"the task has {len(arrays)} arrays; the weights alone are {count}")
        return arrays[:count], arrays[count:]

    def to_wire(self) -> dict[str, Scalar]:
        """Return the scalars to send."""
        if self.own and (clash := sorted(_FIELDS.keys() & self.own.keys())):
            raise ValueError(
                f"a method's own scalar cannot be called {clash[0]!r}, as every task has that key"
            )
        fields_ = ((key, getattr(self, name), default) for key, (name, default) in _FIELDS.items())
        return {key: value for key, value, default in fields_ if value != default} | dict(self.own)

    @classmethod
    def from_wire(cls, config: Mapping[str, Any]) -> FitConfig:
        """Read the scalars of a task; ValueError names one that is missing, or has an impossible value."""
        values: dict[str, Any] = {}
        own = OwnScalars()
        for key, value in config.items():
            if key in _FIELDS:
                _check(key, value)
                values[_FIELDS[key][0]] = value
            else:
                own[key] = value
        for key, (name, default) in _FIELDS.items():
            if default is MISSING and name not in values:
                raise ValueError(f"the task has no {key!r}; the server's strategy has to send it")
        if not (values.get("local_steps") or values.get("local_epochs")):
            raise ValueError("the task has neither 'local-steps' nor 'local-epochs'; one has to be positive")
        return cls(**values, own=own)


def planned_steps(local_steps: int, local_epochs: int, batch_size: int, num_examples: int) -> int:
    """E_k: `local_steps`, or the batches of `local_epochs` passes over a client's examples, if there are any.

    A `batch_size` of 0 are all examples.
    """
    if not local_epochs:
        return local_steps
    return local_epochs * (-(-num_examples // batch_size) if batch_size else 1)


def _check(key: str, value: Any) -> None:
    """Refuse what a field cannot mean; `True` is not a number here."""
    is_bool = isinstance(value, bool)
    if key == "rule":
        valid, expected = isinstance(value, str), "a name"
    elif key == RUN:
        valid, expected = isinstance(value, str) and value.isdecimal() and len(value) < 30, "a number as text"
    elif key == PREPROCESSING:
        valid, expected = isinstance(value, str), "a text"
    elif key in (FAREWELL, REPLAY):
        valid, expected = is_bool, "true or false"
    elif key == COMPLETION:
        valid = isinstance(value, int | float) and not is_bool and 0 <= value <= 1
        expected = "a number from 0 to 1"
    elif key == FROZEN_CHECKSUM:
        valid = isinstance(value, int | float) and not is_bool and math.isfinite(value)
        expected = "a finite number"
    elif key in (LEARNING_RATE, DEADLINE_SECONDS):
        valid = isinstance(value, int | float) and not is_bool and 0 <= value < math.inf  # False for NaN
        expected = "a finite number that is not negative"
    else:
        valid = isinstance(value, int) and not is_bool and value >= 0
        expected = "an integer that is not negative"
    if not valid:
        raise ValueError(f"the task has {key} {value!r}; it must be {expected}")


# Key on the wire -> name and default of each field that is sent under its own name.
_FIELDS: dict[str, tuple[str, Any]] = {
    f.name.replace("_", "-"): (f.name, f.default) for f in fields(FitConfig) if f.name != "own"
}
WIRE_NAMES = _FIELDS.keys()
