"""What every strategy has to keep to; a new one joins by being in `strategies.STRATEGIES`.

Sequential SGD, which has no clients, is in test_strategies_sequential.py.
Replies that do not count are in test_strategies_rejections.py, options in test_strategies_options.py,
resuming in test_strategies_state.py.
What a method deliberately does otherwise is named here, beside the promise that it does not make.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from fakes import AT_ONCE, FEDERATED, SIZES, START, N, NamedProxy, Rounds, delta, make, play, reply, work
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager

import strategies

# Differ from FedAvg even where all clients finish all of their steps; FOCUS, as these steps are corrected.
NOT_FEDAVG = {"efl", "fedacg", "fedasync", "feddyn", "fedexp", "focus"}
# Count all clients alike, not by their shares p_k.
UNIFORM = {"apfl", "fedawe", "fedbuff", "fedgate", "mifa", "mimic", "pfedme", "vrl-sgd"}
UNIFORM |= {"scaffold", "amplified-scaffold"}
OWN_SELECTION = {"fedlaavg", "f3ast"}  # choose clients by something else than the seed
IN_ORDER = {"fedasync"}  # takes one reply after the other
OWN_START = {"fedawe"}  # clients start from models of their own, which a wrapper's change is added to

every_strategy = pytest.mark.parametrize("name", FEDERATED)
three_methods = pytest.mark.parametrize("name", ["mifa", "feddyn", "efl"])  # of what the base decides

# Full participation, empty rounds, order


@pytest.mark.parametrize("name", sorted(set(FEDERATED) - NOT_FEDAVG))
def test_full_participation_is_fedavg(name: str) -> None:
    """w + sum_k p_k delta_k with p_k = n_k / n, or 1 / N."""
    rounds = Rounds(make(name, local_steps=1))
    expected = rounds.strategy.weights.copy()
    shares = np.full(N, 1 / N) if name in UNIFORM else SIZES / SIZES.sum()
    for number in (1, 2):
        expected += sum(p * delta(k, number) for k, p in enumerate(shares))
        np.testing.assert_allclose(play(rounds), expected, rtol=1e-12)


@every_strategy
@pytest.mark.parametrize("kind", ["nobody-there", "nobody-replies", "all-rejected"])
def test_empty_round_changes_nothing(name: str, kind: str) -> None:
    rounds = Rounds(make(name))
    before, sent = play(rounds), rounds.parameters
    asked = rounds.ask([] if kind == "nobody-there" else range(N))
    bad = [(client, work(client, instruction, steps=0)) for client, instruction in asked.items()]
    after = rounds.hear(*(bad if kind == "all-rejected" else []))
    np.testing.assert_array_equal(after, before)
    assert rounds.parameters.tensors == sent.tensors
    refused = {"rejected: no local steps": len(bad)} if kind == "all-rejected" else {}
    assert rounds.metrics == {"active": 0, "rejected": sum(refused.values()), **refused}
    assert not np.array_equal(play(rounds), before)


@pytest.mark.parametrize("name", sorted(set(FEDERATED) - IN_ORDER))
def test_order_of_replies_does_not_matter(name: str) -> None:
    ends = []
    for order in itertools.islice(itertools.permutations(range(N)), 0, None, 17):
        rounds = Rounds(make(name))
        for _ in range(3):
            asked = rounds.ask(range(N))
            end = rounds.hear(*((client, work(client, asked[client])) for client in order))
        ends.append(end)
    for end in ends:
        np.testing.assert_array_equal(end, ends[0])


# Clients that come and go


@every_strategy
@pytest.mark.parametrize("seen", [N - 1, N], ids=["never", "once"])
def test_client_that_is_seen_once_or_never(name: str, seen: int) -> None:
    """Inactivity is not a departure: it stays a member, whose absence causes no event."""
    rounds = Rounds(make(name))
    after = play(rounds, range(seen))
    for _ in range(3):
        before, after = after, play(rounds, range(N - 1))
        assert not np.array_equal(before, after)
        assert np.isfinite(after).all()
        assert rounds.strategy.report.active.tolist() == [0, 1, 2, 3]
        assert rounds.strategy.report.events == []
    assert rounds.strategy.roster.num_members == N


@every_strategy
def test_arrival_in_the_middle(name: str) -> None:
    """The late client counts from its first round on."""
    with_it, without = (Rounds(make(name, members=range(N - 1))) for _ in range(2))
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


@every_strategy
@pytest.mark.parametrize("departure", ["include", "exclude"])
def test_departure(name: str, departure: str) -> None:
    """Who departed is asked no more, though it may still be visible."""
    rounds = Rounds(make(name, departure=departure))
    play(rounds)
    play(rounds, departed=[1])
    assert {"event": "departure", "client": 1, "objective": departure} in rounds.strategy.report.events
    assert rounds.strategy.report.active.tolist() == [0, 2, 3, 4]
    assert rounds.strategy.roster.num_members == (N if departure == "include" else N - 1)
    assert np.isfinite(play(rounds)).all()
    assert rounds.strategy.report.events == []


@every_strategy
def test_client_says_that_it_departs(name: str) -> None:
    """Its last work counts; from the next round on it is gone, as if the trace had said so."""
    told, seen = Rounds(make(name)), Rounds(make(name))
    asked = told.ask(range(N))
    told.hear(*((c, work(c, i, departing=c == 1)) for c, i in asked.items()))
    play(seen)
    np.testing.assert_array_equal(told.strategy.weights, seen.strategy.weights)
    np.testing.assert_array_equal(play(told), play(seen, [0, 2, 3, 4], departed=[1]))
    assert told.strategy.report.events == seen.strategy.report.events != []


@three_methods
@pytest.mark.parametrize(("metrics", "gone"), [({"steps": 0}, True), ({"round": 1}, False)])
def test_goodbye_without_work(name: str, metrics: dict[str, Any], gone: bool) -> None:
    """Nothing to hand in is no reason to stay; a late goodbye may be from before an arrival."""
    rounds = Rounds(make(name))
    play(rounds)
    asked = rounds.ask(range(N))
    rounds.hear((1, work(1, asked[1], departing=True, **metrics)))
    asked_to_train = [k for k, i in rounds.ask(range(N)).items() if not i.config.get("farewell")]
    assert (1 in asked_to_train) is not gone


# Selection


@every_strategy
def test_selection_takes_some_of_the_available(name: str) -> None:
    rounds = Rounds(make(name, clients_per_round=3))
    for online in ([0, 1, 2, 3, 4], [0, 1, 3, 4], [1, 4], [2], []):
        asked = rounds.ask(online)
        assert set(asked) <= set(online)
        assert len(asked) == min(3, len(online))
        rounds.hear()


def selections(name: str, seed: int, busy: bool = False) -> list[list[int]]:
    """Who is asked in six rounds; `busy`: replies come, and there were fewer available in rounds 1 and 2."""
    rounds, chosen = Rounds(make(name, clients_per_round=2, seed=seed)), []
    for number in range(1, 7):
        asked = rounds.ask(range(3) if busy and number < 3 else range(N))
        rounds.hear(*((c, work(c, i)) for c, i in asked.items() if busy))
        chosen.append(sorted(asked))
    return chosen


@pytest.mark.parametrize("name", sorted(set(FEDERATED) - OWN_SELECTION))
def test_selection_follows_the_seed(name: str) -> None:
    once = selections(name, seed=1)
    assert selections(name, seed=1) == once
    assert selections(name, seed=1, busy=True)[2:] == once[2:]
    assert selections(name, seed=2) != once
    assert len({tuple(chosen) for chosen in once}) > 1


# Flower


@every_strategy
def test_stock_clients_and_manager(name: str) -> None:
    """Clients of any name that send weights and a size only count as the same clients that tell all."""
    names = ["9223372036854775807", "node a", "phone-1", "x", "ß"]  # in the order of their indices
    manager = SimpleClientManager()
    for client in names[::-1]:
        manager.register(NamedProxy(client))
    rounds = Rounds(make(name))
    trust = {"client_rule": "trust", **AT_ONCE.get(name, {})}
    strategy = strategies.make(name, ndarrays_to_parameters(START), **trust)
    parameters = strategy.initialize_parameters(manager)
    for number in (1, 2):
        results = []
        for proxy, instruction in strategy.configure_fit(number, parameters, manager):
            client = names.index(proxy.cid)
            results.append((proxy, reply(instruction, delta(client, number), int(SIZES[client]))))
        parameters, metrics = strategy.aggregate_fit(number, results, [])
        assert metrics == {"active": N, "rejected": 0}
        np.testing.assert_array_equal(strategy.weights, play(rounds))
    manager.unregister(NamedProxy("x"))
    assert len(strategy.configure_fit(3, parameters, manager)) == N - 1
    assert strategy.roster.num_members == N


@three_methods
def test_local_epochs_plan_the_steps(name: str) -> None:
    """2 epochs of 10 examples in batches of 8 are 4 steps, of 20 are 6: one more is impossible."""
    rounds = Rounds(make(name, local_epochs=2, batch_size=8))
    asked = rounds.ask([0, 1])
    assert asked[0].config["local-epochs"] == 2
    assert "local-steps" not in asked[0].config
    rounds.hear((0, work(0, asked[0], steps=5)), (1, work(1, asked[1], steps=6)))
    assert rounds.strategy.report.rejected == [("0", "impossible number of steps 5 of 4")]


@every_strategy
def test_weights_that_a_wrapper_changed_are_the_weights(name: str) -> None:
    """The method goes on from what the server hands to `configure_fit`."""
    rounds = Rounds(make(name, local_steps=1))
    play(rounds)
    changed = [2 * array + 1 for array in parameters_to_ndarrays(rounds.parameters)]
    rounds.parameters = ndarrays_to_parameters(changed)
    asked = rounds.ask(range(N))
    for array, expected in zip(parameters_to_ndarrays(asked[0].parameters), changed, strict=False):
        rounding = 1e-12 if name in OWN_START else 0
        np.testing.assert_allclose(array, expected, rtol=rounding)
    np.testing.assert_array_equal(rounds.hear(), np.concatenate([array.ravel() for array in changed]))
