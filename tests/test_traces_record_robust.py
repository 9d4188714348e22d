"""The recorder under power cuts and disk errors, next to others, and on the command line."""

import importlib
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flower import free_ports
from recorders import ROOT, T0, Device, run, sessions, wait_for_lines

from traces.record import HEADER, Recorder, main
from traces.recorded.device_log import read_device_log

pytestmark = pytest.mark.filterwarnings("error:.*(left out as torn|overlaps)")


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
