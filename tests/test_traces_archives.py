"""FLHetBench's cases and the Failure Trace Archive: who is online when, and how fast transfers are."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import scripts

from fedtide.base.errors import SettingsError
from traces import TRACES
from traces.sessions import Online

TIMERS = {
    "a": {"trace_start": 1013.0, "trace_end": 1113.0, "ready_time": [[1020.0, 1030.0], [1095.0, 1110.0]]},
    "b": {"trace_start": 5.0, "trace_end": 55.0, "ready_time": [[6.0, 6.0], [40.0, 55.0]]},
    "never": {"trace_start": None, "trace_end": None, "ready_time": []},
}
STATES = ["a", "never", "b", "a"]
DEVICES = [[8.0, 80.0], [8.0], [800.0], [0.8, 8.0, 80.0]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like FLHetBench's."""
    cases = {"device": [{"tcp_speed_results": speeds} for speeds in DEVICES], "state": STATES}
    contents = {f"bench/cached_sample_data/{kind}/case3.json": case for kind, case in cases.items()}
    for name, content in {**contents, "data/cached_timers.json": TIMERS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def bench(folder: Path, num_clients: int = 4, seed: int = 0, **options: float) -> object:
    return TRACES["flhetbench"](num_clients, seed, file=str(folder), device=3, state=3, **options)


def test_phones_are_online_as_in_flhetbench(folder: Path) -> None:
    """Recordings start over from its time 0 on, at which no recording began."""
    trace = bench(folder)
    for second in range(0, 400, 3):
        expected = []
        for name in STATES:
            phone = TIMERS[name]
            first = phone["trace_start"] or 0.0
            now = (second - first) % ((phone["trace_end"] or 1.0) - first) + first
            expected.append(any(start <= now < end for start, end in phone["ready_time"]))
        assert trace.is_online(second * 10**6).tolist() == expected, second


def test_transfers_take_one_of_the_measurements(folder: Path) -> None:
    down, up = (bench(folder, **{f"{way}load_bytes": 1000.0}) for way in ("down", "up"))
    clients = np.array([0, 2, 3])
    there = Online(clients, np.zeros(3, int), np.zeros(3, int))
    found = [{}, {}, {}]
    for t in range(1, 100):
        for trace in (down, up):
            for seconds, client in zip(trace.rates(t, there)[1].tolist(), found, strict=True):
                client[round(seconds, 9)] = client.get(round(seconds, 9), 0) + 1
    assert [sorted(client) for client in found] == [[0.1, 1], [0.01], [0.1, 1, 10]]
    assert min(found[2].values()) > 40  # of 198
    both = bench(folder, download_bytes=1000.0, upload_bytes=1000.0).rates(5, there)[1]
    assert both.tolist() == (down.rates(5, there)[1] + up.rates(5, there)[1]).tolist()


def test_metrics_of_heterogeneity_by_hand() -> None:
    """All ten of ten clients are asked in each round: nothing is left to chance."""
    script = runpy.run_path(str(scripts.ROOT / "experiments" / "heterogeneity.py"))
    trace = TRACES["sessions"](10, 0, kind="always")

    def rounds(*seconds: float) -> object:
        times = np.resize(seconds, 10)
        return script["Rounds"](trace, lambda t, there: times[there.client], 10, 0)

    assert script["in_time"](rounds(120)) == 1
    half = np.log1p(3000 * 5) / np.log1p(3000 * 10)  # of the clients are in time
    assert script["in_time"](rounds(5, 121)) == pytest.approx(half)
    assert script["until_done"](rounds(0)) == 1
    assert script["until_done"](rounds(10, 10, 10, 10, 1000)) == pytest.approx((20 + 208) / 20)  # of 80 %


def test_what_is_missing_is_said(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"case3.json: 4 clients, set --num-clients to at most so many"):
        bench(folder, num_clients=5)
    with pytest.raises(SettingsError, match="trace flhetbench: no file is given"):
        TRACES["flhetbench"](4, 0)
    with pytest.raises(SettingsError, match=r"case1.json cannot be read: No such file"):
        TRACES["flhetbench"](4, 0, file=str(folder))
    case = folder / "bench/cached_sample_data/device/case3.json"
    for content, says in (({}, "not a list"), ([{}] * 4, "device 0: no tcp_speed_results")):
        case.write_text(json.dumps(content))
        with pytest.raises(SettingsError, match=says):
            bench(folder)


def test_nodes_of_the_failure_trace_archive(write) -> None:
    """Each recording goes from the first to the last time of its node, and starts over at its own end."""
    events = [(7, 1, 100, 160), (7, 0, 160, 200), (8, 0, 110, 120), (8, 1, 120, 170), (9, 2, 100, 300)]
    lines = [f"0\t1\t{node}\t1\tn {node}\t{kind}\t{start}\t{end}\t0\n" for node, kind, start, end in events]
    trace = TRACES["fta"](3, 0, file=write("# header\n" + "".join(lines)))
    _, device = trace.read()
    online = {
        node: [int(trace.is_online(second * 10**6)[device.tolist().index(d)]) for second in range(5, 220, 10)]
        for d, node in enumerate((7, 8, 9))
    }
    assert online[7] == ([1] * 6 + [0] * 4) * 2 + [1] * 2
    assert online[8] == [0, 0] + [1] * 5 + ([0] + [1] * 5) * 2 + [0, 1, 1]
    assert online[9] == [0] * 22
    trace = TRACES["fta"](1, 0, file=trace.file, stratum="rarest")
    assert trace.read()[1].tolist() == [0]
