"""The trace that replays a run on devices from its records."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedtide.engine.event_clock import EventClock, make_clock
from traces import TRACES, Trace


def record(t: int, available: list[int], **told: Any) -> dict[str, Any]:
    """The record of a round: by default all who can be asked are asked, and complete 8 steps."""
    selected = told.get("selected", available)
    active = told.setdefault("active", selected)
    counts = {"steps": [8] * len(active), "planned": [8] * len(active), "failed": {}, "events": []}
    seconds = {"select": 0.5, "train": 1.5}
    return {"round": t, "available": available, "selected": selected, **counts, "seconds": seconds, **told}


def event(kind: str, client: int, **told: Any) -> dict[str, Any]:
    return {"event": kind, "client": client, **told}


# Client 4 of 6 never comes. In round 2, 3 is lost, and 1 is late until round 4; 5 arrives, and 2 leaves.
ROUNDS = [
    {"round": 0, "seconds": {}},
    record(1, [0, 1, 2, 3], members=[0, 1, 2, 3], steps=[8, 4, None, 8]),
    record(2, [0, 1, 2, 3], active=[0, 2], steps=[2, 8], planned=[8, 8], failed={"1": "no reply", "3": "?"}),
    record(3, [0, 2, 5], selected=[2], events=[event("arrival", 5), event("refused-node", 0)]),
    record(
        4,
        [0, 2, 5],
        active=[0, 1, 5],
        steps=[8, 6, 8],
        planned=[8, 8, 8],
        late=[{"client": 1, "task": 2, "lag": 2}],
        failed={"2": "weights are not finite"},
        at_work=[1],
    ),
    record(5, [0, 1, 5], events=[event("departure", 2), event("farewell", 2, received=False)]),
]


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(r) + "\n" for r in records)


@pytest.fixture
def trace(write: Callable[..., str]) -> Trace:
    return TRACES["run"](6, 0, file=write(lines(ROUNDS)))


def test_a_run_on_devices_is_replayed(trace: Trace) -> None:
    rounds = [trace.round(t) for t in range(1, 6)]
    assert [np.flatnonzero(r.member).tolist() for r in rounds] == [
        *([[0, 1, 2, 3]] * 2),
        *([[0, 1, 2, 3, 5]] * 2),
        [0, 1, 3, 5],
    ]
    assert [np.flatnonzero(r.online).tolist() for r in rounds] == [r["available"] for r in ROUNDS[1:]]
    assert rounds[0].completion.tolist() == [1, 0.5, 1, 1, 0, 0]
    # 1 did 6 of its 8 steps, as its late reply says; nobody knows what 3 did.
    assert rounds[1].completion.tolist() == [0.25, 0.75, 1, 0, 0, 0]
    # 0 was not asked: as before; neither was 5, which is new: as in its first task.
    assert rounds[2].completion.tolist() == [0.25, 0, 1, 0, 0, 1]
    assert rounds[3].completion.tolist() == [1, 0, 0, 0, 0, 1]
    assert [trace.delay(t).tolist() for t in (1, 2, 3)] == [[0] * 6, [0, 2, 0, 0, 0, 0], [0] * 6]
    assert trace.has_late_replies
    assert [np.flatnonzero(trace.lost(t)).tolist() for t in (1, 4, 5)] == [[], [], [2]]
    assert [trace.ends(t) for t in (1, 5, 6)] == [2_000_000, 10_000_000, 12_000_000]


def test_it_starts_over_with_those_who_are_members(trace: Trace, write: Callable[..., str]) -> None:
    again = trace.round(6)
    assert np.flatnonzero(again.member).tolist() == [0, 1, 3, 5]
    assert np.flatnonzero(again.online).tolist() == [0, 1, 3]
    once = TRACES["run"](6, 0, file=write(lines(ROUNDS)), repeat=False)
    assert not once.round(6).online.any()
    assert np.array_equal(once.round(6).member, again.member)


def test_a_late_reply_that_the_method_dropped_is_late(write: Callable[..., str]) -> None:
    dropped = "late reply of round 1: SchemeC takes none"
    rounds = [
        record(1, [0, 1], members=[0, 1], active=[0], failed={"1": "no reply within 9 s"}),
        record(2, [0], at_work=[1]),
        record(3, [0], at_work=[1], failed={"1": dropped}),
    ]
    trace = TRACES["run"](2, 0, file=write(lines(rounds)))
    assert trace.delay(1).tolist() == [0, 2]
    assert trace.round(1).completion.tolist() == [1, 1]


# Two replies end a round. That of client 1 to its first task comes before that of 2, and is refused; 0 does
# not reply in round 2 and is free in round 4; nobody is there in round 5; 3 is at work when the run ends.
EVENTS = [
    record(
        *(1, [0, 1, 2, 3]),
        members=[0, 1, 2, 3],
        round_ends=2,
        active=[0, 3],
        steps=[8, 2],
        virtual_seconds=2.5,
        replied=[[3, 1, 1.5], [0, 1, 2.5]],
    ),
    record(
        *(2, [0, 3]),
        active=[2],
        late=[{"client": 2, "task": 1, "lag": 1}],
        failed={"1": "weights are not finite"},
        at_work=[1, 2],
        virtual_seconds=5.0,
        replied=[[1, 1, 4.0], [2, 1, 5.0]],
    ),
    record(
        *(3, [1, 2]),
        active=[2, 3],
        late=[{"client": 3, "task": 2, "lag": 1}],
        failed={"0": "task of round 2: its node was restarted"},
        at_work=[0, 3],
        virtual_seconds=6.0,
        replied=[[2, 3, 5.5], [3, 2, 6.0]],
    ),
    record(4, [0], selected=[], at_work=[1], virtual_seconds=7.0, replied=[[1, 3, 7.0]], active=[1])
    | {"late": [{"client": 1, "task": 3, "lag": 1}]},
    record(5, [], virtual_seconds=67.0),
    record(6, [0, 3], active=[0], virtual_seconds=68.0, replied=[[0, 6, 68.0]]),
]


def test_a_run_in_event_time_is_replayed_in_event_time(write: Callable[..., str]) -> None:
    trace = TRACES["run"](4, 0, file=write(lines(EVENTS)), repeat=False)
    clock = make_clock(trace, 2)
    assert isinstance(clock, EventClock)
    for t, there in enumerate(EVENTS, 1):
        now = clock.round(t)
        assert np.flatnonzero(now.member & now.online).tolist() == there["available"]
        assert sorted(task.client for task in clock.tasks) == there.get("at_work", [])
        clock.give(np.array(there["selected"], np.intp))
        ended = clock.end()
        assert clock.seconds(t) == there["virtual_seconds"]
        late = {entry["client"] for entry in there.get("late", ())}
        refused = {int(client) for client in there["failed"]}
        counted = [[k.client, k.round, k.end / 1e6] for k in ended if k.replies]
        assert counted == [task for task in there.get("replied", ()) if task[0] not in refused]
        assert {task.client for task in ended if not task.replies} == refused
        assert late <= {client for client, *_ in counted}
    assert [(task.client, task.end > 68_000_000) for task in clock.tasks] == [(3, True)]
    assert not clock.is_over()
    clock.round(7)
    clock.end()
    assert clock.is_over()
    again = TRACES["run"](4, 0, file=write(lines(EVENTS)))
    assert (again.tasks(7, np.arange(4)).moment / 1e6).tolist() == [70.5, 72.0, 73.0, 69.5]
    # 1 and 2 were not asked in round 2: they would take as long as for their last task, a round more.
    assert again.tasks(2, np.array([1, 2])).moment.tolist() == [6_000_000, 6_000_000]


def test_rounds_that_replies_end_are_told_from_others(write: Callable[..., str]) -> None:
    by_rounds = TRACES["run"](6, 0, file=write(lines(ROUNDS)))
    with pytest.raises(ValueError, match="round-ends is 2, but that run was without round-ends"):
        make_clock(by_rounds, 2)
    in_event_time = TRACES["run"](4, 0, file=write(lines(EVENTS)))
    with pytest.raises(ValueError, match="round-ends is 1, but that run was round-ends=2"):
        make_clock(in_event_time, 1)
    assert in_event_time.delay(1).tolist() == [0, 0, 1, 0]  # by rounds, as any other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"available": None}, "'available' is None"),
        ({"available": [6]}, "client 6 does not exist, the clients are 0 to 5"),
        ({"late": [3]}, "'late' is"),
        ({"events": [event("arrival", -1)]}, "client -1 does not exist"),
        ({"planned": [8]}, "'active', 'planned' and 'steps' are not of the same length"),
        ({"steps": [8, 9]}, "9 steps of 8 were done"),
        ({"steps": [8, "x"]}, "'steps' is"),
        ({"failed": {"1": 3}}, "'failed' is"),
        ({"round": 3}, "round 3 follows round 1"),
    ],
)
def test_other_records_are_refused(write, change, message):
    good = [record(t, [0, 1], members=[0, 1]) for t in (1, 2)]
    with pytest.raises(ValueError, match=f"line 2.*{message}"):
        TRACES["run"](6, 0, file=write(lines([good[0], good[1] | change])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"virtual_seconds": None}, "round 2: 'virtual_seconds' is None"),
        ({"virtual_seconds": 1.0}, "round 2: 'virtual_seconds' is 1.0"),
        ({"replied": [[4, 1, 4.0]]}, r"'replied' has \[4, 1, 4.0\], not a client, a round and a moment"),
        ({"replied": [[1, 3, 4.0]]}, "round 2: 'replied' has"),
        ({"replied": [[1, 1, 5.5]]}, "round 2: 'replied' has"),
        ({"replied": [1]}, "line 2: 'replied' is"),
        ({"round_ends": "2"}, "line 2: 'round_ends' is '2'"),
    ],
)
def test_other_records_of_event_time_are_refused(write, change, message):
    with pytest.raises(ValueError, match=message):
        TRACES["run"](4, 0, file=write(lines([EVENTS[0], EVENTS[1] | change])))


def test_a_simulation_says_what_to_replay_instead(write: Callable[..., str]) -> None:
    simulated = {key: value for key, value in record(1, [0]).items() if key != "available"}
    with pytest.raises(ValueError, match=r"this is not a run on devices.*`trace` in its config\.toml"):
        TRACES["run"](6, 0, file=write(lines([simulated])))
    with pytest.raises(ValueError, match="line 1: not JSON"):
        TRACES["run"](6, 0, file=write("client,start,end\n"))
    with (
        pytest.warns(UserWarning, match="line 2: .* left out as torn"),
        pytest.raises(ValueError, match="no round found"),
    ):
        TRACES["run"](6, 0, file=write('{"round": 0}\n{"round": 1'))
