"""MIFA, FedLaAvg and MimiC: what the server remembers of each client, and the limits that the papers prove.

The golden trajectories are in test_golden.py, what all strategies have in common in test_contract.py.
"""

from typing import Any

import numpy as np
import pytest
from fakes import SIZES, START, M, N, Rounds, delta, make, play, reply, work
from flwr.common import ndarrays_to_parameters

import strategies
from strategies import Roster

E = 4
# Limits on quadratics: F_k(x) = (x - e_k)^2


class Quadratics:
    """Clients with one local step and the optimum e_k; who takes part is said round by round."""

    def __init__(self, name: str, optima: Any, rate: float, start: float = 3.0, **options: Any) -> None:
        self.e, self.rate = np.array(optima, float), rate
        roster, initial = Roster(np.ones(len(self.e), int)), ndarrays_to_parameters([np.array([start])])
        general = {"local_steps": 1, "learning_rate": rate}
        self.strategy: Any = strategies.make(name, initial, roster, **general, **options)
        self.rounds = Rounds(self.strategy)

    def play(self, *clients: int, departed: Any = ()) -> float:
        x = self.strategy.weights[0]
        moves = {k: [-self.rate * 2 * (x - self.e[k])] for k in clients}
        return float(self.rounds.play(moves, departed=departed)[0])


@pytest.mark.parametrize(("t1", "t2"), [(3, 5), (1, 1), (7, 2)])
def test_example_1_of_fedlaavg(t1: int, t2: int) -> None:
    """Client 1 is there for t1 rounds, client 2 for the next t2, and so on (Yan et al., Theorem 1).

    FedAvg is at q^(k(t1+t2)) x0 + (1 - q^(k(t1+t2))) X after k periods, and so ends at X; FedLaAvg ends at
    the optimum (e1 + e2) / 2.
    """
    gamma, e1, e2, x0 = 0.1, 0.0, 10.0, 3.0
    q = 1 - 2 * gamma
    X = (q**t2 * (e1 - e2) + e2 - e1 * q ** (t1 + t2)) / (1 - q ** (t1 + t2))
    fedavg = Quadratics("fedavg", [e1, e2], gamma, x0)
    fedlaavg = Quadratics("fedlaavg", [e1, e2], gamma, x0, clients_per_round=1)
    for k in range(1, 1 + 350 // (t1 + t2)):
        for client in [0] * t1 + [1] * t2:
            end = fedavg.play(client)
            latest = fedlaavg.play(client)
        left = q ** (k * (t1 + t2))
        assert end == pytest.approx(left * x0 + (1 - left) * X, rel=1e-12)
    assert end == pytest.approx(X, rel=1e-12)
    assert latest == pytest.approx((e1 + e2) / 2, rel=1e-9)
    assert abs(X - (e1 + e2) / 2) > 0.01


@pytest.mark.parametrize("name", ["mifa", "fedlaavg", "mimic", "fedvarp", "fedvarp prob"])
def test_optimum_in_spite_of_dropouts(name: str) -> None:
    """One local step, constant rate, the first round not full: exactly the mean of the e_k."""
    name, _, agg = name.partition(" ")
    run = Quadratics(name, [0.0, 1.0, 5.0, -3.0], 0.1, **({"agg": agg} if agg else {}))
    rng = np.random.default_rng(0)
    run.play(2)
    for _ in range(500):
        x = run.play(*np.flatnonzero(rng.random(4) < [0.9, 0.5, 0.4, 0.3]).tolist())
    assert x == pytest.approx(0.75, abs=1e-9)


@pytest.mark.parametrize("name", ["mifa", "fedlaavg", "mimic"])
@pytest.mark.parametrize("departure", ["include", "exclude"])
def test_optimum_after_a_departure(name: str, departure: str) -> None:
    """Excluded: exactly that of the others; included: drawn towards the client that left."""
    run = Quadratics(name, [0.0, 2.0, 40.0], 0.1, departure=departure)
    for number in range(30):
        run.play(number % 3, (number + 1) % 3)
    run.play(0, 1, departed=[2])
    for number in range(300):
        x = run.play(number % 2)
    if departure == "exclude":
        assert x == pytest.approx(1.0, abs=1e-9)
    else:
        assert x > 2


# MIFA


# FedLaAvg


def test_fedlaavg_selects_who_was_absent_longest() -> None:
    """Never asked first, then by the last round in which they were asked, also if the reply got lost."""
    rounds = Rounds(make("fedlaavg", range(N - 1), clients_per_round=2))
    assert sorted(play_some(rounds, [0, 1, 2, 3])) == [0, 1]
    assert sorted(play_some(rounds, [0, 1, 2, 3], lost=[3])) == [2, 3]
    assert sorted(play_some(rounds, [0, 1, 2, 3])) == [0, 1]
    assert sorted(play_some(rounds, range(N), arrived=[N - 1])) == [2, N - 1]
    assert sorted(play_some(rounds, [0, 3])) == [0, 3]
    assert sorted(play_some(rounds, range(N), departed=[2])) == [1, N - 1]
    assert sorted(play_some(rounds, range(N), arrived=[2])) == [0, 2]  # came back, as a new one


def test_fedlaavg_does_not_ask_for_ever_who_never_delivers() -> None:
    """Clients that are online but drop out of every round must not keep the others from training."""
    rounds = Rounds(make("fedlaavg", clients_per_round=2))
    asked = [sorted(play_some(rounds, range(N), lost=[0, 1])) for _ in range(5)]
    assert asked == [[0, 1], [2, 3], [0, 4], [1, 2], [0, 3]]


def play_some(rounds: Rounds, online: Any, lost: Any = (), **events: Any) -> dict[int, Any]:
    asked = rounds.ask(online, **events)
    rounds.hear(*((c, work(c, i)) for c, i in asked.items() if c not in lost))
    return asked


def test_fedlaavg_does_not_ask_who_has_no_data() -> None:
    """It would be the longest absent for ever; nor is it part of N."""
    sizes = np.array([10, 0, 30])
    strategy = strategies.make(
        "fedlaavg", ndarrays_to_parameters(START), Roster(sizes), clients_per_round=1, weights="none"
    )
    rounds = Rounds(strategy)
    chosen = []
    for _ in range(4):
        asked = rounds.ask(range(3))
        chosen += [*asked]
        rounds.hear(*((c, reply(i, np.ones(M), 10)) for c, i in asked.items()))
    assert chosen == [0, 2, 0, 2]
    start = np.concatenate([array.ravel() for array in START])
    np.testing.assert_allclose(strategy.weights, start + 0.5 + 1 + 1 + 1)  # one update of two, then both


def test_fedlaavg_scales_the_loss_by_the_rate() -> None:
    """With one local step, N p_k times the rate (`loss`) is N p_k times the update (`agg`)."""
    loss, agg = (Rounds(make("fedlaavg", weights=kind, local_steps=1)) for kind in ("loss", "agg"))
    for number in (1, 2):
        rates = {}
        for rounds in (loss, agg):
            asked = rounds.ask(range(number, N))
            rates = {c: float(i.config["learning-rate"]) / 0.1 for c, i in asked.items()}
            rounds.hear(
                *((c, reply(i, rates[c] * delta(c, number), int(SIZES[c]))) for c, i in asked.items())
            )
            if rounds is loss:
                assert rates == pytest.approx({c: SIZES[c] / SIZES.mean() for c in asked})
        assert rates == dict.fromkeys(range(number, N), 1.0)
        np.testing.assert_allclose(loss.strategy.weights, agg.strategy.weights, rtol=1e-12)


def test_fedlaavg_loss_with_unknown_sizes() -> None:
    """Before a client tells its size it counts as one of average size."""
    rounds = Rounds(strategies.make("fedlaavg", ndarrays_to_parameters(START), Roster(), weights="loss"))
    for name in "abc":
        rounds.strategy.roster.register(name)
    asked = rounds.ask(range(3), arrived=range(3))
    assert [i.config["learning-rate"] for i in asked.values()] == [0.1] * 3


# MimiC


def test_mimic_warms_up_with_everybody() -> None:
    """Until the first have replied, all who are available are asked."""
    rounds = Rounds(make("mimic", clients_per_round=2, warm_up=True))
    assert len(rounds.ask(range(N))) == N
    rounds.hear()
    assert len(play_some(rounds, range(1, N))) == N - 1
    assert len(play_some(rounds, range(N))) == 2


def test_mimic_rates() -> None:
    """`code`: E times the clients' rate; `paper`: its own, decaying; in units of updates neither matters."""
    ends = {}
    for options in (("code", 0.01), ("paper", 0.4), ("paper", 0.2)):
        rate, own = options
        decay = 0.5 if rate == "paper" else 1.0
        rounds = Rounds(make("mimic", local_steps=4, rate=rate, global_rate=own, global_decay=decay))
        ends[options] = [rounds.strategy.weights.copy(), play(rounds), play(rounds)]
    code, same, half = (np.diff(end, axis=0) for end in ends.values())
    np.testing.assert_allclose(code[0], same[0])  # 4 * 0.1
    np.testing.assert_allclose(same[0], 2 * half[0])
    np.testing.assert_allclose(code[1], 2 * same[1])
    updates = [
        play(Rounds(make("mimic", units="update", rate=rate, global_rate=7.0))) for rate in ("code", "paper")
    ]
    np.testing.assert_array_equal(*updates)


def test_mimic_forgets_all_when_everybody_has_left() -> None:
    rounds = Rounds(make("mimic", [0, 1]))
    play(rounds, [0, 1])
    play(rounds, [0])
    play(rounds, [], departed=[0, 1])
    assert not rounds.strategy.corrections.handed_over.any()
    play(rounds, [2], arrived=[2])
    np.testing.assert_allclose(rounds.strategy.corrections.read(np.array([2])), 0, atol=1e-15)


# Empty rounds
