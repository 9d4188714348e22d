"""EFL lets clients go that are away too often (Ma et al., Corollary 1)."""

from typing import Any

import numpy as np
import pytest
from fakes import N, Rounds, make, work

from strategies.parts.abandoning import abandoning_pays


def test_it_is_equation_8_with_the_bounds_of_theorem_1() -> None:
    """y J / E > T C / (E (T - tau_0))^2: the later, the more it takes; at first y > C / (J T E), eq. 9."""
    y, J, E, T, C = 0.4, 0.5, 10, 100, 100.0
    for done in range(T + 1):
        kept, let_go = y * J / E, T * C / (E * (T - done)) ** 2 if done < T else np.inf
        assert abandoning_pays(y, J, E, done, T, C) is bool(kept > let_go)
    assert abandoning_pays(1.001 * C / (J * T * E), J, E, 0, T, C)
    assert not abandoning_pays(0.999 * C / (J * T * E), J, E, 0, T, C)


def go(online: Any, rounds: int = 20, loss: float = 1.0, **options: Any) -> Rounds:
    """Rounds with who is there; `notes` has the events of each that has some."""
    general = {"abandon": "auto", "abandon_constant": 1.0, "abandon_after": 4, "num_rounds": 20}
    played: Any = Rounds(make("efl", **{**general, **options}))
    played.notes = {}
    for number in range(1, rounds + 1):
        asked = played.ask(online(number))
        played.hear(*((c, work(c, i, train_loss=loss, final_loss=loss / 2)) for c, i in asked.items()))
        if played.strategy.report.events:
            played.notes[number] = played.strategy.report.events
    return played


def test_a_client_that_is_away_is_let_go_with_the_numbers() -> None:
    """After the rounds of grace; the shares are those of the others, and it is asked no more."""
    rounds: Any = go(lambda t: range(N - 1) if 1 < t < 10 else range(N))
    ((number, (event,)),) = rounds.notes.items()
    assert number == 4
    inactivity, dissimilarity = event.pop("inactivity"), event.pop("dissimilarity")
    assert inactivity == pytest.approx(3 / 4)
    assert dissimilarity == pytest.approx(0.5)
    told = {"event": "abandonment", "client": N - 1}
    assert event == {**told, "remaining": 17, "tau_0": 3, "constant": 1.0}
    roster = rounds.strategy.roster
    assert roster.num_members == N - 1
    assert roster.shift == 3
    assert rounds.strategy.report.active.tolist() == list(range(N - 1))


@pytest.mark.parametrize(
    ("online", "options"),
    [
        (lambda t: range(N - 1), {"abandon": "off"}),
        (lambda t: range(N - 1), {"num_rounds": 0}),  # T is not known
        (lambda t: range(N - 1), {"loss": float("nan")}),  # J is not known
        (lambda t: range(N - 1), {"abandon_constant": 1e6}),  # it does not pay
        (lambda t: range(N - 1), {"abandon_after": 21}),
        (lambda t: range(N), {"clients_per_round": 2}),  # not selected is not away
        (lambda t: [t % N], {"abandon_after": 5, "abandon_constant": 30.0}),  # all are away alike
    ],
)
def test_who_stays(online: Any, options: Any) -> None:
    rounds: Any = go(online, **options)
    assert not rounds.notes


def test_at_most_one_a_round_and_never_the_last() -> None:
    rounds: Any = go(lambda t: [0], abandon_constant=1e-9)
    gone = [event["client"] for events in rounds.notes.values() for event in events]
    assert sorted(gone) == [1, 2, 3, 4]
    assert all(len(events) == 1 for events in rounds.notes.values())
    assert rounds.strategy.roster.num_members == 1
