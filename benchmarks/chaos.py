"""A run on boards while everything fails: whether it finishes by itself, and says who was missing and why.

    sudo python benchmarks/chaos.py [--boards 10] [--minutes 30] [--seed 0] [--folder DIR]

Machines made of namespaces (tests/machines.py) are installed as docs/deploy.md says, with the run as a
service. While it lasts, faults are brought about in an order that the seed draws, each kind at least once.
Then the records are held against what was done (benchmarks/absences.py); the exit code is 1 unless

- the run has finished by itself, each of its rounds is there once, and no task counts twice
- each absence of a board has a fault or a late reply, each fault that takes a board away an absence
- all boards are back at the end
- a simulation of the records comes to the weights of the run

It needs a C compiler, for the clock (benchmarks/clock.c).
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from guide import commands, lay_source
from machines import Lab, Machine, why_not
from waiting import wait_until

from benchmarks.absences import Fault, Record, journal, problems, summary
from benchmarks.measure import ROOT, machine, machine_line
from fedtide.config import Settings
from fedtide.plan import Plan

RUN = """
num-clients = {boards}
min-nodes = {least}
num-rounds = 100000
until-seconds = {seconds}
round-deadline = 20.0
model = "logistic"
strategy = "fedlaavg"
option = "memory=client"
evaluate-every = 10
"""
SHARE = 0.75  # of the time that is spent in rounds, and not in between them
GUIDED = ("1. The server", "2. The boards")  # sections of the guide
SERVICE = "fedtide-run@chaos"
RUNS = "var/changed/lib/fedtide/runs/chaos"  # in the server's files
DISK, CLOCK = 1, 2  # the boards with a small disk for their state, and with a clock that can be set
CLOCK_SOURCE = Path(__file__).with_name("clock.c")
SECONDS_BETWEEN = 50.0  # two faults
MOST_APART = 1e-5  # of the weights from those of the simulation, by the largest of them

NOBODY = "there is no such process"
CUT = """pkill -9 -f '[s]ystemctl supervise'
for p in /proc/[0-9]*; do grep -qsz '^UNIT=' $p/environ && kill -9 ${p#/proc/}; done; true"""
BOOT = "systemctl start $(cat /run/units)"
FULL = "/var/lib/fedtide/state/full"
FILL, EMPTY = f"cat /dev/zero > {FULL} 2> /dev/null; true", f"rm -f {FULL}"


def kill(command: str) -> str:
    """Return a script that kills what has this in its command line, as soon as there is one."""
    pattern = f"[{command[0]}]{command[1:]}"
    return f"""timeout 60 sh -c "until pkill -9 -f '{pattern}'; do sleep 0.05; done" || echo {NOBODY}"""


class Kind(NamedTuple):
    """A kind of fault: what root does to bring it about and, so many seconds later, to undo it."""

    where: str
    begin: str
    end: str = ""
    seconds: float = 0.0
    is_missed: bool = False  # whether the board has to be missing from a round that begins now


KEY = "new key"  # once, in the middle
OF_BOARDS = {
    "device killed": Kind("board", kill("m clients.device --superlink"), is_missed=True),
    "SuperNode killed": Kind("board", kill("clients.device.supernode"), is_missed=True),
    "client killed at work": Kind("plain board", kill("flwr-clientapp"), is_missed=True),
    "board restarted": Kind("board", CUT, BOOT, 20.0, is_missed=True),
    "no network": Kind("board", "ip link set eth0 down", "ip link set eth0 up", 40.0, is_missed=True),
    "disk full": Kind("disk", FILL, EMPTY, 40.0, is_missed=True),
    "clock 10 s ahead": Kind("clock", "echo +10 > /run/clock", "echo +0 > /run/clock", 40.0, is_missed=True),
    "clock 10 s behind": Kind("clock", "echo -10 > /run/clock", "echo +0 > /run/clock", 40.0),
}
OF_SERVER = {
    "SuperLink killed": Kind("server", kill("superlink.py")),
    "ServerApp killed": Kind("server", kill("flwr-serverapp")),
    "service of the run killed": Kind("server", kill("fedtide fleet run")),
    "server restarted": Kind("server", CUT, BOOT, 20.0),
    "all machines restarted": Kind("all", CUT, BOOT, 20.0),
}
KINDS = OF_BOARDS | OF_SERVER | {KEY: Kind("board", "true")}


def schedule(boards: int, seconds: float, rng: random.Random) -> list[tuple[float, Fault]]:
    """Return faults, and when each is due, in seconds after the beginning of the run."""
    drawn = [*OF_BOARDS, *OF_SERVER]
    rng.shuffle(drawn)
    while len(drawn) < seconds / SECONDS_BETWEEN:  # boards fail more often than the server
        drawn.append(rng.choice([*OF_BOARDS] if rng.random() < 0.8 else [*OF_SERVER]))
    drawn.insert(len(drawn) // 2, KEY)
    others = [k for k in range(boards) if k not in (DISK, CLOCK)]
    rng.shuffle(others)
    of_board, plain = itertools.cycle(others), itertools.cycle([k for k in others if not is_resident(k)])
    boards_of: dict[str, Callable[[], list[int]]] = {
        "board": lambda: [next(of_board)],
        "plain board": lambda: [next(plain)],
        "disk": lambda: [DISK],
        "clock": lambda: [CLOCK],
        "server": list,
        "all": lambda: [*range(boards)],
    }
    gap = seconds / len(drawn)
    faults = [Fault(name, boards_of[KINDS[name].where](), KINDS[name].is_missed) for name in drawn]
    return [(gap * (k + rng.uniform(0.1, 0.6)), fault) for k, fault in enumerate(faults)]


def is_resident(board: int) -> bool:
    """Whether a board keeps a client's imports in memory, in place of a process for each task."""
    return board % 2 == 1


class Chaos:
    """The machines, and the run on them."""

    def __init__(self, lab: Lab, seconds: float) -> None:
        self.lab, self.server, self.seconds = lab, lab.server, seconds
        self.begun = 0.0

    def install(self) -> None:
        """Follow the guide until all boards are connected."""
        lay_source(self.lab)
        (server, _), (boards,) = (commands(section, len(self.lab.boards)) for section in GUIDED)
        self.server.script(server, "~/fedtide")
        ((each, register),) = re.findall(r"^for k in .*; do\n(.*)^done\n(.*)", boards, re.S | re.M)
        for k, board in enumerate(self.lab.boards):  # one that is not registered would try again and again
            self.server.script(f"k={k}\n{each}", "~/fedtide")
            board.root("systemctl stop fedtide-device")
        self.server.script(register, "~/fedtide")
        data = Plan.of(Settings(num_clients=len(self.lab.boards))).data
        for k, board in enumerate(self.lab.boards):
            x, y = data.train_set(np.array([k]))
            np.savez(own := self.lab.folder / f"{k}.npz", x=x, y=y)
            board.root(f"install -m 644 {own} /var/lib/fedtide/data.npz")
            if k == DISK:
                state = "/var/lib/fedtide/state"
                board.root(f"mount -t tmpfs -o size=1m tmpfs {state} && chown fedtide: {state}")
            if k == CLOCK:
                shifted = self.lab.folder / "clock.so"
                subprocess.run(["cc", "-shared", "-fPIC", "-o", shifted, CLOCK_SOURCE], check=True)
                board.root(f"install {shifted} /opt/clock.so; echo +0 > /run/clock")
                board.root("echo CLOCK=/run/clock >> /etc/fedtide/device.env")
                board.root("echo LD_PRELOAD=/opt/clock.so >> /etc/fedtide/device.env")
            options = f"--numpy --report --data /var/lib/fedtide/data.npz{' --resident' * is_resident(k)}"
            board.root(f"sed -i 's|^OPTIONS=.*|OPTIONS={options}|' /etc/fedtide/device.env")
            board.root("echo fedtide-device > /run/units; systemctl start fedtide-device")
        self.server.root(f"echo fedtide-superlink {SERVICE} > /run/units")
        wait_until(lambda: self.online() == len(self.lab.boards))

    def online(self) -> int:
        """Return how many boards are connected, as `fedtide fleet` says."""
        told = self.server.script("python -m fedtide fleet --json", "~/fedtide")
        return sum(board["state"] == "online" for board in json.loads(told.splitlines()[-1]))

    def start(self) -> None:
        """Start the run as a service, and wait for its first round."""
        boards = len(self.lab.boards)
        settings = RUN.format(boards=boards, least=boards // 2, seconds=SHARE * self.seconds)
        self.server.root(f"mkdir -p /etc/fedtide/runs; echo '{settings}' > /etc/fedtide/runs/chaos.toml")
        self.server.root(f"systemctl enable --now {SERVICE}")
        wait_until(self.records)
        self.begun = time.time()

    def said(self) -> str:
        """Return how the service of the run has ended by itself; empty: it has not."""
        return self.server.root(f"grep -E 'finished: |fleet: error: ' /run/{SERVICE}.log || true")

    def file(self, name: str) -> Path:
        """Return a file in the run folder."""
        (folder,) = (self.server.files / RUNS).glob("*-seed=*")
        return folder / name

    def records(self) -> list[Record]:
        """Return the records of the rounds so far, without that of round 0."""
        try:
            lines = self.file("metrics.jsonl").read_text().splitlines(keepends=True)
        except (OSError, ValueError):  # not yet
            return []
        return [json.loads(line) for line in lines[1:] if line.endswith("\n")]

    def play(self, faults: Sequence[tuple[float, Fault]]) -> None:
        """Bring faults about when they are due, and undo them; then wait until the run has ended."""
        steps = [(due, self.bring_about, fault) for due, fault in faults]
        steps += [(due + KINDS[fault.name].seconds, self.undo, fault) for due, fault in faults]
        while steps:
            steps.sort(key=lambda step: step[0])
            due, step, fault = steps.pop(0)
            while (left := self.begun + due - time.time()) > 0 and not self.said():
                time.sleep(min(left, 1.0))
            if not step(fault):
                steps.append((due + 10, step, fault))
        patience = time.time() + self.seconds + 600
        while not self.said() and time.time() < patience:
            time.sleep(1)

    def bring_about(self, fault: Fault) -> bool:
        """Do to its machines what a fault is, unless the run is over; return whether that was possible."""
        if self.said():
            return True
        if fault.name == KEY and not self.rotated(fault.boards[0]):
            return False
        told = [own.root(KINDS[fault.name].begin) for own in self.machines(fault)]
        fault.begin = fault.end = 0.0 if NOBODY in told[0] else time.time()
        minutes, boards = (time.time() - self.begun) / 60, " ".join(map(str, fault.boards))
        print(f"{minutes:5.1f} min: {fault.name} {boards} {told[0]}", file=sys.stderr, flush=True)
        return True

    def undo(self, fault: Fault) -> bool:
        """Undo a fault that was brought about."""
        if fault.begin and (script := KINDS[fault.name].end):
            for own in self.machines(fault):
                own.root(script)
            fault.end = time.time()
        return True

    def machines(self, fault: Fault) -> list[Machine]:
        """Return the machines that a fault is done to."""
        if KINDS[fault.name].where == "all":
            return self.lab.machines
        return [self.lab.boards[k] for k in fault.boards] or [self.server]

    def rotated(self, board: int) -> bool:
        """Give a board a new key, as the guide says; return whether the server was there for it."""
        rotation = commands("4. How the boards are")[1].replace("pi-2", f"pi-{board}")
        try:
            self.server.script(rotation, "~/fedtide")
        except AssertionError as error:
            print(error, file=sys.stderr)
            return False
        return True

    def distance(self) -> float:
        """Return how far the run's weights are from those of a simulation of its records."""
        again, file = self.lab.folder / "again", self.file("metrics.jsonl")
        flags = [f"--config={self.file('config.toml')}", f"--trace=run:file={file}", f"--run-dir={again}"]
        flags += [
            "--until-seconds=0",
            "--engine=inline",
            "--no-report",
            f"--num-rounds={len(self.records())}",
        ]
        done = subprocess.run([sys.executable, "sim.py", *flags], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        files = (self.file("weights.npz"), *again.glob("*/weights.npz"))
        own, simulated = (np.concatenate([a.ravel() for a in np.load(name).values()]) for name in files)
        return float(np.abs(own - simulated).max() / np.abs(simulated).max())


def verdict(chaos: Chaos, faults: Sequence[Fault]) -> list[str]:
    """Return what is not as it should be."""
    records, boards = chaos.records(), len(chaos.lab.boards)
    found = [*problems(records, faults, boards)]
    if "finished: " not in chaos.said():
        return [*found, f"the run has not finished: {chaos.said() or 'it is still going on'}"]
    if (online := chaos.online()) < boards:
        found.append(f"only {online} boards are connected at the end")
    if (apart := chaos.distance()) > MOST_APART:
        found.append(f"the weights are {apart:.2g} from those of the simulation")
    return found


def main() -> int:
    """Run, and print the tables; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--boards", type=int, default=10, help="5 or more (10)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of faults, which the run outlasts (30)")
    parser.add_argument("--seed", type=int, default=0, help="of the schedule (0)")
    parser.add_argument("--folder", type=Path, help="where the machines' files stay (nowhere)")
    options = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    about, seconds = machine(), 60 * options.minutes
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lab = stack.enter_context(Lab(folder, options.boards))
        chaos = Chaos(lab, seconds)
        chaos.install()
        plan = schedule(options.boards, seconds, random.Random(options.seed))
        chaos.start()
        chaos.play(plan)
        records, faults = chaos.records(), [fault for _, fault in plan if fault.begin]
        found = verdict(chaos, faults)
    counted = sum(len(record["active"]) for record in records)
    took = f"{(records[-1]['time'] - chaos.begun) / 60:.0f} minutes"
    print(machine_line(about))
    print(f"{len(records)} rounds in {took}, {counted} replies counted, {len(faults)} faults")
    print(journal(faults, records), summary(faults, records), *found, sep="\n\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
