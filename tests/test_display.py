"""What is printed: a display that fails, blocks or goes away ends no run, and lost output is an error."""

import fcntl
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from killed import saved_rounds, start
from waiting import PATIENCE, wait_until

import sim
from fedtide.base import display
from fedtide.base.display import OutputLost, Stream

ROOT = Path(__file__).parents[1]
F_GETPIPE_SZ = 1032
SMALL = [
    "--model=logistic",
    "--num-clients=4",
    "--local-steps=2",
    "--trace=always",
    "--engine=inline",
    "--no-report",
]

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's devices")


def on(path: str, encoding: str, arguments: list[str]) -> None:
    """Run the command line with a terminal, a named pipe or a file as its output.

    A terminal that is opened for reading as well hangs up when it is closed.
    """
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for number in (1, 2):
        os.dup2(os.open(path, os.O_RDWR if "--hang-up" in arguments else os.O_WRONLY), number)
    sys.stdout, sys.stderr = (open(number, "w", encoding=encoding) for number in (1, 2))  # noqa: SIM115
    sys.exit(sim.main([word for word in arguments if word != "--hang-up"]))


def code_of(process: Any) -> int:
    process.join(PATIENCE)
    return int(process.exitcode)


def summary_in(folder: Path) -> dict[str, Any]:
    (run,) = folder.glob("*/summary.json")
    assert (run.parent / "weights.npz").exists()
    found: dict[str, Any] = json.loads(run.read_text())
    return found


class Terminal:
    """A terminal that reads in a thread until it is closed."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.path, self.shown = os.ttyname(slave), b""
        self._slave = slave

    def close_when(self, text: bytes, process: Any) -> None:
        """Close it when a text was shown."""
        os.set_blocking(self.master, False)

        def there() -> bool:
            while True:
                try:
                    self.shown += os.read(self.master, 1 << 16)
                except (BlockingIOError, OSError):
                    return text in self.shown or not process.is_alive()

        wait_until(there)
        assert process.is_alive(), self.shown
        os.close(self._slave)
        os.close(self.master)


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_hang_up_ends_a_run_as_documented(tmp_path: Path, engine: str) -> None:
    terminal = Terminal()
    arguments = [*SMALL, "--hang-up", f"--engine={engine}", "--num-workers=1", "--num-rounds=1000000"]
    process = start(on, terminal.path, "utf-8", [*arguments, f"--run-dir={tmp_path}"])
    terminal.close_when(b"  4 c", process)  # after the first round
    assert code_of(process) == 128 + signal.SIGHUP
    summary = summary_in(tmp_path)
    assert (summary["signal"], summary["rounds"] > 0) == ("SIGHUP", True)
    assert summary["display"] == "standard output: Input/output error"
    (folder,) = tmp_path.iterdir()
    assert saved_rounds(folder)[-1] == summary["rounds"]


def test_a_search_and_its_comparison_go_on_without_a_terminal(tmp_path: Path) -> None:
    terminal = Terminal()
    arguments = [*SMALL, "--strategy", "fedavg", "mifa", "--num-workers=1", "--num-rounds=40"]
    arguments += ["--tune=learning-rate=0.1|0.2|0.3", "--tune-trials=3", f"--run-dir={tmp_path}"]
    process = start(on, terminal.path, "utf-8", arguments)
    terminal.close_when(b"trial ", process)
    assert code_of(process) == 0
    (file,) = tmp_path.glob("compare-*/comparison.json")
    assert json.loads(file.read_text())["display"] == "standard output: Input/output error"
    assert (file.parent / "table.md").read_text().count("mifa") >= 1


@pytest.mark.parametrize("reads", ["a line", "nothing", "everything, in ASCII"])
def test_a_run_in_a_pipe(tmp_path: Path, reads: str) -> None:
    pipe, shown = tmp_path / "pipe", b""
    os.mkfifo(pipe)
    reader, writer = (os.open(pipe, flag | os.O_NONBLOCK) for flag in (os.O_RDONLY, os.O_WRONLY))
    if reads == "nothing":
        os.write(writer, b"." * fcntl.fcntl(writer, F_GETPIPE_SZ))
    folder = tmp_path / "r\xfcns"
    process = start(on, str(pipe), "ascii", [*SMALL, "--num-rounds=80", f"--run-dir={folder}"])
    if reads == "nothing":
        assert code_of(process) == 0
        expected = "standard output: it was blocked for a time"
    else:
        os.set_blocking(reader, True)
        shown = os.read(reader, 100)
        os.close(writer)
        if reads == "a line":
            os.close(reader)
            expected = "standard output: Broken pipe"
        else:
            while more := os.read(reader, 1000):
                shown += more
            expected = ""
        assert code_of(process) == 0
    summary = summary_in(folder)
    assert (summary["rounds"], summary.get("display", "")) == (80, expected)
    assert (b"r\\xfcns" in shown) == (not expected)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        *((c, 1) for c in (["--list"], ["--help"], ["runs", "--help"], ["fleet", "-h"])),
        ([*SMALL, "--num-rounds=2", "--json", "--run-dir=."], 1),
    ],
)
def test_lost_output_is_an_error_where_a_command_is_for_it(
    tmp_path: Path, command: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert sim.main(command) == code
    assert capsys.readouterr().err.endswith(": error: standard output: No space left on device\n")
    if "--json" in command:
        assert "display" not in summary_in(tmp_path)
    else:
        reader, writer = os.pipe()
        os.close(reader)
        monkeypatch.setattr(sys, "stdout", open(writer, "w"))  # noqa: SIM115
        assert sim.main(command) == 141  # like other programs whose reader has gone
        assert capsys.readouterr().err == ""


def test_a_full_disk_for_the_output_of_a_run_is_noted(tmp_path: Path) -> None:
    process = start(on, "/dev/full", "utf-8", [*SMALL, "--num-rounds=2", f"--run-dir={tmp_path}"])
    assert code_of(process) == 0
    assert summary_in(tmp_path)["display"] == "standard output: No space left on device"


def test_a_display_goes_on_when_its_reader_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "PATIENCE", 0.05)
    reader, writer = os.pipe()
    size, shown = fcntl.fcntl(writer, F_GETPIPE_SZ), b""
    with open(writer, "w") as file:
        stream = Stream(file)
        for number in range(3):
            print(f"{number}" * size, file=stream)
        while b"\n" not in shown:
            shown += os.read(reader, size)
        stream._writing.join()
        print("again", file=stream)
    while more := os.read(reader, size):
        shown += more
    assert shown == b"0" * size + b"\nagain\n"
    assert stream.lost == "it was blocked for a time"


def test_streams_that_are_closed_or_somebody_elses() -> None:
    text = "\u2014 \udcff\n"
    file = io.StringIO()
    print(text, end="", file=Stream(file))
    assert file.getvalue() == "\u2014 \\udcff\n"
    file.close()
    for stream in (Stream(file), Stream(None)):
        print(text, file=stream)
        assert stream.lost == "Bad file descriptor"
    Stream(None, is_output=True).flush()  # nothing is lost
    with pytest.raises(OutputLost, match="standard output: Bad file descriptor"):
        print(text, file=Stream(None, is_output=True))
