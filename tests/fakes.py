"""The smallest client manager and proxies that drive a strategy without an engine."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy

import strategies
from fedtide.engine.checkpoints.store import CheckpointStore
from fedtide.ground.contract import REPORTED
from strategies import FlatParameters, FlexibleStrategy, Layout, Replies, Roster
from strategies.core.reply_vectors import ReplyVectors
from strategies.core.round import Sent
from strategies.core.state import Rows


class NamedProxy(ClientProxy):
    """A proxy that only has a name: tests hand over replies themselves."""

    def _refuse(self, *args: Any) -> Any:
        raise AssertionError("no message goes through this proxy")

    get_properties = get_parameters = fit = evaluate = reconnect = _refuse


class TableManager(SimpleClientManager):
    """Answers who is there from what the test wrote down."""

    def __init__(self) -> None:
        super().__init__()
        self.online: Sequence[int] = ()
        self.working: Sequence[int] = ()
        self.arrived: Sequence[int] = ()
        self.departed: Sequence[int] = ()

    def available(self, server_round: int) -> np.ndarray:
        return np.array(sorted(set(self.online) - set(self.working)), np.intp)

    def at_work(self, server_round: int) -> np.ndarray:
        return np.array(sorted(self.working), np.intp)

    def membership_changes(self, server_round: int) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.arrived, np.intp), np.array(self.departed, np.intp)

    def proxy(self, client: int) -> ClientProxy:
        return NamedProxy(str(client))


def reply(
    instruction: FitIns,
    delta: Any,
    num_examples: int = 10,
    arrays: Sequence[np.ndarray] | None = None,
    **metrics: Any,
) -> FitRes:
    """What a client answers that moved its weights by `delta`."""
    if arrays is None:
        count = int(instruction.config["model-arrays"])
        start = parameters_to_ndarrays(instruction.parameters)[:count]
        vector = np.concatenate([a.ravel() for a in start]) + np.asarray(delta)
        cuts = np.cumsum([a.size for a in start])[:-1]
        arrays = [p.reshape(a.shape) for p, a in zip(np.split(vector, cuts), start, strict=True)]
    metrics = {key.replace("_", "-"): value for key, value in metrics.items()}
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(list(arrays)), num_examples, metrics)


class Rounds:
    """Plays rounds with a strategy: the test says who is there and what each client sends.

    Round 1 is the first that is asked for; a client is named by its index.
    """

    def __init__(self, strategy: FlexibleStrategy) -> None:
        self.strategy = strategy
        self.manager = TableManager()
        self.parameters = strategy.initialize_parameters(self.manager)
        self.number = 0

    def ask(
        self, online: Iterable[int], arrived: Sequence[int] = (), departed: Sequence[int] = ()
    ) -> dict[int, FitIns]:
        """Begin a round; what each client is told to do."""
        self.number += 1
        self.manager.online, self.manager.arrived, self.manager.departed = sorted(online), arrived, departed
        asked = self.strategy.configure_fit(self.number, self.parameters, self.manager)
        return {int(proxy.cid): instruction for proxy, instruction in asked}

    def hear(self, *replies: tuple[int | str, FitRes]) -> np.ndarray:
        """End the round with these replies; the new weights."""
        results = [(NamedProxy(str(name)), result) for name, result in replies]
        self.parameters, self.metrics = self.strategy.aggregate_fit(self.number, results, [])
        return self.strategy.weights.copy()

    def play(
        self,
        deltas: Mapping[int, Any],
        arrived: Sequence[int] = (),
        departed: Sequence[int] = (),
        **metrics: Mapping[int, Any],
    ) -> np.ndarray:
        """A round in which those of `deltas` are there and move by that much; the new weights.

        A client reports the size that the roster knows, and of each metric what is given for it.
        """
        asked = self.ask(deltas, arrived, departed)
        sizes = self.strategy.roster.num_examples
        replies = []
        for client, instruction in asked.items():
            told = {key: values[client] for key, values in metrics.items() if client in values}
            replies.append((client, reply(instruction, deltas[client], int(sizes[client]), **told)))
        return self.hear(*replies)


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


# A small federation whose clients do all of their work

START = [np.linspace(-1, 1, 6).reshape(2, 3), np.array(0.5), np.zeros(0), np.array([2.0, -3.0])]
M = 9
SIZES = np.array([10, 20, 30, 40, 50])
N = len(SIZES)


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
    mask = np.isin(np.arange(N), list(members))
    options = {**AT_ONCE.get(str(name), {}), **options}
    return strategies.make(name, ndarrays_to_parameters(START), Roster(SIZES, mask), **options)


def delta(client: int, number: int) -> np.ndarray:
    """How a client moves the weights in a round."""
    return np.random.default_rng([client, number]).normal(size=M)


def work(client: int, instruction: FitIns, **metrics: Any) -> FitRes:
    """What a client sends that did all of its work."""
    number = int(instruction.config["round"])
    metrics = {"round": number, "train_loss": 1.0 / number, **metrics}
    return reply(instruction, delta(client, number), int(SIZES[client]), **metrics)


def play(rounds: Rounds, online: Iterable[int] = range(N), **events: Any) -> np.ndarray:
    """A round in which all who are asked do all of their work."""
    return rounds.hear(*((c, work(c, i)) for c, i in rounds.ask(online, **events).items()))


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
