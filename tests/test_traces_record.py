"""The recorder: what it writes is what is replayed, whatever happens to the device meanwhile."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from traces.clock import Recorded
from traces.device_log import read_device_log
from traces.record import HEADER, Recorder, main

ROOT = Path(__file__).parents[1]
T0 = 1_700_000_000.0

pytestmark = pytest.mark.filterwarnings("error:.*left out as torn")


class Device:
    """The two clocks of a device: one that can be set, and one that cannot."""

    def __init__(self, shows: float = T0) -> None:
        self.shows, self.up = shows, 12.5

    def recorder(self, path: Path, client: int = 0) -> Recorder:
        return Recorder(path, client, clock=lambda: self.shows, stopwatch=lambda: self.up)

    def wait(self, seconds: float) -> None:
        self.shows += seconds
        self.up += seconds


def sessions(path: Path, num_clients: int = 1) -> list[list[tuple[float, float]]]:
    """Each client's stretches of time online, since T0, with those that touch put together."""
    log = read_device_log("test", str(path), num_clients)
    found = []
    for low, high in zip(log.first[:-1], log.first[1:], strict=True):
        own: list[tuple[float, float]] = []
        for start, leave in zip(log.start[low:high] - T0, log.leave[low:high] - T0, strict=True):
            if not own or own[-1][1] < start:
                own.append((start, leave))
        found.append(own)
    return found


def run(*arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "traces.record", *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.PIPE, **options)


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


# What is recorded is replayed


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
    assert lines[-1] == f"0,{T0 + 410:.3f},{T0 + 440:.3f},0.1,300"  # the speed measured last stays

    trace = Recorded(2, 0, file=str(path), round_seconds=110.0, local_steps=10)
    rounds = [trace.round(t) for t in (1, 2, 3, 4)]
    assert [r.online.tolist() for r in rounds] == [[True, True], [True, True], [True, True], [True, False]]
    assert rounds[3].completion.tolist() == [1.0, 0.0]  # 110 s at 0.2 steps a second, all of 10
    late = Recorded(2, 0, file=str(path), round_seconds=110.0, local_steps=10, begin=355.0)
    assert late.round(1).completion[0] == pytest.approx(0.8)  # 85 s at 0.1


def test_work_between_two_lines_of_another_recorder(tmp_path):
    """A recorder beside the training and the training itself write sessions that do not overlap."""
    path, device = tmp_path / "log.csv", Device()
    beside = device.recorder(path)
    beside.online()
    device.wait(60)
    beside.online()
    device.wait(60)
    beside.online()  # in the middle of a piece of work of 70 s
    device.wait(30)
    device.recorder(path).worked(steps=7, seconds=70.0)
    device.wait(20)
    device.recorder(path).worked(steps=1, seconds=2.0)  # all of it between two lines
    device.wait(10)
    beside.online()
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
    recorder = device.recorder(path)
    recorder.online()
    device.wait(10)
    recorder.online()
    device.wait(0.5)
    recorder = device.recorder(path)  # started anew at once
    recorder.online()
    device.wait(10)
    recorder.online()
    recorder.offline()
    device.wait(100)
    recorder.online()
    device.wait(10)
    recorder.online()
    assert sessions(path) == [[(0, 20.5), (120.5, 130.5)]]


def test_several_devices_in_a_folder(tmp_path):
    for client in range(3):
        device = Device(T0 + 100 * client)
        recorder = device.recorder(tmp_path, client)
        recorder.online()
        device.wait(50)
        recorder.online()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"client-{k}.csv" for k in range(3)]
    assert sessions(tmp_path, 4) == [[(0, 50)], [(100, 150)], [(200, 250)], []]
    trace = Recorded(3, 0, file=str(tmp_path), round_seconds=100.0)
    assert [trace.round(t).online.tolist() for t in (1, 2)] == [[True, False, False], [False, True, False]]


def test_client_app_writes_down_its_work(tmp_path, caplog):
    import numpy as np
    from flwr.common import Code, FitIns, ndarrays_to_parameters

    from clients.app import FlexibleClient
    from clients.stores import FileStore
    from config import Settings

    settings = Settings(trace="always", num_clients=4, model="logistic")
    weights = ndarrays_to_parameters([np.zeros(650, np.float32)])
    config = {"round": 1, "model-arrays": 1, "local-steps": 7, "batch-size": 5, "learning-rate": 0.1}
    store = FileStore(tmp_path, 1, 2)
    client = FlexibleClient(settings, 2, store, record=str(tmp_path / "log.csv"))
    answers = [client.fit(FitIns(weights, config)) for _ in range(2)]
    size = sum(map(len, answers[0].parameters.tensors))
    notes = [line for line in (tmp_path / "log.csv").read_text().splitlines() if line[0] == "#"]
    assert [re.sub(r"[0-9.]+ s,", "S,", note) for note in notes] == [
        f"# client 2: 7 steps in S, {size} bytes up"
    ] * 2
    log = read_device_log("test", str(tmp_path / "log.csv"), 4)
    assert log.first.tolist() == [0, 0, 0, 2, 2]
    assert (log.speed > 1).all()

    nowhere = FlexibleClient(settings, 2, store, record=str(tmp_path / "none" / "log.csv"))
    assert nowhere.fit(FitIns(weights, config)).status.code == Code.OK  # the work counts all the same
    assert "not recorded: [Errno 2] No such file" in caplog.text


# Clocks that are wrong


def test_clock_of_1970_until_the_time_is_known(tmp_path):
    path, device = tmp_path / "log.csv", Device(shows=30.0)
    recorder = device.recorder(path)
    recorder.online()
    for _ in range(2):
        device.wait(60)
        recorder.online()
        assert recorder.held_back == "the clock shows a time before 2020-01-01 00:00:00 UTC"
    recorder.worked(steps=3, seconds=60.0)  # when that was is not known; that it was is
    assert path.read_text().splitlines()[1:] == ["# client 0: 3 steps in 60.000 s, 0 bytes up"]
    device.wait(20)
    device.shows = T0 + 500  # the time has come over the network
    recorder.online()
    assert recorder.held_back == ""
    assert sessions(path) == [[(360, 500)]]


def test_clock_behind_the_log_after_a_power_cut(tmp_path):
    """A device that goes on from the time it saved an hour ago, until it hears the right one."""
    path, device = tmp_path / "log.csv", Device(T0)
    recorder = device.recorder(path)
    recorder.online()
    device.wait(100)
    recorder.online()
    device = Device(shows=T0 - 3500)  # the power was cut
    recorder = device.recorder(path)
    recorder.online()
    device.wait(60)
    recorder.online()
    assert recorder.held_back == "the clock shows a time before 2023-11-14 22:15:00 UTC"
    device.wait(10)
    device.shows = T0 + 400
    recorder.online()
    assert sessions(path) == [[(0, 100), (330, 400)]]


def test_clock_set_back_and_forth_while_online(tmp_path):
    path, device = tmp_path / "log.csv", Device()
    recorder = device.recorder(path)
    recorder.online()
    device.wait(100)
    recorder.online()
    device.wait(60)
    device.shows -= 3600
    recorder.online()
    assert recorder.held_back
    device.wait(3640)
    recorder.online()  # it shows 200; all of the time online lies before, up to what is written
    assert sessions(path) == [[(0, 200)]]
    device.wait(60)
    device.shows += 1000  # or the device slept
    recorder.online()
    device.wait(60)
    device.shows -= 0.7  # a small correction is no gap
    recorder.online()
    assert sessions(path) == [[(0, 200), (1200, pytest.approx(1319.3))]]


# Power cuts


def test_log_torn_at_any_byte(tmp_path):
    path, device = tmp_path / "log.csv", Device()
    recorder = device.recorder(path)
    recorder.online()
    device.wait(60)
    recorder.online()
    device.wait(5)
    recorder.worked(steps=2, seconds=4.0)
    content = path.read_bytes()
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        device = Device(T0 + 100)
        again = device.recorder(path)
        again.online()
        device.wait(10)
        again.online()
        whole = content[: content.rfind(b"\n", 0, cut) + 1]
        kept = [line for line in whole.splitlines() if line not in (b"", HEADER.strip())]
        written = path.read_bytes()
        assert all(line in written.splitlines() for line in kept)
        assert (b"# torn line, left out: " in written) == (len(whole) != cut)
        assert sessions(path)[0][-1] == (100, 110)


def test_log_that_ends_in_zeros(tmp_path):
    """What some file systems leave of a line that was not yet on the disk."""
    path = tmp_path / "log.csv"
    path.write_bytes(HEADER + b"0,1700000000,1700000010,2,\n" + b"\0" * 40)
    device = Device(T0 + 20)
    device.recorder(path).worked(steps=1, seconds=5.0)
    assert sessions(path) == [[(0, 10), (15, 20)]]


WRITER = """
import sys
from traces.record import Recorder
clock = iter(range(1_700_000_000, 2**40))
recorder = Recorder(sys.argv[1], int(sys.argv[2]), clock=lambda: float(next(clock)))
print("ready", flush=True)
count = int(sys.argv[3])
while count:
    recorder.worked(1, 1.0, 10**9)
    count -= 1
"""


def write(path: Path, client: int, count: int) -> subprocess.Popen:
    arguments = [sys.executable, "-c", WRITER, str(path), str(client), str(count)]
    return subprocess.Popen(arguments, cwd=ROOT, text=True, stdout=subprocess.PIPE)


def test_killed_in_the_middle_of_writing(tmp_path):
    path = tmp_path / "log.csv"
    lines = 0
    for attempt in range(4):
        writer = write(path, attempt, -1)
        assert writer.stdout.readline() == "ready\n"
        wait_for_lines(path, lines + 40)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        lines = path.read_bytes().count(b"\n")
    Recorder(path, 9)  # mends the last line
    found = sessions(path, 4)
    assert [len(own) for own in found] == [1, 1, 1, 1]
    assert all(own[0][1] > 15 for own in found)


def test_several_recorders_at_a_time(tmp_path):
    """Of one client, too, and all of the same seconds: each writes what the others have not."""
    path = tmp_path / "log.csv"
    code = WRITER.replace("clock=lambda: float(next(clock))", "clock=time.time").replace(
        "sys\n", "sys, time\n"
    )
    arguments = [sys.executable, "-c", code, str(path)]
    options = {"cwd": ROOT, "text": True, "stdout": subprocess.PIPE}
    writers = [subprocess.Popen([*arguments, client, "200"], **options) for client in "0111"]
    assert [w.communicate(timeout=60)[0] for w in writers] == ["ready\n"] * 4
    assert [w.returncode for w in writers] == [0] * 4
    lines = path.read_text().splitlines()
    assert lines.count(HEADER.decode().strip()) == 1
    assert [sum(line.startswith(f"# client {k}: 1 steps") for line in lines) for k in (0, 1)] == [200, 600]
    assert not [line for line in lines if "torn" in line]
    for own in sessions(path, 2):  # the reader would refuse any that overlap
        assert own[0][1] - own[0][0] > 1


# Command line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_line_until_it_is_stopped(tmp_path, number):
    path = tmp_path / "log.csv"
    begin = time.time()
    recorder = run("--client=3", f"--file={path}", "--every=0.1")
    wait_for_lines(path, 4)
    recorder.send_signal(number)
    assert recorder.communicate(timeout=20) == (None, "")
    assert recorder.returncode == 0
    ((start, end),) = sessions(path, 4)[3]
    assert begin <= start + T0 < end + T0 <= time.time()
    rows = path.read_text().splitlines()[1:]
    assert len(rows) >= 3
    assert all(re.fullmatch(r"3,[0-9]+[.][0-9]{3},[0-9]+[.][0-9]{3},,", row) for row in rows)


def test_command_line_while_a_server_answers(tmp_path, free_ports):
    import socket

    path = tmp_path / "log.csv"
    (port,) = free_ports(1)
    recorder = run("--client=0", f"--file={path}", "--every=0.05", f"--server=127.0.0.1:{port}")
    wait_for_lines(path, 1)
    time.sleep(0.3)
    assert path.read_bytes() == HEADER
    with socket.create_server(("127.0.0.1", port)):
        wait_for_lines(path, 4)
    time.sleep(0.3)
    recorder.terminate()
    _, said = recorder.communicate(timeout=20)
    message = f"record: 127.0.0.1:{port} cannot be reached, the device counts as offline\n"
    assert said == message * 2
    assert len(sessions(path)[0]) == 1


def test_log_that_cannot_be_written_for_a_while(tmp_path):
    path = tmp_path / "log.csv"
    recorder = run("--client=0", f"--file={path}", "--every=0.05")
    wait_for_lines(path, 3)
    path.rename(tmp_path / "old.csv")
    path.mkdir()  # a folder is in the way
    assert "Is a directory" in recorder.stderr.readline()
    path.rmdir()
    wait_for_lines(path, 3)
    recorder.terminate()
    recorder.communicate(timeout=20)
    ((start, _),) = sessions(path)[0]
    ((_, end),) = sessions(tmp_path / "old.csv")[0]
    assert start == pytest.approx(end, abs=0.005)  # what was held in memory is there


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("client,start,end\n", "line 1: the header should be client,start,end,steps_per_second,up_bytes"),
        ('{"client": 0}\n', "line 1: the header should be"),
        (HEADER.decode() + "\n# x\n0,1,2\n", "line 4: no line of a device log, repair it"),
        (HEADER.decode() + "0,1,nan,,\n", "line 2: no line of a device log"),
        (HEADER.decode() + "\0\0\n", "line 2: no line of a device log"),
    ],
)
def test_refuses_other_files(tmp_path, content, message):
    path = tmp_path / "log.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as refusal:
        Recorder(path, 0)
    assert str(path) in str(refusal.value)
    assert path.read_text() == content


def test_refuses_arguments(tmp_path, capsys):
    with pytest.raises(ValueError, match="client is -1, give a whole number from 0 on"):
        Recorder(tmp_path / "log.csv", -1)
    assert main(["--client=0", f"--file={tmp_path}/none/log.csv"]) == 1
    assert "No such file" in capsys.readouterr().err
    for wrong in ("--every=0", "--every=nan", "--server=here"):
        with pytest.raises(SystemExit):
            main(["--client=0", f"--file={tmp_path}/log.csv", wrong])


def test_runs_alone_without_anything_installed(tmp_path):
    copy = tmp_path / "record.py"
    copy.write_bytes((ROOT / "traces" / "record.py").read_bytes())
    recorder = subprocess.Popen(
        [sys.executable, "-I", "-S", copy, "--client=0", f"--file={tmp_path / 'log.csv'}", "--every=0.05"]
    )
    wait_for_lines(tmp_path / "log.csv", 3)
    recorder.terminate()
    assert recorder.wait(20) == 0
