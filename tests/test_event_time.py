"""Event time: the clock against a second one, the same bits everywhere, and what is refused."""

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killed import kill_when, records, saved_rounds, train
from killed import start as start_process

from fedtide.config import Settings
from fedtide.engine.evaluation import GlobalEvaluator
from fedtide.engine.event_clock import EventClock
from fedtide.engine.experiment import prepare
from fedtide.engine.run import simulate as run
from fedtide.engine.run_files import records_in
from fedtide.federation import Federation
from fedtide.plan import Plan

STEPS, N = 3, 4
MICROSECONDS = 1_000_000
Session = tuple[int, int, int]  # client, start, end, in tenths of a second
RUN: dict[str, Any] = {"trace": "phones:cost=30", "num_clients": 20, "clients_per_round": 8, "local_steps": 4}


@st.composite
def recordings(draw: Any) -> list[Session]:
    """Sessions of some clients, the first from 0 on; those of one client do not overlap, but may touch."""
    found = []
    for client in range(N):
        ends = draw(st.lists(st.integers(0, 300), unique=True, max_size=8))
        ends = sorted(ends)[: len(ends) // 2 * 2]
        found += [(client, *pair) for pair in zip(ends[::2], ends[1::2], strict=True)]
        if ends and draw(st.booleans()):
            found.append((client, ends[-1], ends[-1] + 7))  # touches the one before
    first = min((start for _, start, _ in found), default=0)
    return [(client, start - first, end - first) for client, start, end in found]


def slowly(
    sessions: list[Session], paces: list[int], deadline: int, B: int, C: int
) -> Iterator[tuple[Any, ...]]:
    """Play rounds moment by moment, in whole microseconds, asking the first clients that are free."""
    there = {k: set[int]() for k in range(N)}
    for client, start, end in sessions:
        there[client] |= set(range(start, end))  # tenths of a second in which it is online

    def is_online(client: int, now: int) -> bool:
        return now // (MICROSECONDS // 10) in there[client]

    now, open_tasks, t = 0, dict[int, tuple[int, int, int]](), 0
    last = max((end for *_, end in sessions), default=0) * MICROSECONDS // 10
    while True:
        t += 1
        while not open_tasks and not any(is_online(k, now) for k in range(N)):
            now = (now // (MICROSECONDS // 10) + 1) * (MICROSECONDS // 10)
            if now > last:
                return
        begin = now
        free = [k for k in range(N) if is_online(k, now) and k not in open_tasks][: C - len(open_tasks)]
        for client in free:
            leaves = now
            while is_online(client, leaves):
                leaves = (leaves // (MICROSECONDS // 10) + 1) * (MICROSECONDS // 10)
            time = min(leaves - now, deadline or last + 1)
            steps = min(STEPS, time // paces[client])
            open_tasks[client] = now + min(time, STEPS * paces[client]), t, steps
        replied = 0
        for end in sorted({end for end, *_ in open_tasks.values()}):
            replied += sum(steps > 0 for at, _, steps in open_tasks.values() if at == end)
            now = end
            if replied >= B:
                break
        ended = sorted((at, k, task, s) for k, (at, task, s) in open_tasks.items() if at <= now)
        open_tasks = {k: task for k, task in open_tasks.items() if task[0] > now}
        yield begin, now, free, ended, sorted(open_tasks)


@settings(max_examples=60, deadline=None)
@given(
    sessions=recordings().filter(len),
    paces=st.lists(st.sampled_from([100_000, 250_000, 1_000_000, 1_700_000]), min_size=N, max_size=N),
    deadline=st.sampled_from([0, 2_500_000]),
    B=st.integers(1, N + 1),
    C=st.integers(1, N),
)
def test_the_clock_is_that_of_a_second_one(
    sessions: list[Session], paces: list[int], deadline: int, B: int, C: int, tmp_path_factory: Any
) -> None:
    lines = [f"{k},{s / 10},{e / 10},{MICROSECONDS / paces[k]!r}" for k, s, e in sorted(sessions)]
    file = tmp_path_factory.getbasetemp() / "sessions.csv"
    file.write_text("client,start,end,steps_per_second\n" + "\n".join(lines) + "\n")
    options = f"file={file},repeat=false,deadline={deadline / MICROSECONDS},local-steps={STEPS}"
    trace = Federation.of(Settings(trace=f"recorded:{options}", num_clients=N)).trace
    expected = slowly(sessions, paces, deadline, B, C)
    clock = EventClock(trace, B)
    before = 0
    for t, (begin, end, free, ended, at_work) in enumerate(expected, start=1):
        there = np.flatnonzero(clock.round(t).online)
        working = {task.client for task in clock.tasks}
        asked = [k for k in there.tolist() if k not in working][: C - len(working)]
        assert (clock.begin, asked) == (begin, free)
        clock.give(np.array(asked, np.intp))
        done = [(k.end, k.client, k.round, round(k.completion * STEPS)) for k in clock.end()]
        assert (clock.now, done) == (end, ended)
        assert sorted(task.client for task in clock.tasks) == at_work
        assert clock.now >= clock.begin >= before
        before = clock.now
        if t == 200:
            return
    assert clock.is_over()


@pytest.mark.slow
def test_the_same_bits_on_ray(simulate: Callable[..., Any], ray_cluster: None) -> None:
    """Though its workers train the tasks that wait in other groups."""
    for strategy, B in (("fedbuff:buffer=3", 1), ("fedawe", 3)):
        changes = {**RUN, "strategy": strategy, "round_ends": B, "num_rounds": 20}
        here = simulate(**changes)
        there = simulate(**changes, engine="ray", num_workers=2)
        np.testing.assert_array_equal(here.weights, there.weights)
        lags = [late["lag"] for record in here.rounds for late in record.get("late", [])]
        assert max(lags) > 3


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    """At any moment: open tasks, some of them trained, belong to a checkpoint."""
    changes = {**RUN, "trace": "phones:cost=30+lost:p=0.1", "arrivals": "3=20", "departures": "5=50"}
    common = {"strategy": "fedbuff:buffer=3", "round_ends": 2, "num_rounds": 300, "run_dir": str(tmp_path)}
    common |= {"engine": "inline", "client_gpus": 0.0, "checkpoint_every": 3, "evaluate_seconds": 600.0}
    whole = Settings(**changes, **common)
    _, folder, ended = run(Plan.of(whole))
    path = tmp_path / "killed"
    for lines in (40, 130, 250):
        now = replace(whole, resume=str(path)) if path.exists() else whole
        saved = saved_rounds(path)
        assert kill_when(start_process(train, now, path), lambda n=lines: records(path) >= n)
        assert saved_rounds(path) > saved
    start_process(train, replace(whole, resume=str(path)), path).join()
    resumed = json.loads((path / "summary.json").read_text())
    assert resumed["weights_sha256"] == ended.summary["weights_sha256"]
    records_of = [[{**r, "seconds": None} for r in records_in(each)] for each in (path, folder.path)]
    assert records_of[0] == records_of[1]
    assert 10 < sum("accuracy" in record for record in records_of[0]) < 200


def test_what_comes_too_late_is_stopped_and_told(tmp_path: Path) -> None:
    """Also by a run that is resumed; whose task is stopped can be asked in the same round."""
    changes = {**RUN, "trace": "speeds:spread=1", "round_ends": 1, "num_rounds": 60, "model": "logistic"}
    changes |= {"run_dir": str(tmp_path), "num_clients": 8, "checkpoint_every": 1, "seed": 3}
    changes |= {"engine": "inline", "strategy": "fedbuff:buffer=1,rescale=true,max-lag=6"}
    _, late, _ = run(Plan.of(Settings(**changes)))
    told = [row for record in records_in(late.path) for row in record.get("discarded", [])]
    assert {row["lag"] > 6 and row["steps"] == 4 for row in told} == {True}
    assert {row["bytes"] for row in told} == {650 * 4}
    changes["strategy"] += ",stop-late=true"
    _, stopping, whole = run(Plan.of(Settings(**changes)))
    records = [*records_in(stopping.path)]
    stopped = [(record, *task) for record in records for task in record.get("stopped", [])]
    assert len({client for _, client, *_ in stopped}) > 1
    for record, client, task, seconds in stopped:
        assert client in record["selected"]  # all are asked, always
        assert seconds == pytest.approx(record["begin"] - records[task]["begin"])
        assert record["device_seconds"] >= seconds
        assert client not in record.get("at_work", [])
    assert not any("discarded" in record for record in records)
    assert max(late["lag"] for record in records for late in record.get("late", [])) == 6
    _, folder, _ = run(Plan.of(Settings(**{**changes, "num_rounds": 31})))
    longer = Settings(**{**changes, "resume": str(folder.path)})
    _, _, resumed = run(Plan.of(longer))
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]


@pytest.mark.parametrize("event_time", [True, False])
@pytest.mark.parametrize("ended_by", ["a target", "SIGINT"])
def test_a_run_that_ended_before_its_first_round_is_resumed(
    ended_by: str, event_time: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To prepare a run, which looks at who is there first, does not begin a round."""
    changes = {**RUN, "trace": "phones:cost=30", "strategy": "mifa", "round_ends": 2 * event_time}
    whole = Settings(**changes, num_rounds=6, model="logistic", run_dir=str(tmp_path))
    _, _, ended = run(Plan.of(whole))
    evaluate = GlobalEvaluator.__call__

    def interrupt(self: Any, server_round: int, *rest: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return evaluate(self, server_round, *rest)

    with monkeypatch.context() as patch:
        if ended_by == "SIGINT":
            patch.setattr(GlobalEvaluator, "__call__", interrupt)
        _, folder, none = run(Plan.of(replace(whole, stop_at="loss=100" if ended_by == "a target" else "")))
    assert none.summary["rounds"] == 0
    _, _, resumed = run(Plan.of(replace(whole, resume=str(folder.path))))
    assert resumed.summary["rounds"] == 6
    assert resumed.summary["weights_sha256"] == ended.summary["weights_sha256"]


def test_all_leave_after_the_first_round(tmp_path: Path) -> None:
    changes = {"trace": "speeds", "strategy": "mifa", "round_ends": 1, "departures": "0-19=2"}
    _, folder, _ = run(Plan.of(Settings(**changes, run_dir=str(tmp_path), num_rounds=5, model="logistic")))
    asked = [record.get("selected") for record in records_in(folder.path)]
    assert asked[:2] == [None, [*range(20)]]
    assert not any(asked[2:])


@pytest.mark.parametrize("strategy", ["fedavg", "scaffold", "mimic:memory=client"])
def test_to_wait_for_all_is_a_run_in_rounds(strategy: str, simulate: Callable[..., Any]) -> None:
    """Where everybody is always there, whatever the speeds."""
    common = {"strategy": strategy, "num_clients": 6, "num_rounds": 5}
    waiting = simulate(**common, trace="speeds:spread=1", round_ends=6)
    rounds = simulate(**common, trace="always")
    np.testing.assert_array_equal(waiting.weights, rounds.weights)


def test_virtual_time_ends_a_run_and_says_when_to_evaluate(tmp_path: Path) -> None:
    changes = {**RUN, "strategy": "fedbuff", "round_ends": 2, "num_rounds": 500, "model": "logistic"}
    timed = Settings(**changes, until=4000.0, evaluate_seconds=1000.0, run_dir=str(tmp_path), engine="inline")
    _, folder, ended = run(Plan.of(timed))
    records = records_in(folder.path)
    times = {record["round"]: record for record in records if record["round"]}
    seconds = [record["virtual_seconds"] for record in times.values()]
    assert seconds[-2] < 4000 <= seconds[-1]
    evaluated = [record["virtual_seconds"] for record in times.values() if "accuracy" in record]
    assert len(evaluated) == 4
    assert all(now >= k * 1000 for k, now in enumerate(evaluated, start=1))
    assert ended.summary["rounds"] == len(times)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round_ends": 9}, "round-ends is 9; it must be at most clients-per-round, 8"),
        ({"round_ends": 21, "clients_per_round": 0}, "at most num-clients, 20"),
        ({"round_ends": -1}, "round-ends"),
        ({"round_ends": 2, "trace": "bernoulli"}, "phones, recorded"),
        ({"round_ends": 2, "trace": "phones:late=true"}, "late"),
        ({"round_ends": 2, "strategy": "scaffold"}, "round-ends"),
        ({"round_ends": 2, "strategy": "sequential-sgd"}, "no use for late"),
        ({"round_ends": 8, "strategy": "scaffold:max-lag=3"}, "max-lag is about late.*Scaffold takes none"),
        ({"strategy": "fedavg:max-lag=3"}, "FedAvg takes late replies in event time only"),
        ({"strategy": "mifa:max-lag=3,stop-late=true"}, "set round-ends and max-lag"),
        ({"round_ends": 2, "strategy": "mifa:stop-late=true"}, "set round-ends and max-lag"),
        ({"strategy": "fedbuff:rescale=true"}, "set round-ends below 8"),
        ({"round_ends": 8, "strategy": "fedasync:rescale=true"}, "set round-ends below 8"),
        ({"trace": "always", "until": 10.0}, "until is in virtual"),
        ({"trace": "always", "evaluate_seconds": 10.0}, "evaluate-seconds is in virtual"),
        ({"arrivals": "3=50s"}, "round-ends"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prepare(Plan.of(Settings(**{**RUN, **changes})))


def test_a_log_in_which_no_member_is_ever_online(write: Callable[..., str]) -> None:
    file = write("client,start,end\n0,0,10\n1,0,10\n")
    never = Settings(
        trace=f"recorded:file={file},repeat=false", num_clients=2, round_ends=1, arrivals="0-1=20s"
    )
    with pytest.raises(ValueError, match="ever online"):
        prepare(Plan.of(never))
    prepare(Plan.of(replace(never, arrivals="0-1=9s")))


def test_a_run_is_over_when_nobody_will_be_online_any_more(write: Callable[..., str], tmp_path: Path) -> None:
    log = write("client,start,end,steps_per_second\n0,0,60,1\n1,0,60,1\n")
    trace = f"recorded:file={log},repeat=false"
    few = {"model": "logistic", "trace": trace, "num_clients": 2, "clients_per_round": 0, "round_ends": 1}
    *_, ended = run(Plan.of(Settings(**{**RUN, **few, "run_dir": str(tmp_path)})))
    assert ended.summary["rounds"] < 50
    assert ended.summary["stopped"] == "trace: nobody will be online any more"
