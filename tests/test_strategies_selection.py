"""Which clients are asked, and what for."""

from typing import Any

import numpy as np
import pytest
from fakes import SIZES, START, M, N, NamedProxy, Rounds, collected, reply, stored
from flwr.common import ndarrays_to_parameters

import strategies
from strategies import Replies, Roster, Task
from strategies.core.round import ClientFailure
from strategies.fedbuff import FedBuff


class OwnWork(FedBuff):
    """Asks client k for k + 1 steps, and notes what a method may know of a round."""

    def setup(self) -> None:
        super().setup()
        self.seen: list[list[int]] = []

    def observe(self, available: Any) -> None:
        self.seen.append(available.tolist())

    def task(self, client: int) -> Task:
        return Task(local_steps=client + 1)

    def update(self, replies: Replies) -> None:
        self.heard = replies
        super().update(replies)


@pytest.mark.parametrize("amount", [{"local_steps": 9}, {"local_epochs": 2}])
def test_each_client_has_its_own_work(amount: dict[str, int]) -> None:
    """More steps than it was asked for are impossible; fewer are incomplete."""
    start = ndarrays_to_parameters(START)
    rounds = Rounds(strategies.make(OwnWork, start, Roster(SIZES), clients_per_round=4, **amount))
    strategy: Any = rounds.strategy
    asked = rounds.ask(range(N))
    assert strategy.seen == [[*range(N)]]  # not only those selected
    assert {c: (i.config["local-steps"], i.config.get("local-epochs", 0)) for c, i in asked.items()} == {
        c: (c + 1, 0) for c in asked
    }
    first, second, *_, last = asked
    told = {second: {"steps": 1}, last: {"steps": last + 2}}
    rounds.hear(*((c, reply(i, np.ones(M), **told.get(c, {}))) for c, i in reversed(asked.items())))
    assert strategy.report.rejected == [(str(last), f"impossible number of steps {last + 2} of {last + 1}")]
    counted = [client for client in asked if client != last]
    assert strategy.heard.planned.tolist() == [client + 1 for client in counted]
    assert strategy.heard.steps[:2].tolist() == [first + 1, 1]
    assert strategy.heard.order.tolist() == [3, 2, 1]  # of arrival
    assert [sent.local_steps for sent in strategy.heard.sent] == strategy.heard.planned.tolist()


class Table:
    """A forecast that the test wrote down: client k stays for 10 (k + 1) seconds, a round takes 20."""

    def elapsed(self, t: int) -> float:
        return 20.0

    def leave(self, t: int, clients: Any) -> Any:
        return 10.0 * (clients + 1)


RULES = ["uniform", "longest-absent", "min-separation:R=3", "power-of-choice:d=4", "refl", "oort:explore=0.3"]


def selecting(name: str, select: str, **options: Any) -> Rounds:
    roster = Roster(SIZES, forecast=Table())
    start = ndarrays_to_parameters(START)
    return Rounds(strategies.make(name, start, roster, select=select, clients_per_round=2, **options))


def told(client: int, t: int) -> dict[str, float]:
    return {"train_loss": client + 1.0, "rms_loss": (client + 1.5) / t, "seconds": 10.0 - client}


def play(rounds: Rounds, online: Any = range(N), **events: Any) -> list[int]:
    """A round in which client 4 drops out; who was asked."""
    asked = rounds.ask(online, **events)
    t = rounds.number
    replies = [(k, reply(i, np.full(M, k), int(SIZES[k]), **told(k, t))) for k, i in asked.items() if k != 4]
    results = [(NamedProxy(str(k)), result) for k, result in replies]
    failures: Any = [ClientFailure(str(k), "dropped in mid-round", 7.0) for k in asked if k == 4]
    rounds.parameters, _ = rounds.strategy.aggregate_fit(t, results, failures)
    return sorted(asked)


@pytest.mark.parametrize("select", RULES)
def test_every_rule_serves_every_method_and_goes_on_after_a_resume(select: str) -> None:
    """Who is asked depends on the rule, not on the method."""
    expected = [play(rounds) for rounds in [selecting("fedavg", select)] for _ in range(12)]
    assert all(len(asked) == 2 for asked in expected) or select.startswith("min-separation")
    for name in ("mifa", "f3ast", "fedlaavg"):
        rounds = selecting(name, select)
        first = [play(rounds) for _ in range(6)]
        state, resumed = stored(rounds.strategy.state_dict()), selecting(name, select)
        resumed.strategy.load_state_dict(state)
        resumed.parameters = resumed.strategy.initialize_parameters(resumed.manager)
        resumed.number = 6
        assert first + [play(resumed) for _ in range(6)] == expected


def test_methods_have_their_own_rule_unless_another_is_named() -> None:
    for name, rule in (("fedavg", "uniform"), ("fedlaavg", "longest-absent")):
        own, named = selecting(name, "method"), selecting(name, rule)
        assert [play(own) for _ in range(6)] == [play(named) for _ in range(6)]
    rarest = selecting("f3ast", "method")
    assert play(rarest) == [3, 4]  # p_k / r_k is largest where p_k is, at first


def test_min_separation_may_ask_nobody() -> None:
    rounds = selecting("fedavg", "min-separation:R=4")
    asked = [play(rounds, range(4)) for _ in range(5)]
    assert sorted(asked[0] + asked[1]) == [0, 1, 2, 3]
    assert asked[2:4] == [[], []]
    assert len(asked[4]) == 2


def test_refl_asks_first_who_leaves_soon() -> None:
    """After the first round, with 100 s, its mean is 40 s, then 25 s: those who leave before twice that."""
    rounds = selecting("fedavg", "refl")
    play(rounds)
    assert 3 in play(rounds)  # 40 to 80 s: clients 3 and 4
    assert play(rounds, range(4)) == [2, 3]  # 25 to 50 s


def test_who_leaves_the_objective_is_forgotten() -> None:
    """Power-of-choice asks first whose loss it does not know."""
    rounds = selecting("fedavg", "power-of-choice:d=5")
    for _ in range(8):
        play(rounds, range(4))
    assert play(rounds, range(4)) == [2, 3]
    play(rounds, range(1, 4), departed=[0])
    assert 0 in play(rounds, range(4), arrived=[0])
    assert play(rounds, range(4)) == [2, 3]


def test_oort_prefers_large_losses_and_leaves_out_the_slow() -> None:
    """All are known; T is the fastest reply but two, the others' scores fall by (T / D)^2."""
    rounds = selecting("fedavg", "oort:explore=0,least=0,percentile=60")
    selection: Any = rounds.strategy.selection
    for t in range(1, 4):
        selection.note(t, heard({k: 3.0 + k for k in range(N)}, t), {})
    assert selection.preferred() == 6.0  # of 3, 4, 5, 6, 7
    scores = selection.scores(np.arange(N), 4)
    u = SIZES * 2.0
    plain = (np.minimum(u, 100) - 0.999 * u[0]) / (u[-1] - 0.999 * u[0]) + np.sqrt(0.1 * np.log(4) / 3)
    np.testing.assert_allclose(scores, plain * [1, 1, 1, 1, (6 / 7) ** 2])


def test_oort_takes_any_losses() -> None:
    """Negative ones, such as a Gaussian likelihood's, too: who has the largest is asked most."""
    rounds = selecting("fedavg", "oort:explore=0,least=0")
    selection: Any = rounds.strategy.selection
    for t, loss in enumerate([1e308, -2.0, -2.0], start=1):  # the first overflows
        replies = heard(dict.fromkeys(range(N), 1.0), t)
        replies.reported["rms_loss"] = loss
        selection.note(t, replies, {})
        assert np.isfinite(selection.scores(np.arange(N), t + 1)).all()
    scores = selection.scores(np.arange(N), 4)
    assert (scores > 0).all()
    assert scores.argmax() == 0
    assert len(selection.choose(np.arange(N), 2, 4, np.random.default_rng(0))) == 2


def heard(seconds: dict[int, float], t: int) -> Replies:
    """Replies of all clients, with a root mean square loss of 2."""
    zeros = {k: np.zeros(M) for k in seconds}
    replies = collected(zeros, np.zeros(M), train_loss=1.0, rms_loss=2.0)
    replies.reported["num_examples"], replies.reported["seconds"] = SIZES, [*seconds.values()]
    return replies


def no_selection(roster: Roster, seed: int) -> bool:
    return False


def test_bad_selections() -> None:
    with pytest.raises(ValueError, match=r"refl.*trace with a clock"):
        strategies.make("fedavg", ndarrays_to_parameters(START), Roster(SIZES), select="refl")
    with pytest.raises(ValueError, match=r"needs the option R"):
        selecting("fedavg", "min-separation")
    with pytest.raises(ValueError, match=r"known: method, uniform"):
        selecting("fedavg", "ort")
    with pytest.raises(ValueError, match=r"gives a bool, not a Selection"):
        selecting("fedavg", f"{__name__}.no_selection")
