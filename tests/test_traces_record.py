"""The recorder: what it logs is what is replayed, whatever happens to the device."""

import re

import pytest
from recorders import T0, Device, sessions

from traces.recorded.device_log import Recorded, read_device_log

pytestmark = pytest.mark.filterwarnings("error:.*(left out as torn|overlaps)")


def test_record_and_replay(tmp_path):
    path, device = tmp_path / "log.csv", Device()
    first, second = device.recorder(path, 0), device.recorder(path, 1)
    for recorder in (first, second):
        recorder.online()
    for _ in range(5):
        device.wait(60)
        first.online()
        second.online()
    second.offline()
    device.wait(20)
    first.worked(steps=4, seconds=20.0, up_bytes=1000, planned=10)
    device.wait(90)
    first.worked(steps=5, seconds=50.0, up_bytes=3000, up_seconds=10.0)
    device.wait(30)
    first.online()
    assert sessions(path, 2) == [[(0, 440)], [(0, 300)]]
    lines = path.read_text().splitlines()
    assert "# client 0: 4 of 10 steps in 20.000 s, 1000 bytes up" in lines
    assert "# client 0: 5 steps in 50.000 s, 3000 bytes up in 10.000 s" in lines
    assert lines[-1] == f"0,{T0 + 410:.3f},{T0 + 440:.3f},0.1,300"  # repeats the speed measured last

    trace = Recorded(2, 0, file=str(path), round_seconds=110.0, local_steps=10)
    rounds = [trace.round(t) for t in (1, 2, 3, 4)]
    assert [r.online.tolist() for r in rounds] == [[True, True], [True, True], [True, True], [True, False]]
    assert rounds[3].completion.tolist() == [1.0, 0.0]  # 110 s at 0.2 steps per second, all of 10
    options = {"file": str(path), "round_seconds": 110.0, "local_steps": 10, "begin": 355.0}
    once = Recorded(2, 0, repeat=False, **options)
    assert once.round(1).completion[0] == pytest.approx(0.8)  # 85 s at 0.1 until the recording ends
    again = Recorded(2, 0, **options)
    assert again.round(1).completion[0] == 1  # online throughout: 110 s


@pytest.mark.parametrize("back", [0.0, 0.3])
def test_the_clock_may_stand_still_or_step_back_a_little(tmp_path, back):
    path, device = tmp_path / "log.csv", Device()
    recorder = device.online(path, 60)
    device.shows -= back
    for wait in (0, 60):
        device.wait(wait)
        recorder.online()
        assert recorder.held_back == ""
    assert sessions(path) == [[(0, pytest.approx(120 - back))]]


def test_work_of_less_than_a_millisecond_is_a_session_of_one(tmp_path):
    """A session of no length could not be read."""
    path, device = tmp_path / "log.csv", Device()
    recorder = device.recorder(path)
    for _ in range(2):
        device.wait(60)
        recorder.worked(steps=1, seconds=0.0001)
    assert sessions(path) == [[pytest.approx((59.999, 60)), pytest.approx((119.999, 120))]]


def test_work_between_two_lines_of_another_recorder(tmp_path):
    """A recorder and a training program on one device write sessions that do not overlap."""
    path, device = tmp_path / "log.csv", Device()
    other = device.recorder(path)
    other.online()
    device.wait(60)
    other.online()
    device.wait(60)
    other.online()  # during a piece of work of 70 s
    device.wait(30)
    device.recorder(path).worked(steps=7, seconds=70.0)
    device.wait(20)
    device.recorder(path).worked(steps=1, seconds=2.0)  # all of it between two lines
    device.wait(10)
    other.online()
    rows = [line.split(",")[1:4] for line in path.read_text().splitlines()[1:] if line[0] != "#"]
    assert [[float(a) - T0, float(b) - T0, speed] for a, b, speed in rows] == [
        [0, 60, ""],
        [60, 120, ""],
        [120, 150, "0.1"],
        [168, 170, "0.5"],
        [150, 168, "0.5"],
        [170, 180, "0.5"],
    ]
    assert sessions(path) == [[(0, 180)]]


def test_gaps(tmp_path):
    path, device = tmp_path / "log.csv", Device()
    device.online(path, 10)
    device.wait(0.5)
    recorder = device.online(path, 10)  # restarted at once
    recorder.offline()
    device.wait(100)
    recorder.online()
    device.wait(10)
    recorder.online()
    assert sessions(path) == [[(0, 20.5), (120.5, 130.5)]]


def test_several_devices_in_a_folder(tmp_path):
    for client in range(3):
        Device(T0 + 100 * client).online(tmp_path, 50, client=client)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"client-{k}.csv" for k in range(3)]
    assert sessions(tmp_path, 4) == [[(0, 50)], [(100, 150)], [(200, 250)], []]


def test_client_app_logs_its_work(tmp_path, caplog):
    import numpy as np
    from flwr.common import Code, FitIns, ndarrays_to_parameters

    from clients.device.node import Node
    from clients.memory.stores import FileStore
    from clients.torch_client import TorchClient
    from fedtide.config import Settings

    settings = Settings(trace="always", num_clients=4, model="logistic")
    weights = ndarrays_to_parameters([np.zeros(650, np.float32)])
    config = {"round": 1, "model-arrays": 1, "local-steps": 7, "batch-size": 5, "learning-rate": 0.1}
    store = FileStore(tmp_path, 1, 2)
    client = TorchClient(settings, Node(2, store, str(tmp_path / "log.csv")))
    answers = [client.fit(FitIns(weights, config)) for _ in range(2)]
    size = sum(map(len, answers[0].parameters.tensors))
    notes = [line for line in (tmp_path / "log.csv").read_text().splitlines() if line[0] == "#"]
    assert [re.sub(r"[0-9.]+ s,", "S,", note) for note in notes] == [
        f"# client 2: 7 steps in S, {size} bytes up"
    ] * 2
    log = read_device_log("test", str(tmp_path / "log.csv"), 4)
    assert log.first.tolist() == [0, 0, 0, *[len(log.speed)] * 2]  # within one millisecond, one session
    assert len(log.speed) > 0
    assert (log.speed > 0).all()

    nowhere = TorchClient(settings, Node(2, store, str(tmp_path / "none" / "log.csv")))
    assert nowhere.fit(FitIns(weights, config)).status.code == Code.OK  # the work still counts
    assert "not recorded: [Errno 2] No such file" in caplog.text


def test_clock_of_1970_until_it_is_set(tmp_path):
    path, device = tmp_path / "log.csv", Device(shows=30.0)
    recorder = device.online(path, 60, 60)
    assert recorder.held_back == "the clock shows a time before 2020-01-01 00:00:00 UTC"
    recorder.worked(steps=3, seconds=60.0)  # its time is unknown, only a comment remains
    assert path.read_text().splitlines()[1:] == ["# client 0: 3 steps in 60.000 s, 0 bytes up"]
    device.wait(20)
    device.shows = T0 + 500  # the clock has been set over the network
    recorder.online()
    assert recorder.held_back == ""
    assert sessions(path) == [[(360, 500)]]


def test_clock_behind_the_log_after_a_power_cut(tmp_path):
    """A device that restarts with the time it saved an hour ago, until its clock is set."""
    path = tmp_path / "log.csv"
    Device(T0).online(path, 100)
    device = Device(shows=T0 - 3500)  # the power was cut
    recorder = device.online(path, 60)
    assert recorder.held_back == "the clock shows a time before 2023-11-14 22:15:00 UTC"
    device.wait(10)
    device.shows = T0 + 400
    recorder.online()
    assert sessions(path) == [[(0, 100), (330, 400)]]


def test_clock_set_back_and_forth_while_online(tmp_path):
    path, device = tmp_path / "log.csv", Device()
    recorder = device.online(path, 100)
    for wait, step, held_back, expected in (
        (60, -3600, True, [(0, 100)]),
        (3640, 0, False, [(0, 200)]),  # it shows 200 s: all before was online, back to the last entry
        (60, 1000, False, [(0, 200), (1200, 1260)]),  # or the device was asleep
        (60, -0.7, False, [(0, 200), (1200, pytest.approx(1319.3))]),  # a small correction leaves no gap
    ):
        device.wait(wait)
        device.shows += step
        recorder.online()
        assert bool(recorder.held_back) == held_back
        assert sessions(path) == [expected]
