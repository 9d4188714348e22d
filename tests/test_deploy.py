"""The guide to a federation of boards, docs/deploy.md: each command, on machines made of namespaces."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import guide
import pytest
import yaml
from flower import BIN, ROOT, processes_of
from guide import GUIDE, lay_source
from machines import Lab, Machine, call, why_not
from waiting import wait_until

BOARDS = 2
BOARD = ["clients", "deploy", "fedtide", "strategies", "traces"]
UNITS = ("fedtide-device", "fedtide-superlink", "fedtide-run@")


def commands(section: str) -> list[str]:
    """Return the blocks of commands of a section, for two boards and runs of a few rounds."""
    blocks = guide.commands(section, BOARDS)
    for long, short in (
        ("--rehearse logs", "--rehearse logs --num-rounds 20"),
        ("min-nodes=3", "min-nodes=2 num-rounds=3"),
        ("--num-rounds 40", "--num-rounds 3"),
    ):
        blocks = [block.replace(long, short) for block in blocks]
    return blocks


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if reason := why_not():
        pytest.skip(reason)
    with Lab(tmp_path_factory.mktemp("lab"), BOARDS) as made:
        lay_source(made)
        yield made


def files(machine: Machine, folder: str = "/etc/fedtide") -> str:
    """Return what is in a folder: names, owners, modes, and digests."""
    there = f"find {folder} -type f -printf '%p %u %m\\n' -exec sha256sum {{}} + | sort"
    return machine.root(there)


def fleet(lab: Lab) -> dict[str, dict[str, object]]:
    """Return what `fedtide fleet --json` says, by the name of the board."""
    told = lab.server.script("python -m fedtide fleet --json", "~/fedtide")
    return {board["name"]: board for board in json.loads(told.splitlines()[-1])}


def wait(lab: Lab, condition: Callable[[], object]) -> None:
    """Wait for a condition; where it never holds, print what the services have said."""
    try:
        wait_until(condition)
    except AssertionError:
        for machine in lab.machines:
            print(*(f"{machine.name}: {machine.log(unit)[-3000:]}" for unit in UNITS), sep="\n")
        raise


@pytest.mark.slow
def test_the_guide(lab: Lab) -> None:
    server, boards = lab.server, lab.boards
    the_server(lab)
    (install,) = commands("2. The boards")
    told = server.script(install, "~/fedtide")
    for name in ("pi-0", "pi-1"):
        assert re.search(rf"^{name} registered, client {name[-1]}: node \d+, SHA256:", told, re.M), told
    wait(lab, lambda: {board["state"] for board in fleet(lab).values()} == {"online"})
    an_update(lab, install)
    a_run(lab)
    keys(lab)
    afterwards(lab)
    for line in re.findall(r"\*\*Starting over\*\*: `(.*?)`", GUIDE):
        boards[0].script(line)
    assert not boards[0].root("ls -d /opt/fedtide /etc/fedtide /var/lib/fedtide 2> /dev/null || true")


def the_server(lab: Lab) -> None:
    """Section 1: once more changes nothing, also without the key of the CA."""
    server = lab.server
    install, firewall = commands("1. The server")
    server.script(install, "~/fedtide")
    server.root("mv /etc/fedtide/certificates/ca.key /root/")
    before = files(server)
    server.script(install, "~/fedtide")
    assert files(server) == before
    refused = "deploy/install-superlink.sh another.example.org 2>&1 | grep 'ca.crt is there without ca.key'"
    server.script(f"sudo {refused}", "~/fedtide")
    assert files(server) == before
    server.script(firewall, "~/fedtide")
    assert "tcp dport 8000 drop" in server.root("nft list ruleset")
    assert "restart fedtide-superlink" in server.calls()
    wait(lab, lambda: server.root("ss -ltn | grep -c :8000 || true").strip() != "0")


def an_update(lab: Lab, install: str) -> None:
    """The commands of section 2 again: a board's key and its own settings stay, old modules go."""
    server, board = lab.server, lab.boards[0]
    board.root("sed -i 's/^OPTIONS=.*/OPTIONS=--report/' /etc/fedtide/device.env")
    board.root("touch /opt/fedtide/fedtide/of_an_earlier_version.py")
    before, of_server = files(board), server.script("cat ~/.flwr/fleet.toml")
    assert server.script(install, "~/fedtide").count("is registered already") == BOARDS
    assert files(board) == before
    assert server.script("cat ~/.flwr/fleet.toml") == of_server
    assert not board.root("ls /opt/fedtide/fedtide | grep earlier || true")
    wait(lab, lambda: {own["state"] for own in fleet(lab).values()} == {"online"})


def a_run(lab: Lab) -> None:
    """Section 3, then what section 4 says of the boards."""
    run, service = commands("3. A run")
    start, ls, log, stop = (line.partition("    #")[0] for line in run.splitlines())
    told = lab.server.script(start, "~/fedtide")
    assert "round 3/3" in told, told
    assert "finished" in lab.server.script(ls, "~/fedtide")
    number = re.search(r"started run (\d+)", told)
    assert number
    log, stop = (command.replace("RUN-ID", number[1]) for command in (log, stop))
    assert "round 3/3" in lab.server.script(log, "~/fedtide")
    assert "already" in lab.server.script(f"{stop} 2>&1 || true", "~/fedtide").lower()
    of_board = fleet(lab)
    assert [of_board[name]["round"] for name in ("pi-0", "pi-1")] == [3, 3]
    assert of_board["pi-0"]["client"] == 0
    assert {"disk-free", "memory-free", "load"} <= {*of_board["pi-0"]["reported"]}  # type: ignore[misc]
    assert not of_board["pi-1"]["reported"]
    (shown, *_) = commands("4. How the boards are")
    table = lab.server.script(shown, "~/fedtide")
    assert re.search(r"pi-1 +1 +online", table), table
    text = lab.server.script(
        "python -m fedtide fleet status --textfile fleet.prom; cat fleet.prom", "~/fedtide"
    )
    assert 'fedtide_board_up{board="pi-1",client="1"} 1' in text
    lasting(lab, service)
    assert [board["round"] for board in fleet(lab).values()] == [4, 4]


def lasting(lab: Lab, service: str) -> None:
    """A run as a service goes on when the SuperLink was killed, and when the machine was started again."""
    server, rounds = lab.server, "cat /var/lib/fedtide/runs/night/*/metrics.jsonl 2> /dev/null | wc -l"
    server.script(service.replace("min-nodes = 3", "num-rounds = 4"), "~/fedtide")
    for done, killed in ((1, "[s]uperlink.py"), (2, "[f]edtide fleet run")):
        wait(lab, lambda done=done: int(server.root(rounds)) > done)
        wait(lab, lambda done=done: f"round {done}/4" in server.log("fedtide-run@night"))
        server.root(f"pkill -9 -f '{killed}'")
    wait(lab, lambda: "finished: " in server.log("fedtide-run@night"))
    records = map(json.loads, server.root("cat /var/lib/fedtide/runs/night/*/metrics.jsonl").splitlines())
    assert [record["round"] for record in records] == [*range(5)]


def keys(lab: Lab) -> None:
    """A board gets a new key, and is unregistered."""
    server = lab.server
    _, replaced, unregister = commands("4. How the boards are")
    make, fetch, admit, restart = replaced.splitlines()
    before = fleet(lab)["pi-1"]["node"]
    server.script(f"{make}\n{fetch}", "~/fedtide")
    without = admit.replace("--replace ", "").partition("#")[0]
    assert "is registered with another key" in server.script(f"{without} 2>&1 || true", "~/fedtide")
    assert f"node {before} with the earlier key is unregistered" in server.script(admit, "~/fedtide")
    server.script(restart, "~/fedtide")
    wait(lab, lambda: fleet(lab)["pi-1"]["state"] == "online")
    assert fleet(lab)["pi-1"]["node"] != before
    copied = "python -m fedtide fleet register pi-9=pi-1.pub 2>&1 || true"
    assert "its key is that of pi-1 (a copied SD card?)" in server.script(copied, "~/fedtide")
    server.script(unregister, "~/fedtide")
    assert "pi-1" not in fleet(lab)
    wait(lab, lambda: "Failed to activate SuperNode" in lab.boards[1].log("fedtide-device"))
    again = "python -m fedtide fleet register pi-1=pi-1.pub"
    assert "Flower never takes it again" in server.script(f"{again} 2>&1 || true", "~/fedtide")
    server.script(f"{make}\n{fetch}\n{again}\n{restart}", "~/fedtide")
    wait(lab, lambda: fleet(lab)["pi-1"]["state"] == "online")


def afterwards(lab: Lab) -> None:
    """Section 5: logs, a rehearsal, a replay with the weights of the run, a board that leaves, a backup.

    From that, a server is set up again: its certificate is the one that boards trust, and it knows them.
    """
    server = lab.server
    block, backup, restore = commands("5. Afterwards")
    folder = server.script("ls /var/lib/fedtide/runs | grep seed").strip()  # of the first run
    told = server.script(block.replace("FOLDER", folder), "~/fedtide")
    assert "which method for these boards" not in told
    of_run, again = (
        json.loads(server.script(f"cat {path}/summary.json", "~/fedtide"))["final"]["loss"]
        for path in (f"/var/lib/fedtide/runs/{folder}", "runs/*-seed*")
    )
    assert again == pytest.approx(of_run, rel=1e-6)
    assert lab.boards[1].root("ls /var/lib/fedtide/state").split() == ["leave"]
    assert "nothing to delete in /var/lib/fedtide/runs" in server.script(backup, "~/fedtide")
    kept = server.script("tar -tzf fedtide.tar.gz", "~/fedtide").splitlines()
    files = ("etc/fedtide/certificates/ca.crt", "var/lib/fedtide/superlink.db", "home/op/.flwr/fleet.toml")
    assert {*files} <= {*kept}
    before = fleet(lab)
    server.script(
        "sudo systemctl stop fedtide-run@night; sudo systemctl stop fedtide-superlink; rm -r ~/.flwr"
    )
    server.root(
        "rm -r /etc/fedtide /var/lib/fedtide; userdel fedtide; groupdel fedtide; useradd --system another"
    )
    server.script(restore, "~/fedtide")
    wait(lab, lambda: server.root("ss -ltn | grep -c :8000 || true").strip() != "0")
    wait(lab, lambda: fleet(lab)["pi-0"]["state"] == "online")
    assert {name: own["node"] for name, own in fleet(lab).items()} == {
        name: own["node"] for name, own in before.items()
    }
    wait(lab, lambda: "finished: " in server.log("fedtide-run@night").splitlines()[-1])


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_a_federation_on_one_machine(tmp_path: Path) -> None:
    """The first commands of the guide; all that they have started has ended."""
    for line in re.findall(r"^deploy/local.sh .*?(?=  +#)", GUIDE, re.M)[-1:]:
        command = line.replace("local.sh 5", "local.sh 2").replace("num-rounds=10", "num-rounds=1")
        folder = tmp_path / "local"
        env = {**os.environ, "BIN": str(BIN), "FOLDER": str(folder), "COLUMNS": "200"}
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "round 1/1" in done.stdout
        assert re.search(r"device-1 +1 +online", done.stdout), done.stdout
        assert not processes_of(folder / "flower")


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_units(unit: str, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    file = tmp_path / f"{unit}.service"
    text = (ROOT / "deploy" / file.name).read_text()
    file.write_text(re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", text, flags=re.M))
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
    assert (done.returncode, file.name in done.stderr) == (0, False), done.stderr


def test_whoever_installs_a_board_brings_the_same_parts() -> None:
    dockerfile, script, playbook = (
        (ROOT / name).read_text()
        for name in ("Dockerfile", "deploy/install-device.sh", "deploy/federation.yml")
    )
    _, device, _ = re.split(r"^FROM .* AS (?:device|whole)$", dockerfile, flags=re.M)
    found = {
        "image": " ".join(re.findall(r"^COPY (\S+) \1$", device, re.M)),
        "script": "".join(re.findall(r"^for part in (.*?); do", script, re.M)),
        "playbook": "".join(re.findall(r"parts: \[(.*?)\]", playbook)).replace(",", ""),
        "guide": "".join(re.findall(r"rsync -a --exclude __pycache__ (.*?) /etc", GUIDE)),
    }
    assert {name: sorted(parts.split()) for name, parts in found.items()} == dict.fromkeys(found, BOARD)
    for command in re.findall(r'^CMD \["(.*?)"\]$', dockerfile, re.M):
        assert os.access(ROOT / command, os.X_OK)


def test_scripts_are_bash() -> None:
    for script in (ROOT / "deploy").glob("*.sh"):
        call(["bash", "-n", str(script)])
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    for _, _, text in (service["command"] for service in services.values() if "command" in service):
        call(["bash", "-nc", text.replace("$$", "$")])
