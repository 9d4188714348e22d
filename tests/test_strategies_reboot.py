"""Fast reboot (Ruan et al., section 4.2) by hand: three clients, scheme B unless said otherwise.

Clients 0 and 1 hold one example each, client 2, which arrives in round 3, holds two: from then on
p = (1/4, 1/4, 1/2). Weights are a single number, and every client moves it by 1 unless said otherwise.
"""

from typing import Any

import numpy as np
import pytest
from fakes import NamedProxy, Rounds, reply
from flwr.common import ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager

import strategies
from strategies import Roster

ALL = {0: 1.0, 1: 1.0, 2: 1.0}
OLD = {0: 1.0, 1: 1.0}


def before_arrival(
    sizes: tuple[int, ...] = (1, 1, 2), name: str = "scheme-b", dimension: int = 1, **options: Any
) -> Rounds:
    """Two rounds with clients 0 and 1, who answer without moving the weights."""
    members = np.arange(len(sizes)) < 2
    start = ndarrays_to_parameters([np.zeros(dimension)])
    rounds = Rounds(strategies.make(name, start, Roster(np.array(sizes), members), **options))
    for _ in range(2):
        rounds.play({0: np.zeros(dimension), 1: np.zeros(dimension)})
    return rounds


def moves(rounds: Rounds, *plays: dict[str, Any]) -> list[float]:
    """How far the weight moves in each of these rounds."""
    path = [float(rounds.strategy.weights[0])] + [float(rounds.play(**play)[0]) for play in plays]
    return np.diff(path).tolist()


def decisions(rounds: Rounds) -> list[dict[str, Any]]:
    return [event for event in rounds.strategy.report.events if event["event"] == "fast-reboot"]


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ([ALL, ALL], [2, 1.25, 0.5 + 11 / 18]),  # 1/4 + 1/4 + b/2 with b = 3, 1.5, 1 + 2/9
        ([OLD, ALL], [0.5, 0.5, 0.5 + 11 / 18]),  # the clock runs while the client is inactive
    ],
)
def test_boost_by_round(later: list[Any], expected: list[float]) -> None:
    first = {"deltas": later[0], "arrived": [2]}
    got = moves(before_arrival(), first, *({"deltas": deltas} for deltas in later))
    assert got == pytest.approx(expected)


def test_two_arrivals_have_their_own_clocks() -> None:
    """Client 3 (n = 1) comes in round 5: p = (1, 1, 2, 1)/5.

    Round 5: (1 + 1 + 2 (1 + 2/9) + 3)/5; round 6: (1 + 1 + 2 (1 + 2/16) + 1.5)/5.
    """
    everyone = {**ALL, 3: 1.0}
    rounds = before_arrival((1, 1, 2, 1))
    rounds.play(ALL, arrived=[2])
    rounds.play(ALL)
    got = moves(rounds, {"deltas": everyone, "arrived": [3]}, {"deltas": everyone})
    assert got == pytest.approx([(5 + 22 / 9) / 5, (3.5 + 2.25) / 5])


@pytest.mark.parametrize(
    ("options", "steps", "expected"),
    [
        ({"reboot": "off"}, {}, 1.0),  # 1/4 + 1/4 + peak/2
        ({"reboot_peak": 2.0}, {}, 1.5),
        ({"name": "scheme-c", "local_steps": 8}, {2: 2}, 6.5),  # boosted after debiasing: 1/2 + 3 (8/2) / 2
    ],
)
def test_boost_options(options: dict[str, Any], steps: dict[int, int], expected: float) -> None:
    rounds = before_arrival(**options)
    assert moves(rounds, {"deltas": ALL, "arrived": [2], "steps": steps}) == pytest.approx([expected])


def test_first_members_are_no_late_arrivals() -> None:
    """Clients that connect in round 3 of a federation without members: there is no old optimum to leave.

    Two of equal size that move by 1 move the weight by 1/2 + 1/2; one more in round 4, p = 1/3, is boosted
    to 1/3 + 1/3 + 3/3.
    """
    initial = ndarrays_to_parameters([np.zeros(1)])
    strategy = strategies.make("scheme-b", initial, min_available_clients=0)
    manager, parameters = SimpleClientManager(), strategy.initialize_parameters(SimpleClientManager())
    path = [0.0]
    for number, names in enumerate(["", "", "ab", "c"], start=1):
        for name in names:
            manager.register(NamedProxy(name))
        asked = strategy.configure_fit(number, parameters, manager)
        parameters, _ = strategy.aggregate_fit(number, [(p, reply(i, [1.0])) for p, i in asked], [])
        path.append(float(strategy.weights[0]))
    assert np.diff(path) == pytest.approx([0, 0, 1, 5 / 3])


# reboot = auto: gradient = -delta / (rate * steps), and ||grad F|| < p_l ||grad F_l|| boosts. The arriving
# client's gradient is (0.6, 0.8), norm 1, and p_l = 1/2: the bound is 1/2. grad F is that of
# the round before.

RATE = 0.1
ARRIVING = np.array([0.6, 0.8])
NEAR = {0: np.array([0.06, 0.0]), 1: np.array([0.0, 0.08]), 2: ARRIVING}  # mean (0.03, 0.04), norm 0.05
FAR = {0: np.array([0.9, 0.0]), 1: np.array([0.0, 1.2]), 2: ARRIVING}  # mean (0.45, 0.6), norm 0.75


def auto(gradients: dict[int, Any], **options: Any) -> Rounds:
    """Three rounds of the old members, the last one with these gradients."""
    rounds = before_arrival(dimension=2, reboot="auto", learning_rate=RATE, local_steps=4, **options)
    rounds.play(steps_along({0: gradients[0], 1: gradients[1]}))
    return rounds


def steps_along(gradients: dict[int, Any], steps: int = 4) -> dict[int, Any]:
    return {client: -RATE * steps * gradient for client, gradient in gradients.items()}


@pytest.mark.parametrize(("gradients", "boosted", "norm"), [(NEAR, True, 0.05), (FAR, False, 0.75)])
def test_auto_compares_the_gradients(gradients: dict[int, Any], boosted: bool, norm: float) -> None:
    """Near: 0.05 < 1/2, so the arriving client counts 3/2; far: 0.75 > 1/2, so it counts 1/2."""
    rounds = auto(gradients)
    before = rounds.strategy.weights.copy()
    weights = rounds.play(steps_along(gradients), arrived=[2])
    (decision,) = decisions(rounds)
    assert decision["client"] == 2
    assert decision["boosted"] is boosted
    assert [decision[key] for key in ("old_gradient", "new_gradient", "share")] == pytest.approx(
        [norm, 1, 0.5]
    )
    factor = 3 if boosted else 1
    mean = (gradients[0] + gradients[1]) / 4 + factor * gradients[2] / 2
    np.testing.assert_allclose(weights - before, -RATE * 4 * mean)


def test_auto_takes_gradients_by_step_and_an_allowance() -> None:
    """Half of the steps and half of the way is the same gradient; 0.75 < 1.6 * 1/2."""
    rounds = auto(FAR, reboot_factor=1.6)
    deltas = steps_along(FAR) | steps_along({2: ARRIVING}, steps=2)
    rounds.play(deltas, arrived=[2], steps={2: 2})
    (decision,) = decisions(rounds)
    assert decision["new_gradient"] == pytest.approx(1)
    assert decision["boosted"]


def test_auto_decides_once() -> None:
    """Boosted in round 4, so boosted by 1.5 in round 5 though the gradients would not say so any more."""
    rounds = auto(NEAR)
    before = rounds.play(steps_along(NEAR), arrived=[2])
    after = rounds.play(steps_along(FAR))
    assert decisions(rounds) == []
    np.testing.assert_allclose(after - before, -RATE * 4 * ((FAR[0] + FAR[1]) / 4 + 1.5 * ARRIVING / 2))


def test_auto_waits_for_an_older_client() -> None:
    """The old members never replied. Alone, client 2 counts p = 1/2; when they do, the clock is at 2: 1.5."""
    start = ndarrays_to_parameters([np.zeros(2)])
    members = np.array([True, True, False])
    options = {"reboot": "auto", "learning_rate": RATE, "local_steps": 4}
    rounds = Rounds(strategies.make("scheme-b", start, Roster(np.array([1, 1, 2]), members), **options))
    rounds.play({})
    alone = rounds.play(steps_along({2: ARRIVING}), arrived=[2])
    assert decisions(rounds) == []
    np.testing.assert_allclose(alone, -RATE * 4 * ARRIVING / 2)
    after = rounds.play(steps_along(NEAR))
    assert decisions(rounds)[0]["boosted"]
    np.testing.assert_allclose(after - alone, -RATE * 4 * ((NEAR[0] + NEAR[1]) / 4 + 1.5 * ARRIVING / 2))


def test_auto_judges_a_second_arrival_anew() -> None:
    """Boosted at first, gone in round 5, back in round 6 far from the optimum: not boosted."""
    rounds = auto(NEAR)
    rounds.play(steps_along(NEAR), arrived=[2])
    rounds.play(steps_along({0: FAR[0], 1: FAR[1]}), departed=[2])
    rounds.play(steps_along(FAR), arrived=[2])
    assert [event["boosted"] for event in decisions(rounds)] == [False]
