"""The contract of a method: what users may expect of each, whatever its formula.

Each promise is a function that plays rounds and asserts what has to hold.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import FitIns, FitRes, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from numpy.typing import NDArray

import strategies
from fedtide.engine.checkpoints.store import CheckpointStore
from fedtide.testing.rounds import NamedProxy, Rounds, reply
from strategies import FlexibleStrategy, Roster

START = [np.linspace(-1, 1, 6).reshape(2, 3), np.array(0.5), np.zeros(0), np.array([2.0, -3.0])]
"""The initial weights, M = 9."""
M = 9
SIZES = np.array([10, 20, 30, 40, 50])
"""n_k of the N = 5 clients."""
N = len(SIZES)

Make = Callable[..., FlexibleStrategy]
"""Makes the method with options; `members` says which clients are members at first."""


def contract(method: str | type[FlexibleStrategy], *, skip: Collection[str] = (), **options: Any) -> None:
    """Check that a method keeps the contract, with five clients, two rounds to ten, and no training.

    Parameters
    ----------
    method
        A class derived from `FlexibleStrategy`, or the name of a registered one.
    skip
        Promises that the method deliberately does not make, by their names in `PROMISES`.
    options
        Options of the method.

    Raises
    ------
    AssertionError
        A promise is broken; a note names it.
    """
    for name, promise in PROMISES.items():
        if name in skip:
            continue
        try:
            promise(maker(method, **options))
        except Exception as error:
            error.add_note(f"the contract of {getattr(method, '__name__', method)}: {name}")
            raise


def maker(method: str | type[FlexibleStrategy], **options: Any) -> Make:
    """Return a function that makes the method for the clients of the contract."""

    def make(members: Iterable[int] = range(N), **more: Any) -> FlexibleStrategy:
        roster = Roster(SIZES, np.isin(np.arange(N), list(members)))
        return strategies.make(method, ndarrays_to_parameters(START), roster, **{**options, **more})

    return make


def delta(client: int, number: int) -> NDArray[np.float64]:
    """Return how a client moves the weights in a round, shape (M,)."""
    return np.random.default_rng([client, number]).normal(size=M)


def work(client: int, instruction: FitIns, **metrics: Any) -> FitRes:
    """Return what a client sends that has done all of its work."""
    number = int(instruction.config["round"])
    metrics = {"round": number, "train_loss": 1.0 / number, **metrics}
    return reply(instruction, delta(client, number), int(SIZES[client]), **metrics)


def play(rounds: Rounds, online: Iterable[int] = range(N), **events: Any) -> NDArray[np.floating]:
    """Play a round in which all who are asked do all of their work; return the weights."""
    return rounds.hear(*((c, work(c, i)) for c, i in rounds.ask(online, **events).items()))


# The promises


def nobody_there(make: Make) -> None:
    """A round in which nobody is online leaves the weights bit-identical."""
    _leaves_all(make, lambda asked: [], online=())


def nobody_replies(make: Make) -> None:
    """So does one in which nobody replies."""
    _leaves_all(make, lambda asked: [])


def replies_that_do_not_count(make: Make) -> None:
    """So does one in which no reply counts, and each is named with its reason."""
    _leaves_all(make, lambda asked: [(client, work(client, i, steps=0)) for client, i in asked.items()])


def any_order(make: Make) -> None:
    """The order in which replies arrive makes no difference."""
    ends = []
    for order in itertools.islice(itertools.permutations(range(N)), 0, None, 17):
        rounds = Rounds(make())
        for _ in range(3):
            asked = rounds.ask(range(N))
            end = rounds.hear(*((client, work(client, asked[client])) for client in order))
        ends.append(end)
    for end in ends:
        np.testing.assert_array_equal(end, ends[0])


def absence(make: Make) -> None:
    """A client that never replies, or did once, stays a member, and its absence is no event."""
    for seen in (N - 1, N):
        rounds = Rounds(make())
        after = play(rounds, range(seen))
        for _ in range(3):
            before, after = after, play(rounds, range(N - 1))
            assert not np.array_equal(before, after)
            assert np.isfinite(after).all()
            assert rounds.strategy.report.active.tolist() == [0, 1, 2, 3]
            assert rounds.strategy.report.events == []
        assert rounds.strategy.roster.num_members == N


def arrival(make: Make) -> None:
    """A client that arrives late counts from its first round on."""
    with_it, without = (Rounds(make(members=range(N - 1))) for _ in range(2))
    for rounds in (with_it, without):
        play(rounds, range(N - 1))
        play(rounds, range(N - 1))
    np.testing.assert_array_equal(with_it.strategy.weights, without.strategy.weights)
    assert with_it.strategy.roster.num_members == N - 1
    play(with_it, arrived=[N - 1])
    assert with_it.strategy.report.active.tolist() == list(range(N))
    assert {"event": "arrival", "client": N - 1} in with_it.strategy.report.events
    assert with_it.strategy.roster.num_members == N
    assert not np.array_equal(with_it.strategy.weights, play(without, range(N - 1)))


def departure(make: Make) -> None:
    """A client that has departed is asked no more, even if it is still visible."""
    for kept in ("include", "exclude"):
        rounds = Rounds(make(departure=kept))
        play(rounds)
        play(rounds, departed=[1])
        assert {"event": "departure", "client": 1, "objective": kept} in rounds.strategy.report.events
        assert rounds.strategy.report.active.tolist() == [0, 2, 3, 4]
        assert rounds.strategy.roster.num_members == (N if kept == "include" else N - 1)
        assert np.isfinite(play(rounds)).all()
        assert rounds.strategy.report.events == []


def announced_departure(make: Make) -> None:
    """The last work of a client that says it departs counts; then it is gone, as if the trace had said so."""
    told, seen = Rounds(make()), Rounds(make())
    asked = told.ask(range(N))
    told.hear(*((c, work(c, i, departing=c == 1)) for c, i in asked.items()))
    play(seen)
    np.testing.assert_array_equal(told.strategy.weights, seen.strategy.weights)
    np.testing.assert_array_equal(play(told), play(seen, [0, 2, 3, 4], departed=[1]))
    assert told.strategy.report.events == seen.strategy.report.events != []


def selection(make: Make) -> None:
    """`clients_per_round` of the available clients are asked, or all if they are fewer."""
    rounds = Rounds(make(clients_per_round=3))
    for online in ([0, 1, 2, 3, 4], [0, 1, 3, 4], [1, 4], [2], []):
        asked = rounds.ask(online)
        assert set(asked) <= set(online)
        assert len(asked) == min(3, len(online))
        rounds.hear()


def selection_by_seed(make: Make) -> None:
    """Seed and round determine which of the available clients are asked, not what happened before."""

    def chosen(seed: int, busy: bool = False) -> list[list[int]]:
        rounds, found = Rounds(make(clients_per_round=2, seed=seed)), []
        for number in range(1, 7):
            asked = rounds.ask(range(3) if busy and number < 3 else range(N))
            rounds.hear(*((c, work(c, i)) for c, i in asked.items() if busy))
            found.append(sorted(asked))
        return found

    once = chosen(seed=1)
    assert chosen(seed=1) == once
    assert chosen(seed=1, busy=True)[2:] == once[2:]
    assert chosen(seed=2) != once
    assert len({tuple(clients) for clients in once}) > 1


def stock_flower(make: Make) -> None:
    """Flower's own manager and clients that send weights and a size only are as good."""
    names = ["9223372036854775807", "node a", "phone-1", "x", "ß"]  # in the order of their indices
    manager = SimpleClientManager()
    for client in names[::-1]:
        manager.register(NamedProxy(client))
    rounds, method = Rounds(make()), make()
    strategy = strategies.make(
        type(method), ndarrays_to_parameters(START), options=method.options, client_rule="trust"
    )
    parameters: Any = strategy.initialize_parameters(manager)
    for number in (1, 2):
        results = []
        for proxy, instruction in strategy.configure_fit(number, parameters, manager):
            k = names.index(proxy.cid)
            results.append((proxy, reply(instruction, delta(k, number), int(SIZES[k]))))
        parameters, metrics = strategy.aggregate_fit(number, results, [])
        assert metrics == {"active": N, "rejected": 0}
        np.testing.assert_array_equal(strategy.weights, play(rounds))
    manager.unregister(NamedProxy("x"))
    assert len(strategy.configure_fit(3, parameters, manager)) == N - 1
    assert strategy.roster.num_members == N


def changed_weights(make: Make, rounding: float = 0.0) -> None:
    """The method goes on from the weights that it is handed: a wrapper may have changed them."""
    rounds = Rounds(make(local_steps=1))
    play(rounds)
    changed = [2 * array + 1 for array in parameters_to_ndarrays(rounds.parameters)]
    rounds.parameters = ndarrays_to_parameters(changed)
    asked = rounds.ask(range(N))
    for array, expected in zip(parameters_to_ndarrays(asked[0].parameters), changed, strict=False):
        np.testing.assert_allclose(array, expected, rtol=rounding)
    np.testing.assert_array_equal(rounds.hear(), np.concatenate([array.ravel() for array in changed]))


def resuming(make: Make) -> None:
    """A checkpoint brings back all state: the next rounds are the same, bit for bit."""
    whole, stopped, resumed = (Rounds(make(members=range(4))) for _ in range(3))
    for rounds in (whole, stopped):
        play(rounds, range(3))
        play(rounds, arrived=[4])
        play(rounds, [0, 2, 4])
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder))
        store.save(3, stopped.strategy.state_dict())
        found = store.load()
        assert found is not None
        resumed.strategy.load_state_dict(found.state)
        resumed.number = 3
        resumed.parameters = resumed.strategy.initialize_parameters(resumed.manager)
        for departed in ((), (0,), ()):
            np.testing.assert_array_equal(play(resumed, departed=departed), play(whole, departed=departed))
        store.close()


PROMISES: dict[str, Callable[..., None]] = {
    promise.__name__.replace("_", " "): promise
    for promise in (
        *(nobody_there, nobody_replies, replies_that_do_not_count, any_order, absence, arrival, departure),
        *(announced_departure, selection, selection_by_seed, stock_flower, changed_weights, resuming),
    )
}
"""The promises, by name; each docstring says what is promised."""


def _leaves_all(
    make: Make,
    replies: Callable[[dict[int, FitIns]], list[tuple[int, FitRes]]],
    online: Collection[int] = range(N),
) -> None:
    """Play a round that leaves weights and parameters as they were, and after it one that does not."""
    rounds = Rounds(make())
    before, sent = play(rounds), rounds.parameters
    bad = replies(rounds.ask(online))
    np.testing.assert_array_equal(rounds.hear(*bad), before)
    assert rounds.parameters.tensors == sent.tensors
    refused = {"rejected: no local steps": len(bad)} if bad else {}
    assert rounds.metrics == {"active": 0, "rejected": sum(refused.values()), **refused}
    assert not np.array_equal(play(rounds), before)
