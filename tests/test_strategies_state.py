"""A training that was interrupted resumes as if nothing had happened.

Part of the contract of every strategy, see test_contract.py.
"""

from typing import Any

import numpy as np
import pytest
from fakes import FEDERATED, START, N, NamedProxy, Rounds, make, play, same_state, stored, work
from flwr.common import ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager
from hostile_rounds import OWN

import strategies
from strategies.core.options import Staircase

THREE = ["scheme-c", "mimic", "fedawe"]

VARIANTS: dict[str, list[dict[str, Any]]] = {  # options that add to a method's state
    **{name: [own for own in variants if "memory" not in own] for name, variants in OWN.items()},
    "fedavg": [{"server_opt": "amsgrad"}, {"server_opt": "adagrad", "amplify": "2,2"}],
    "mifa": [*OWN["mifa"], {"initial_model": "two-norm:V=2,min-change=0", "server_opt": "momentum"}],
    "fedlaavg": [{"table_memory": 0.0, "table_dtype": "float32"}],
    "mimic": [{"table_memory": 0.0}, {"warm_up": True}],
}
CASES = [(name, own, 4, np.float32) for name in FEDERATED for own in [{}, *VARIANTS.get(name, [])]]
CASES += [(name, {}, after, np.float64) for name in THREE for after in (0, 7)]


def begin(name: str, dtype: Any, own: dict[str, Any]) -> Rounds:
    start = ndarrays_to_parameters([array.astype(dtype) for array in START])
    general = {"clients_per_round": 4, "lr_schedule": Staircase(), "departure": "auto", "num_rounds": 9}
    return Rounds(strategies.make(name, start, make(name, range(3)).roster, **{**general, **own}))


def go(rounds: Rounds, last: int) -> list[np.ndarray]:
    """Rounds with arrivals, departures and lost replies, round 7 an empty one; the weights after each.

    In round 4 client 1 says that it departs; it returns in round 8.
    """
    ends = []
    while rounds.number < last:
        number = rounds.number + 1
        arrived, departed = {3: [3], 6: [4], 8: [1]}.get(number, []), {5: [2]}.get(number, [])
        online = np.flatnonzero(np.random.default_rng(number).random(N) < 0.8)
        asked = rounds.ask({1, *online} if number >= 6 else {1, *online} - {4}, arrived, departed)
        replies = [(c, work(c, i, final_loss=0.1 / number)) for c, i in asked.items() if c != number % 3]
        if number == 4:
            assert 1 not in dict(replies)
            replies.append((1, work(1, asked[1], departing=True)))
        ends.append(rounds.hear(*replies if number != 7 else []))
    return ends


@pytest.mark.parametrize(("name", "own", "after", "dtype"), CASES, ids=str)
def test_resumed_run_is_the_same(name: str, own: dict[str, Any], after: int, dtype: Any) -> None:
    """state_dict, to files and back, into a new object: bit by bit what would have come without the stop."""
    whole, stopped, resumed = (begin(name, dtype, own) for _ in range(3))
    expected = go(whole, 10)
    go(stopped, after)
    assert stopped.strategy.membership.announced == ([1] if after == 4 else [])
    resumed.strategy.load_state_dict(stored(stopped.strategy.state_dict()))
    resumed.number = after
    resumed.parameters = resumed.strategy.initialize_parameters(resumed.manager)
    np.testing.assert_array_equal(resumed.parameters.vector, stopped.parameters.vector)
    np.testing.assert_array_equal(go(resumed, 10), expected[after:])
    assert resumed.strategy.report.events == whole.strategy.report.events
    ends = [stored(rounds.strategy.state_dict()) for rounds in (whole, resumed)]
    same_state(*ends)


@pytest.mark.parametrize("name", THREE)
def test_state_is_a_copy(name: str) -> None:
    """Further rounds of a strategy change neither what it returned nor what it was given."""
    rounds, other = Rounds(make(name)), Rounds(make(name))
    play(rounds)
    state = stored(rounds.strategy.state_dict())
    other.strategy.load_state_dict(state)
    before = stored(state)
    play(other)
    same_state(before, state)


@pytest.mark.parametrize("name", THREE)
def test_wrong_state_is_refused(name: str) -> None:
    state = make(name).state_dict()
    for key in state:
        with pytest.raises(ValueError, match=f"the state has no '.*{key.split('.')[-1]}'"):
            make(name).load_state_dict({k: v for k, v in state.items() if k != key})
    other = strategies.make(name, ndarrays_to_parameters([np.zeros(4)]))
    with pytest.raises(ValueError, match=r"weights of shape \(9,\) where \(4,\) are expected"):
        other.load_state_dict(state)


def test_state_keeps_the_names_of_clients() -> None:
    """Flower's names of clients, in the order in which they were first seen."""
    manager = SimpleClientManager()
    strategy = strategies.make("mimic", ndarrays_to_parameters(START))
    for number, client in enumerate(["ß", "10", "phone"], start=1):
        manager.register(NamedProxy(client))
        strategy.configure_fit(number, strategy.initialize_parameters(manager), manager)
    again = strategies.make("mimic", ndarrays_to_parameters(START))
    again.load_state_dict(stored(strategy.state_dict()))
    assert [again.roster.find(name) for name in ("ß", "10", "phone", "0")] == [0, 1, 2, None]
    assert again.roster.num_members == 3
    assert again.roster.register("new") == 3
