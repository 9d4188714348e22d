"""The initial model after a change of the members: probes, in which the method rests, and what follows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMALL
from fakes import SIZES, START, M, N, Rounds, make, play, reply, same_state, stored, work
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays

import strategies
from fedtide.config import Settings
from fedtide.engine.run import simulate as run
from fedtide.plan import Plan
from strategies import Layout, Roster
from strategies.parts.initial_model import TwoNorm

# A direction from the server; a step without replies; memory at the clients.
THREE = [("scaffold", {}), ("mifa", {"empty": "move"}), ("feddyn", {})]
A, B = [0, 1], [2, 3, 4]  # of which either leaves when the other comes
RESTING = ("table", "control", "latest", "selection", "weights", "version")


def begin(name: str, members: list[int] = A, similarity: str = "two-norm", **options: Any) -> Rounds:
    """The first session is over when this returns: `members` have trained for two rounds."""
    rounds = Rounds(make(name, members, initial_model=similarity, **options))
    for _ in range(2):
        play(rounds, members)
    return rounds


def moved(rounds: Rounds, online: list[int], by: Any, **events: Any) -> np.ndarray:
    """A round in which all move by the same; the new weights."""
    return rounds.play(dict.fromkeys(online, by * np.ones(M)), **events)


@pytest.mark.parametrize(("name", "own"), THREE, ids=str)
def test_the_method_rests_while_clients_are_probed(name: str, own: dict[str, Any]) -> None:
    """They do plain SGD from the pilot model at half the rate; two probe rounds, the second from a new x."""
    rounds = begin(name, similarity="two-norm:V=2", **own)
    strategy = rounds.strategy
    pilot = strategy.weights.copy()
    for number in (1, 2):
        arrived, departed = (B, A) if number == 1 else ([], [])
        asked = {c: i for c, i in rounds.ask(B, arrived, departed).items() if c in B}  # no farewells
        before = stored(strategy.state_dict())
        for instruction in asked.values():
            config = instruction.config
            assert {"rule", "last-accepted"}.isdisjoint(config)
            assert config["learning-rate"] == 0.05
            sent = parameters_to_ndarrays(instruction.parameters)
            assert len(sent) == len(START)
            start = np.concatenate([array.ravel() for array in sent])
            np.testing.assert_allclose(start, pilot + (number - 1))
        rounds.hear(*((c, reply(i, np.ones(M), 10, round=rounds.number)) for c, i in asked.items()))
        after = stored(strategy.state_dict())
        resting = [key for key in before if key.startswith(RESTING)]
        same_state({key: before[key] for key in resting}, {key: after[key] for key in resting})
        assert strategy.report.measured["probe"] == number
        assert strategy.report.active.tolist() == B
    asked = rounds.ask(B)
    assert asked[2].config["learning-rate"] == 0.1
    assert asked[2].config.get("rule", "sgd") == strategy.rule.name
    np.testing.assert_array_equal(parameters_to_ndarrays(asked[2].parameters)[3], pilot[-2:])


def test_sets_that_recur_go_on_from_their_own_model() -> None:
    """A B A B: the probes of A go one way, those of B another, of which the other's model has no part."""
    spec = "two-norm:pilot=initial,R=50"
    rounds = Rounds(make("fedavg", A, initial_model=spec))
    way = {0: np.eye(M)[0], 2: np.eye(M)[5]}
    ends = {}
    for session in range(4):
        here, gone = (A, B) if session % 2 == 0 else (B, A)
        events = {"arrived": here, "departed": gone} if session else {}
        rounds.play(dict.fromkeys(here, way[here[0]]), **events)
        found = rounds.strategy.weights
        if session > 1:
            np.testing.assert_allclose(found, ends[here[0]], atol=1e-9)
            (event,) = [e for e in rounds.strategy.report.events if e["event"] == "initial-model"]
            assert np.argmax(event["weights"]) == session - 2
            assert len(event["weights"]) == session
        ends[here[0]] = moved(rounds, here, session + 1)


def test_tensors_of_one_dimension_are_left_out() -> None:
    """START has a matrix, whose 6 weights decide; the others of the 9 do not."""
    made = TwoNorm(Layout.of(START), np.zeros(M))
    gradient = np.arange(1.0, 10)
    other = np.r_[-gradient[:6], gradient[6:]]
    made.gradients = np.array([gradient, other])
    np.testing.assert_allclose(
        made.mixture(np.r_[gradient[:6], other[6:]]), [1 / (1 + np.exp(-20)), np.exp(-20)], rtol=1e-7
    )
    made.gradients[1, :6] = 0  # nothing is left to compare
    np.testing.assert_array_equal(made.mixture(gradient), [0.5, 0.5])


@pytest.mark.parametrize(
    ("least", "ends"),
    [(0.0, [True, True, True]), (0.5, [False, True, False]), (0.6, [False, False, True])],
)
def test_only_large_changes_end_a_session(least: float, ends: list[bool]) -> None:
    """The members have 40, then 50, 80 and 130 examples, all of which count since the session began."""
    rounds = Rounds(make("fedavg", [3], initial_model=f"two-norm:min-change={least}"))
    play(rounds, [3])
    found = []
    for client in (0, 2, 4):
        play(rounds, [3], arrived=[client])
        found.append("probe" in rounds.strategy.report.measured)
        play(rounds, [3])
    assert found == ends  # 1 - 40/80 = 0.5, 1 - 40/130 = 0.69, 1 - 80/130 = 0.38


def test_a_change_that_comes_back_during_the_probe_starts_it_anew() -> None:
    rounds = begin("fedavg", similarity="two-norm:V=2")
    pilot = rounds.strategy.weights
    moved(rounds, B, 1, arrived=B, departed=A)
    moved(rounds, A, 1, arrived=A, departed=B)
    assert rounds.strategy.report.measured["probe"] == 1
    np.testing.assert_allclose(rounds.strategy.initial_model.x, pilot + 1)
    play(rounds, [])
    np.testing.assert_allclose(moved(rounds, A, 1), pilot)
    assert moved(rounds, A, 1)[0] == pytest.approx(pilot[0] + 1)
    assert len(rounds.strategy.initial_model.models) == 0


def test_a_session_without_training_is_none() -> None:
    """Neither the first, which is still to come, nor one that was only probed."""
    rounds = Rounds(make("fedavg", A, initial_model="two-norm"))
    play(rounds, [])
    moved(rounds, B, 1, arrived=B, departed=A)
    assert "probe" not in rounds.strategy.report.measured
    moved(rounds, A, 1, arrived=A, departed=B)
    moved(rounds, B, 1, arrived=B, departed=A)
    assert len(rounds.strategy.initial_model.models) == 0
    moved(rounds, B, 1)
    moved(rounds, A, 1, arrived=A, departed=B)
    assert len(rounds.strategy.initial_model.models) == 1


def test_late_replies() -> None:
    """Those to a task of before the change are refused, and so are those to a probe that is over."""
    rounds = begin("mifa", [*A, *B], similarity="two-norm:min-change=0")
    asked = rounds.ask(range(N))
    early = work(2, asked[2])
    rounds.hear(*((c, work(c, i)) for c, i in asked.items() if c != 2))
    rounds.manager.working = [2]
    asked = rounds.ask([3, 4], departed=A)
    probed = work(4, asked[4])
    rounds.manager.working = [2, 4]
    assert rounds.hear((2, early)) is not None  # nobody replies to the probe
    assert rounds.strategy.report.rejected == [("2", "late reply of round 3: it is about another model")]
    rounds.manager.working = [3, 4]
    rounds.ask([])
    rounds.hear((4, probed))  # of the same x: it counts
    assert rounds.strategy.report.active.tolist() == [4]
    assert rounds.strategy.report.measured["probe"] == 1
    rounds.manager.working = [3]
    other = work(3, asked[3])
    asked = rounds.ask([4])
    rounds.hear((3, other), *((c, work(c, i)) for c, i in asked.items()))
    assert rounds.strategy.report.rejected == [("3", "late reply of round 4: it is about another model")]
    assert rounds.strategy.report.active.tolist() == [4]


def test_layers_begin_anew() -> None:
    """Momentum m, and the period of amplification, which has a new anchor."""
    rounds = begin("fedavg", server_opt="momentum:beta1=0.5", amplify="3,2")
    start = rounds.strategy.weights[0]
    moved(rounds, B, 7, arrived=B, departed=A)
    found = [moved(rounds, B, 1)[0] - start for _ in range(3)]
    np.testing.assert_allclose(found, [1, 2.5, 2 * 4.25])


@pytest.mark.parametrize("name", ["fedexp", "fedacg", "ghbm:tau=1"])
def test_the_momentum_of_the_model_before_is_gone(name: str) -> None:
    """FedExP's mean of two models, FedACG's momentum, and the window of GHBM."""
    name, _, tau = name.partition(":tau=")
    rounds = begin(name, **({"tau": int(tau)} if tau else {}))
    moved(rounds, B, 1, arrived=B, departed=A)
    np.testing.assert_array_equal(rounds.strategy.evaluated(), rounds.strategy.weights)
    asked = rounds.ask(B)
    assert len(parameters_to_ndarrays(asked[2].parameters)) == len(START)  # without a direction


def test_buffers_are_mixed_as_the_weights_are() -> None:
    """The last array holds two buffers, of which each set of clients has its own."""
    start = ndarrays_to_parameters(START)
    roster = Roster(SIZES, np.isin(np.arange(N), A))
    made = strategies.make(
        "fedavg", start, roster, initial_model="two-norm:pilot=initial,R=1e3", num_buffers=1
    )
    rounds, ends = Rounds(made), {}
    for session in range(4):
        here, gone = (A, B) if session % 2 == 0 else (B, A)
        way = np.r_[np.eye(7)[here[0]], session, session]
        rounds.play(dict.fromkeys(here, way), **({"arrived": here, "departed": gone} if session else {}))
        if session > 1:
            np.testing.assert_allclose(made.buffers, ends[here[0]])
        rounds.play(dict.fromkeys(here, way))
        ends[here[0]] = made.buffers.copy()
    assert not np.allclose(ends[A[0]], ends[B[0]])


RUN: dict[str, Any] = {
    "trace": "bernoulli:p=0.8+lost:p=0.1",
    "initial_model": "two-norm:min-change=0,V=2",
    "arrivals": "7=4,6=12",
    "departures": "0=4,1=8",
    "num_rounds": 15,
    "num_clients": 8,
}


def test_memory_at_clients_is_as_good_as_at_the_server(simulate: Callable[..., Any]) -> None:
    """Clients keep their memories during a probe, and hand them in as they leave when it begins."""
    one, other = (simulate(**RUN, strategy=f"mimic:memory={where}") for where in ("server", "client"))
    np.testing.assert_allclose(other.weights, one.weights, rtol=1e-4, atol=1e-6)
    events = [(e["event"], r["round"]) for r in other.rounds for e in r["events"]]
    assert ("farewell", 4) in events
    assert [r["round"] for r in other.rounds if "probe" in r] == [4, 5, 8, 9, 12, 13]
    assert [t for event, t in events if event == "initial-model"] == [9, 13]


def test_a_run_that_ends_in_a_probe_is_extended(tmp_path: Path) -> None:
    """After 12 rounds, between the two rounds of a probe: the same bits as without a pause."""
    settings = Settings(**{**SMALL, **RUN, "strategy": "feddyn", "server_opt": "momentum"})
    _, _, whole = run(Plan.of(settings), tmp_path / "whole")
    run(Plan.of(replace(settings, num_rounds=12)), tmp_path / "paused")
    _, _, resumed = run(Plan.of(replace(settings, resume=str(tmp_path / "paused"))), tmp_path / "paused")
    assert resumed.summary["rounds"] == 15
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_in_event_time(simulate: Callable[..., Any]) -> None:
    """Clients at work at the change answer to nothing; the probe waits for one that has got its task."""
    events = simulate(
        strategy="fedbuff:buffer=1",
        trace="phones:cost=30",
        round_ends=2,
        clients_per_round=5,
        initial_model="two-norm:min-change=0",
        num_clients=12,
        arrivals="10-11=8",
        num_rounds=25,
    )
    probes = [record for record in events.rounds if "probe" in record]
    assert probes[0]["round"] == 8
    assert not any(record["active"] for record in probes[:-1])
    assert probes[-1]["active"]
    assert any("another model" in reason for r in probes for reason in r["failed"].values())
    assert events.rounds[-1]["active"]
