"""The recorder: what it logs is what is replayed, whatever happens to the device."""

import importlib
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from flower import free_ports
from waiting import wait_until

from traces.record import HEADER, Recorder, main
from traces.recorded.device_log import Recorded, read_device_log

ROOT = Path(__file__).parents[1]
T0 = 1_700_000_000.0


class Device:
    """The two clocks of a device: the system's, which can be set, and a monotonic one."""

    def __init__(self, shows: float = T0) -> None:
        self.shows, self.up = shows, 12.5

    def recorder(self, path: Path, client: int = 0) -> Recorder:
        return Recorder(path, client, clock=lambda: self.shows, stopwatch=lambda: self.up)

    def wait(self, seconds: float) -> None:
        self.shows += seconds
        self.up += seconds

    def online(self, path: Path, *waits: float, client: int = 0) -> Recorder:
        """Return a recorder that has logged time online after each of some waits."""
        recorder = self.recorder(path, client)
        recorder.online()
        for seconds in waits:
            self.wait(seconds)
            recorder.online()
        return recorder


def sessions(path: Path, num_clients: int = 1) -> list[list[tuple[float, float]]]:
    """Each client's intervals online, in seconds since T0, with adjacent ones joined."""
    log = read_device_log("test", str(path), num_clients)
    found = []
    for low, high in zip(log.first[:-1], log.first[1:], strict=True):
        own: list[tuple[float, float]] = []
        for start, leave in zip(log.start[low:high] / 1e6 - T0, log.leave[low:high] / 1e6 - T0, strict=True):
            if not own or own[-1][1] < start:
                own.append((start, leave))
        found.append(own)
    return found


def run(*arguments: Any, module: tuple[Any, ...] = ("-m", "traces.record")) -> subprocess.Popen:
    command = [sys.executable, *module, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for_lines(path: Path, count: int, process: subprocess.Popen) -> None:
    wait_until(lambda: path.is_file() and path.read_bytes().count(b"\n") >= count, process)


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


# Power cuts, disk errors, others beside it, and the command line


def test_log_torn_at_any_byte(tmp_path):
    path, device = tmp_path / "log.csv", Device()
    recorder = device.online(path, 60)
    device.wait(5)
    recorder.worked(steps=2, seconds=4.0)
    content = path.read_bytes()
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        Device(T0 + 100).online(path, 10)
        whole = content[: content.rfind(b"\n", 0, cut) + 1]
        written = path.read_bytes()
        assert {*whole.splitlines()} <= {*written.splitlines()}
        assert (b"# torn line, left out: " in written) == (len(whole) != cut)
        assert sessions(path)[0][-1] == (100, 110)


def test_log_that_ends_in_zeros(tmp_path):
    """Some file systems leave this of a line that was not yet on disk."""
    path = tmp_path / "log.csv"
    path.write_bytes(HEADER + b"0,1700000000,1700000010,2,\n" + b"\0" * 40)
    device = Device(T0 + 20)
    device.recorder(path).worked(steps=1, seconds=5.0)
    assert sessions(path) == [[(0, 10), (15, 20)]]


WRITER = """
import sys, time
from traces.record import Recorder
path, client, count, clock = sys.argv[1:]
ticks = iter(range(1_700_000_000, 2**40))
recorder = Recorder(path, int(client), clock=time.time if clock == "real" else lambda: float(next(ticks)))
for _ in range(int(count)):
    recorder.worked(1, 1.0, 10**9)
"""


def write(path: Path, client: int, count: int, clock: str) -> subprocess.Popen:
    return run(path, client, count, clock, module=("-c", WRITER))


def test_several_recorders_at_once(tmp_path):
    """Also of one client and of the same seconds: each writes what the others have not."""
    path = tmp_path / "log.csv"
    writers = [write(path, client, 200, "real") for client in (0, 1, 1, 1)]
    assert [w.communicate() for w in writers] == [("", "")] * 4
    lines = path.read_text().splitlines()
    assert lines.count(HEADER.decode().strip()) == 1
    assert [sum(line.startswith(f"# client {k}: 1 steps") for line in lines) for k in (0, 1)] == [200, 600]
    assert not [line for line in lines if "torn" in line]
    assert all(own for own in sessions(path, 2))  # none overlaps another


def stop(recorder: subprocess.Popen, number: int = signal.SIGTERM) -> str:
    """Stop a recorder; return what it reported."""
    recorder.send_signal(number)
    _, reported = recorder.communicate()
    assert recorder.returncode == 0
    return reported


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_line_until_it_is_stopped(tmp_path, number):
    """Run as a single file, without packages."""
    path, copy = tmp_path / "log.csv", tmp_path / "record.py"
    copy.write_bytes((ROOT / "traces" / "record.py").read_bytes())
    begin = time.time()
    recorder = run("--client=3", f"--file={path}", "--every=0.1", module=("-I", "-S", copy))
    wait_for_lines(path, 4, recorder)
    assert stop(recorder, number) == ""
    ((start, end),) = sessions(path, 4)[3]
    assert begin <= start + T0 < end + T0 <= time.time()
    rows = path.read_text().splitlines()[1:]
    assert all(re.fullmatch(r"3,[0-9]+[.][0-9]{3},[0-9]+[.][0-9]{3},,", row) for row in rows)


def test_command_line_while_a_server_is_reachable(tmp_path):
    path = tmp_path / "log.csv"
    (port,) = free_ports(1)
    recorder = run("--client=0", f"--file={path}", "--every=0.05", f"--server=127.0.0.1:{port}")
    message = f"record: 127.0.0.1:{port} is unreachable, the device counts as offline\n"
    assert recorder.stderr.readline() == message
    assert path.read_bytes() == HEADER
    with socket.create_server(("127.0.0.1", port)):
        wait_for_lines(path, 4, recorder)
    assert recorder.stderr.readline() == message
    assert stop(recorder) == ""
    assert len(sessions(path)[0]) == 1


def test_log_that_is_temporarily_not_writable(tmp_path):
    path = tmp_path / "log.csv"
    recorder = run("--client=0", f"--file={path}", "--every=0.05")
    wait_for_lines(path, 3, recorder)
    path.rename(tmp_path / "old.csv")
    path.mkdir()  # a folder of the same name
    assert "Is a directory" in recorder.stderr.readline()
    path.rmdir()
    wait_for_lines(path, 3, recorder)
    stop(recorder)
    ((start, _),) = sessions(path)[0]
    ((_, end),) = sessions(tmp_path / "old.csv")[0]
    assert start == pytest.approx(end, abs=0.005)  # what was kept in memory is written


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("client,start,end\n", "line 1: expected the header client,start,end,steps_per_second,up_bytes"),
        ('{"client": 0}\n', "line 1: expected the header"),
        (HEADER.decode() + "\n# x\n0,1,2\n", "line 4: not a line of a device log, repair it"),
        (HEADER.decode() + "0,1,nan,,\n", "line 2: not a line of a device log"),
        (HEADER.decode() + "\0\0\n", "line 2: not a line of a device log"),
    ],
)
def test_other_files(tmp_path, content, message):
    path = tmp_path / "log.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as refusal:
        Recorder(path, 0)
    assert str(path) in str(refusal.value)
    assert path.read_text() == content


def test_invalid_arguments(tmp_path, capsys):
    with pytest.raises(ValueError, match="client is -1, give a whole number, 0 or more"):
        Recorder(tmp_path / "log.csv", -1)
    assert main(["--client=0", f"--file={tmp_path}/none/log.csv"]) == 1
    assert "No such file" in capsys.readouterr().err
    for wrong in ("--every=0", "--every=nan", "--server=here"):
        with pytest.raises(SystemExit):
            main(["--client=0", f"--file={tmp_path}/log.csv", wrong])


def test_works_without_locks_as_on_windows(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.delitem(sys.modules, "traces.record")
    recorder = importlib.import_module("traces.record").Recorder(tmp_path / "log.csv", 0)
    recorder.worked(steps=3, seconds=1.5)
    assert read_device_log("test", str(tmp_path / "log.csv"), 1).speed.tolist() == [2]
