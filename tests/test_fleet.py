"""The boards of a fleet: their file, keys, state, and what they say of themselves."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext, suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from conftest import SMALL
from flower import ROOT
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import fedtide
from clients.device import health
from fedtide.base.errors import SettingsError
from fedtide.devices.messages import of_board
from fedtide.fleet import lasting
from fedtide.fleet.boards import Board, Boards, check_name, read_key
from fedtide.fleet.command import main
from fedtide.fleet.lasting import LastingRun
from fedtide.fleet.status import newest_run, prometheus, states, table_of
from fedtide.fleet.superlink import GONE, Node, key_bytes

KEY = "ecdsa-sha2-nistp384 AAAA"


def test_a_key_names_its_client_and_stays_until_it_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "device.key"
    public = str(file) + ".pub"
    script = str(ROOT / "deploy" / "key.sh")
    if not shutil.which("ssh-keygen"):
        pytest.skip("needs ssh-keygen")
    subprocess.run([script, file, "3"], check=True)
    key, client = read_key(public)
    assert client == 3
    told = subprocess.run(["ssh-keygen", "-l", "-f", public], capture_output=True, text=True, check=True)
    assert Board(client, 1, key).fingerprint in told.stdout
    subprocess.run([script, file, "4"], check=True)
    assert read_key(public) == (key, 4)
    subprocess.run([script, "--replace", file], check=True)
    other, client = read_key(public)
    assert (other != key, client) == (True, 4)
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"")  # as a card that was pulled out leaves it
    assert subprocess.run([script, file], capture_output=True).returncode != 0
    assert read_key(public) == (other, 4)


def test_the_file_keeps_the_boards_of_each_superlink(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    lab, field = Boards("lab", path), Boards("field", path)
    assert lab.read() == {}
    boards = {"pi-0": Board(0, 2**64 - 1, KEY), "pi-1": Board(None, 7, KEY)}
    lab.write(boards)
    field.write({"cow.9": Board(9, 1, KEY)})
    assert lab.read() == boards
    assert field.read() == {"cow.9": Board(9, 1, KEY)}
    path.write_text("[lab]\npi-0 = 3\n")
    with pytest.raises(SettingsError, match=r"\[lab.pi-0\] is not a board"):
        lab.read()
    path.write_text("[lab")
    with pytest.raises(SettingsError, match=r"fleet\.toml: "):
        lab.write({})
    assert path.read_text() == "[lab"


@given(st.text(max_size=80))
def test_names_are_names_everywhere(name: str) -> None:
    try:
        check_name(name)
    except SettingsError:
        return
    assert 0 < len(name) < 64
    assert name.isascii()
    assert not {*name} & {*" /\\\"'{}[]=,\n"}


@given(st.binary(max_size=200))
def test_a_file_is_a_key_or_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "own.pub"
    file.write_bytes(content)
    with suppress(SettingsError):
        key, _ = read_key(str(file))
        assert key_bytes(key)


def test_half_a_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "half.pub").write_text("ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTIt client-id=3\n")
    with pytest.raises(SettingsError, match="it is not a public key that"):
        read_key(str(tmp_path / "half.pub"))


NODES = [
    Node(11, "pi-0", b"", "online", "2026-01-01T00:00:00+00:00"),
    Node(12, "pi-1", b"", "offline", "2026-01-01T00:00:00+00:00"),
    Node(13, "old", b"", GONE, ""),
]
RECORDS: list[dict[str, Any]] = [
    {"round": 0, "time": 0.0},
    {"round": 1, "time": 10.0, "active": [0, 2], "steps": [5, 5], "reply_seconds": [0.5, 0.0], "failed": {}}
    | {"names": {"1": "pi-1"}, "boards": {"0": {"temperature": 50.5, "disk-free": 100}}},
    {"round": 2, "time": 20.0, "active": [0], "steps": [3], "failed": {"1": "no reply within 8 s"}},
]


def test_the_state_of_the_boards() -> None:
    """By the file, by the names that a run has recorded, and by number where there is neither."""
    pi0, pi1, other = states(NODES, {"pi-0": Board(0, 11, KEY)}, RECORDS)
    assert (pi0.name, pi0.client, pi0.state, pi0.round, pi0.replies) == ("pi-0", 0, "online", 2, 2)
    assert (pi0.replied, pi0.speed, pi0.reported) == (20.0, None, {"temperature": 50.5, "disk-free": 100})
    assert (pi1.name, pi1.client, pi1.state, pi1.failures, pi1.reason) == (
        *("pi-1", 1, "offline", 1, "no reply within 8 s"),
    )
    assert (other.name, other.state, other.round) == ("client 2", "unknown", 1)


def test_what_is_shown_of_the_state() -> None:
    boards = states(NODES, {'x"\n[red]': Board(0, 11, KEY)}, RECORDS)
    text = prometheus(boards, now=50.0)
    assert 'fedtide_board_last_reply_age_seconds{board="x\\" [red]",client="0"} 30\n' in text
    assert 'fedtide_board_reported_disk_free{board="x\\" [red]",client="0"} 100\n' in text
    assert 'fedtide_board_up{board="pi-1",client="1"} 0\n' in text
    for line in text.splitlines():
        assert line.startswith(("# TYPE fedtide_board_", "fedtide_board_")), line
    boards[0].reported["disk-free"] = 20344.0
    console = Console(width=80)
    with console.capture() as shown:
        console.print(table_of(boards, now=50.0), highlight=False)
    text = shown.get()
    assert re.search(r"^ pi-1 +1 +offline +0 s +0 +1 +$", text, re.M), text
    assert 'x" [red] reports: temperature 50.5 °C, disk-free 20344 MB\n' in text
    assert "pi-1 failed last: no reply within 8 s\n" in text


def test_what_a_board_may_say_of_itself() -> None:
    told = {f"board-x{k}": k for k in range(99)} | {"board-x\x1b[31m": 1.5, "loss": 2.0}
    assert len(of_board(told)) == 20
    hostile = {"board-a": float("nan"), "board-b": "text", "board-c" * 99: 1, "board-d\x1b[0m\n": 2}
    hostile |= {'board-e{x="': 3, "board-f g": 4, "board-": 5, "board-é": 6}
    assert of_board(hostile | {"board-load": 0.5}) == {"load": 0.5}


def test_the_health_of_a_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (
        ("thermal/thermal_zone0/temp", "41000\n"),
        ("thermal/thermal_zone1/temp", "54123\n"),
        ("power_supply/BAT0/capacity", "87\n"),
        ("powercap/intel-rapl:0/energy_uj", "not a number"),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   2000000 kB\n")
    monkeypatch.setattr(health, "SYS", tmp_path)
    monkeypatch.setattr(health, "PROC", tmp_path)
    found = health.health(str(tmp_path))
    assert found["board-temperature"] == 54.123
    assert (found["board-battery"], found["board-memory-free"]) == (87.0, 2048.0)
    assert "board-energy" not in found
    assert {"board-disk-free", "board-load"} <= {*found}


def test_the_newest_run_counts(tmp_path: Path) -> None:
    assert newest_run(str(tmp_path)) is None
    for k, name in enumerate(("a", "night/b")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").touch()
        subprocess.run(["touch", "-d", f"@{k}", tmp_path / name / "metrics.jsonl"], check=True)
    assert newest_run(str(tmp_path)) == tmp_path / "night" / "b"
    assert newest_run(str(tmp_path / "a")) == tmp_path / "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num-clients = ", "night.toml: "),
        ("num-client = 3", "num-clients"),
        ('resume = "x"', "what was begun is resumed"),
    ],
)
def test_a_lasting_run_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "night.toml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        LastingRun(tmp_path / "night.toml", "lab", ROOT, print)


class Failing(LastingRun):
    """A run whose attempts end no round, as the disk is full; SIGTERM comes in the tenth."""

    attempts = 0

    def _superlink_answers(self) -> bool:
        return True

    def _attempt(self, before: Any) -> None:
        self.attempts += 1
        if self.attempts == 10:
            signal.raise_signal(signal.SIGTERM)
        raise OSError(ENOSPC, "No space left on device")


def test_a_run_that_has_begun_is_never_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "WAIT_SECONDS", 0.0)
    (tmp_path / "night.toml").write_text(f'num-rounds = 2\nrun-dir = "{tmp_path}"\n')
    before = signal.getsignal(signal.SIGTERM)
    try:
        never = Failing(tmp_path / "night.toml", "lab", ROOT, print)
        with pytest.raises(SettingsError, match="no round has ended in 5 attempts"):
            never.drive()
        fedtide.run(**SMALL | {"num_rounds": 1, "run_dir": str(tmp_path / "night")}, report=False)
        begun = Failing(tmp_path / "night.toml", "lab", ROOT, print)
        (tmp_path / "night" / "flower-run").write_text("123")  # of a process that was killed
        stopped: list[int] = []
        monkeypatch.setattr(lasting, "connected", lambda name: nullcontext(Mock(stop=stopped.append)))
        begun.drive()
        assert (never.attempts, begun.attempts, stopped) == (5, 10, [123])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_errors_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    connection = '[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "127.0.0.1:9"\ninsecure = true\n'
    (tmp_path / "config.toml").write_text(connection)
    for arguments, message in (
        ([], "SuperLink lab: "),
        (["--superlink", "field"], "'field' not found"),
        (["register", "pi-0"], "'pi-0' is not NAME=KEY.pub"),
        (["status", "--serve", "here"], "give HOST:PORT"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_prometheus_is_answered_at_any_address(address: str, tmp_path: Path) -> None:
    """A SuperLink that is away is an answer, too."""
    connection = '[superlink.lab]\naddress = "127.0.0.1:9"\ninsecure = true\n'
    (tmp_path / "config.toml").write_text(connection)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "fedtide", "fleet", "--serve", f"{address}:{port}"]
    env = {**os.environ, "FLWR_HOME": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            url = served.stdout.readline().strip()
            assert url == f"http://{address}:{port}/metrics"
            with pytest.raises(HTTPError, match="503"):
                urlopen(url)
        finally:
            served.terminate()
