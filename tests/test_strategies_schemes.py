"""FedAvg and the schemes A, B, C (Ruan et al., section 4.1) by hand, on a single weight."""

from typing import Any

import numpy as np
import pytest
from fakes import NamedProxy, Rounds, reply
from flwr.common import ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager

import strategies
from strategies import Roster


def federation(name: str, sizes: tuple[int, ...], **options: Any) -> Rounds:
    start = ndarrays_to_parameters([np.zeros(1)])
    return Rounds(strategies.make(name, start, Roster(np.array(sizes)), **options))


@pytest.mark.parametrize(
    ("name", "sizes", "options", "deltas", "steps", "expected"),
    [
        # p = (1, 2, 3, 4)/10 over all members: 0.2 * 5 + 0.4 * 7, not divided by 0.6
        ("scheme-b", (1, 2, 3, 4), {}, {1: 5.0, 3: 7.0}, {}, 3.8),
        # incomplete work as it is: 1/2 * 4 + 1/2 * 1
        ("scheme-b", (1, 1), {"local_steps": 4}, {0: 4.0, 1: 1.0}, {1: 1}, 2.5),
        # N = 4, K = 2 complete: 4 * 1/10 / 2 * 5 + 4 * 4/10 / 2 * 7; incomplete work is dropped
        ("scheme-a", (1, 2, 3, 4), {"local_steps": 4}, {0: 5.0, 1: 100.0, 3: 7.0}, {1: 3}, 6.6),
        # E = 4: 1/4 * 4/1 * 3 + 3/4 * 4/2 * 2
        ("scheme-c", (1, 3), {"local_steps": 4}, {0: 3.0, 1: 2.0}, {0: 1, 1: 2}, 6),
        # 2 epochs in batches of 10: E_k = 6 of 25 examples and 2 of 5; 25/30 * 6/3 * 3 + 5/30 * 2/2 * 6
        ("scheme-c", (25, 5), {"local_epochs": 2, "batch_size": 10}, {0: 3.0, 1: 6.0}, {0: 3, 1: 2}, 6),
        # batch size 0: one step an epoch, whatever the size; 25/30 * 3/1 * 2 + 5/30 * 3/3 * 6
        ("scheme-c", (25, 5), {"local_epochs": 3, "batch_size": 0}, {0: 2.0, 1: 6.0}, {0: 1, 1: 3}, 6),
        # (2 * 5 + 4 * 7) / 6, clients 0 and 2 (1 and 3 examples) being inactive
        ("fedavg", (1, 2, 3, 4), {}, {1: 5.0, 3: 7.0}, {}, 38 / 6),
        # 0.5 * (5 + 7) / 2
        ("fedavg", (1, 2, 3, 4), {"weights": "uniform", "server_rate": 0.5}, {1: 5.0, 3: 7.0}, {}, 3),
    ],
)
def test_a_round_by_hand(
    name: str,
    sizes: tuple[int, ...],
    options: dict[str, Any],
    deltas: dict[int, float],
    steps: dict[int, int],
    expected: float,
) -> None:
    got = federation(name, sizes, **options).play(deltas, steps=steps)
    assert got[0] == pytest.approx(expected)


def test_scheme_a_discards_a_round_without_complete_clients() -> None:
    """The weights stay; the round counts, so that the rate decays."""
    rounds = federation("scheme-a", (1, 1), local_steps=4, lr_schedule=strategies.SCHEDULES["staircase"]())
    assert rounds.play({0: 5.0, 1: 5.0}, steps={0: 3, 1: 1})[0] == 0
    assert rounds.ask([0])[0].config["learning-rate"] == pytest.approx(0.05)


@pytest.mark.parametrize(("batch", "batch_size"), [("full", 0), ("mini", 32)])
def test_fedsgd_asks_for_one_step(batch: str, batch_size: int) -> None:
    rounds = federation("fedsgd", (1,), batch=batch, batch_size=32, local_steps=7, local_epochs=2)
    config = rounds.ask([0])[0].config
    assert (config["local-steps"], config["batch-size"]) == (1, batch_size)
    assert "local-epochs" not in config


def test_reported_sizes_replace_the_registered_ones() -> None:
    """Registered (1, 1), reported (1, 3): 1/4 * 4 + 3/4 * 4; later client 1 alone moves it by 3/4 * 4."""
    rounds = federation("scheme-b", (1, 1))
    asked = rounds.ask([0, 1])
    first = rounds.hear((0, reply(asked[0], [4.0], 1)), (1, reply(asked[1], [4.0], 3)))
    assert first[0] == pytest.approx(4)
    assert rounds.play({1: 4.0})[0] == pytest.approx(7)


def test_training_loss_is_the_mean_of_those_who_report_one() -> None:
    """(1 * 0.5 + 3 * 0.1) / 4; without any report there is none."""
    rounds = federation("fedavg", (1, 2, 3))
    rounds.play({0: 0.0, 1: 0.0, 2: 0.0}, train_loss={0: 0.5, 2: 0.1})
    assert rounds.metrics["train-loss"] == pytest.approx(0.2)
    rounds.play({0: 0.0, 1: 0.0})
    assert "train-loss" not in rounds.metrics


# Roster


def test_shares_are_over_members() -> None:
    """(1, _, 3): 1/4, 0, 3/4; nobody's share if no size is known."""
    roster = Roster(np.array([1, 2, 3]), np.array([True, False, True]))
    np.testing.assert_allclose(roster.shares, [0.25, 0, 0.75])
    assert Roster(np.zeros(2, np.int64)).shares.tolist() == [0, 0]


def test_names() -> None:
    """Those registered at the start are numbers; any other name gets the next index, once."""
    roster = Roster(np.array([1, 2]))
    assert [roster.find(name) for name in ("0", "1")] == [0, 1]
    for stranger in ("2", "01", "-1", "x", "", "\u0661", "9" * 5000):  # \u0661 is an Arabic 1
        assert roster.find(stranger) is None
    assert [roster.register(name) for name in ("1", "phone", "2", "01", "phone")] == [1, 2, 3, 4, 2]
    assert len(roster) == 5
    assert roster.num_members == 2


@pytest.mark.parametrize(
    ("sizes", "members", "message"),
    [([1, -2], None, "client 1 has a negative"), ([1, 2], [True], "1 membership flags for 2")],
)
def test_roster_refuses(sizes: list[int], members: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Roster(np.array(sizes), members)


@pytest.mark.parametrize(
    ("name", "step"), [("scheme-a", 1.0), ("scheme-b", 0.1), ("scheme-c", 0.1), ("efl", 0.1)]
)
def test_unknown_sizes_count_as_the_mean_of_the_known_ones(name: str, step: float) -> None:
    """Under a stock client manager: 2 of 20 equal clients move the weight by 2/20, or with A by N/K 2/20."""
    manager = SimpleClientManager()
    for client in range(20):
        manager.register(NamedProxy(f"node {client:02}"))
    own: dict[str, Any] = {"compress": False, "elasticity": 0.0} if name == "efl" else {}
    own["client_rule"] = "trust"
    strategy = strategies.make(name, ndarrays_to_parameters([np.zeros(1)]), clients_per_round=2, **own)
    parameters = strategy.initialize_parameters(manager)
    for number in range(1, 6):
        asked = strategy.configure_fit(number, parameters, manager)
        assert len(asked) == 2
        results = [(proxy, reply(instruction, 1.0, 50)) for proxy, instruction in asked]
        parameters, _ = strategy.aggregate_fit(number, results, [])
        assert strategy.weights[0] == pytest.approx(step * number)


def test_sizes_that_are_known_decide() -> None:
    """Sizes 10, 30, unknown: the third counts as 20, so that p = (1/6, 1/2, 1/3)."""
    roster = Roster()
    for name in "abc":
        client = roster.register(name)
        roster.member[client] = True
    np.testing.assert_allclose(roster.shares, [1 / 3, 1 / 3, 1 / 3])
    roster.note_sizes(np.array([0, 1]), np.array([10, 30]))
    np.testing.assert_allclose(roster.shares, [1 / 6, 1 / 2, 1 / 3])
