"""What tests of methods have in common, besides `fedtide.testing`."""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import strategies
from fedtide.base.contract import REPORTED
from fedtide.engine.checkpoints.store import CheckpointStore
from fedtide.testing.contract import SIZES, START, M, N, delta, maker, play, work
from fedtide.testing.rounds import NamedProxy, Rounds, TableManager, reply
from strategies import FlatParameters, FlexibleStrategy, Layout, Replies
from strategies.core.reply_vectors import ReplyVectors
from strategies.core.round import Sent
from strategies.core.state import Rows

__all__ = [
    "SIZES",
    "START",
    "M",
    "N",
    "NamedProxy",
    "Rounds",
    "TableManager",
    "delta",
    "play",
    "reply",
    "work",
]

LOSSES = ("train_loss", "final_loss", "rms_loss", "seconds")


def collected(
    vectors: Mapping[int, np.ndarray], origins: np.ndarray | Mapping[int, np.ndarray], **told: float
) -> Replies:
    """Replies of clients that did all of one step, from their local weights and what they started from."""
    count, size = len(vectors), len(next(iter(vectors.values())))
    started = [origins[k] if isinstance(origins, Mapping) else origins for k in sorted(vectors)]
    sent = [Sent(1, FlatParameters(x, Layout(((size,),), x.dtype)), 0.1, 0) for x in started]
    reported = np.ones(count, REPORTED)
    reported["client"], reported["resync"] = sorted(vectors), False
    for key in LOSSES:
        reported[key] = told.get(key, np.nan)
    return Replies(
        reported=reported,
        planned=np.ones(count, np.int64),
        sent=sent,
        order=np.arange(count),
        vectors=ReplyVectors(vectors[k] for k in sorted(vectors)),
        origins=started,
        buffers=[np.empty(0)] * count,
        extra=[()] * count,
        size=size,
        version=0,
    )


FEDERATED = [*strategies.STRATEGIES]


# Of what does not depend on the method: a table at the server, a memory at the clients, compressed updates.
THREE = ["mifa", "feddyn", "efl"]


# Options that make another class of a method, see `strategies.VARIANTS`.
VARIANTS: dict[str, dict[str, Any]] = {
    "fedlaavg": {"memory": "client"},
    "mimic": {"memory": "client"},
    "focus": {"memory": "client"},
    "fednova": {"mu": 0.5},
}
AT_ONCE = {"fedbuff": {"buffer": 1}}  # moves in every round in which a reply arrives, as the others do


def make(
    name: str | type[FlexibleStrategy], members: Iterable[int] = range(N), **options: Any
) -> FlexibleStrategy:
    return maker(name, **AT_ONCE.get(str(name), {}))(members, **options)


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it comes back from a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = CheckpointStore(Path(folder))
        checkpoints.save(1, state)
        found = checkpoints.load()
        assert found is not None
        back = {key: in_memory(part) for key, part in found.state.items()}
        checkpoints.close()
    return back


def in_memory(part: Any) -> Any:
    """Return a part of a state that does not need the file any more."""
    return part._replace(vectors=[*part.vectors]) if isinstance(part, Rows) else part


def same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Assert that two states are equal to the last bit."""
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, Rows):
            for mine, its in zip(value, other[key], strict=True):
                np.testing.assert_array_equal([*mine], [*its], err_msg=key)
        else:
            np.testing.assert_array_equal(other[key], value, err_msg=key)
