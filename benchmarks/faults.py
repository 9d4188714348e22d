"""Injects faults into simulations and counts what is lost: the table in docs/reliability.md.

    python benchmarks/faults.py --times 5
    python benchmarks/faults.py --only hangs,raylet

Each fault is injected so many times, once a round, into a run with 12 clients on two Ray workers. The result
is compared, bit by bit, with that of a run without faults in this process; for faults of clients, with one
in which these clients raise an error.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import ray
from flwr.common import parameters_to_ndarrays

from fedtide.config import Settings
from fedtide.engine.availability import TraceClientManager
from fedtide.engine.experiment import prepare
from fedtide.engine.run import virtual_transport
from fedtide.engine.server import RoundServer
from fedtide.engine.transports.base import EngineLost
from fedtide.plan import Plan

CULPRIT = 5  # the client that a fault is injected into
RUN: dict[str, Any] = {"strategy": "apfl", "model": "logistic", "num_clients": 12, "local_steps": 4}
RUN |= {
    "trace": "always",
    "client_gpus": 0.0,
    "cohort": "stacked",
    "engine": "inline",
    "evaluate_every": 10**6,
}
ON_RAY = {"engine": "ray", "num_workers": 2}
OF_CLIENTS = {
    "raises": "a client raises an error",
    "diverges": "a client's weights become NaN",
    "exits": "a client calls `sys.exit`",
    "interrupts": "a client raises `KeyboardInterrupt`",
    "memory": "a client needs more memory than there is, alone",
    "ends": "a client ends its process (`os._exit`)",
    "segfault": "a client crashes its process (segmentation fault)",
    "hangs": "a client hangs, `--client-timeout 2`",
}
OF_WORKERS = {
    "once": "a worker is killed (SIGKILL) while it trains",
    "random": "a worker is killed (SIGKILL) at a random time",
    "stopped": "a worker is stopped (SIGSTOP), `--client-timeout 5`",
}
OF_RAY = {
    "raylet": "Ray's raylet is killed",
    "gcs_server": "Ray's control process (GCS) is killed",
    "full": "object store and disk are full",
}


class FaultyData:
    """The data of all clients; one client has a fault when it reads them."""

    def __init__(self, data: Any, fault: str, flag: str) -> None:
        self.data, self.fault, self.flag = data, fault, flag

    def __getattr__(self, name: str) -> Any:
        if name == "data":  # during unpickling
            raise AttributeError(name)
        return getattr(self.data, name)

    def examples(self, client: int, rows: Any) -> Any:
        """Return examples, or do what the fault is."""
        x, labels = self.data.examples(client, rows)
        if client != CULPRIT:
            return x, labels
        match self.fault:
            case "raises":
                raise ValueError("broken")
            case "diverges":
                return x * np.float32("nan"), labels
            case "exits":
                sys.exit(7)
            case "interrupts":
                raise KeyboardInterrupt
            case "memory":
                raise MemoryError
            case "ends":
                os._exit(1)
            case "segfault":
                ctypes.string_at(0)
            case "hangs":
                time.sleep(10**6)
            case "once" if os.path.exists(self.flag):
                os.remove(self.flag)
                os.kill(os.getpid(), signal.SIGKILL)
        return x, labels


class Outcome(NamedTuple):
    """The final weights, who counted in each round, and the faults injected from outside."""

    weights: Any
    active: list[list[int]]
    reasons: set[str]
    injected: int


def simulate(fault: str, rounds: int, changes: dict[str, Any], flag: str) -> Outcome:
    """Run with a fault, so many rounds or until workers have been killed so many times."""
    settings = Settings(**{**RUN, **changes, "num_rounds": 10**6})
    experiment = prepare(Plan.of(settings))
    experiment.plan.data = FaultyData(experiment.data, fault, flag)
    active: list[list[int]] = []
    reasons = set[str]()
    transport: Any = virtual_transport(experiment)
    injected: list[Any] = []

    def observe(record: dict[str, Any]) -> None:
        if record["round"]:
            active.append(record["active"])
            reasons.update(record["failed"].values())
        if fault == "once" and record["round"] < rounds:
            Path(flag).touch()
        from_outside = fault in ("random", "stopped")
        server.stopping = len(injected) >= rounds if from_outside else record["round"] >= rounds
        if from_outside and record["round"] == 1:
            threading.Thread(target=inject, daemon=True).start()

    def inject() -> None:
        number = signal.SIGKILL if fault == "random" else signal.SIGSTOP
        while len(injected) < rounds:
            time.sleep(random.uniform(1, 4))
            if len(transport.workers.ready) == 2 and not set(transport.workers.ready) & set(injected):
                worker = random.choice(transport.workers.ready)
                os.kill(ray.get(worker.actor.__ray_call__.remote(lambda _: os.getpid())), number)
                injected.append(worker)

    manager = TraceClientManager(experiment.clock.round, transport, 0)
    server = RoundServer(experiment.strategy, manager, 10**6, [observe])
    try:
        server.fit(10**6)
    finally:
        transport.close()
    weights = np.concatenate([array.ravel() for array in parameters_to_ndarrays(server.parameters)])
    return Outcome(weights, active, reasons, len(injected) or rounds)


def count(fault: str, times: int, flag: str) -> str:
    """Inject one kind of fault and return its row of the table."""
    limit = {"hangs": 2.0, "stopped": 5.0}.get(fault, 0.0)
    begun = time.perf_counter()
    found = simulate(fault, times, ON_RAY | {"client_timeout": limit}, flag)
    seconds = (time.perf_counter() - begun) / found.injected
    of_client = fault in OF_CLIENTS
    expected = simulate("raises" if of_client else "", len(found.active), {}, flag)
    lost = sum(len(set(e) - set(f)) for e, f in zip(expected.active, found.active, strict=True))
    culprit = f"fails: {' / '.join(sorted(found.reasons))}" if of_client else "no client fails"
    if not of_client and found.reasons:
        culprit = " / ".join(sorted(found.reasons))
    same = "same bits" if np.array_equal(found.weights, expected.weights) else "DIFFERS"
    name = (OF_CLIENTS | OF_WORKERS)[fault]
    return f"| {name} | {found.injected} | {found.injected} | {lost} | {culprit} | {same} | {seconds:.1f} |"


def lose(fault: str) -> None:
    """Lose Ray in this process, and exit as a program that catches `EngineLost` does."""
    changes: dict[str, Any] = {**RUN, **ON_RAY, "model": "mlp", "num_rounds": 10**6}
    if fault == "full":
        quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL, "include_dashboard": False}
        full = {"local_fs_capacity_threshold": 0.01}
        code = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[1])}}
        ray.init("local", object_store_memory=80 << 20, _system_config=full, runtime_env=code, **quiet)
        changes |= {"model": "mlp:hidden=2000"}
    experiment = prepare(Plan.of(Settings(**changes)))
    transport = virtual_transport(experiment)

    def observe(record: dict[str, Any]) -> None:
        if record["round"] == 5 and fault != "full":
            threading.Timer(random.random(), kill, [fault]).start()

    manager = TraceClientManager(experiment.clock.round, transport, 0)
    server = RoundServer(experiment.strategy, manager, 10**6, [observe])
    message = ""
    try:
        server.fit(10**6)
    except EngineLost as error:
        message = str(error)
    finally:
        transport.close()
    print("said:", message, flush=True)
    os._exit(1)


def kill(name: str) -> None:
    """Kill a process of Ray that this process has started."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,comm"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines()[1:]:
        process, parent, command = line.split(None, 2)
        if int(parent) == os.getpid() and name in command:
            os.kill(int(process), signal.SIGKILL)


def count_lost(fault: str, times: int) -> str:
    """Lose Ray so many times, each in a process of its own; return the row of the table."""
    told = 0
    begun = time.perf_counter()
    for _ in range(times):
        command = [sys.executable, __file__, "--lose", fault]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        told += ended.returncode == 1 and "said: Ray" in ended.stdout
    seconds = (time.perf_counter() - begun) / times
    end = f"the run ends; one line said why in {told} of {times}"
    return f"| {OF_RAY[fault]} | {times} | 0 | - | {end} | - | {seconds:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=5, help="how often each fault is injected")
    parser.add_argument("--only", default="", help="names of faults, separated by commas")
    parser.add_argument("--lose", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.lose:
        lose(arguments.lose)
    known: dict[str, Callable[..., str]] = dict.fromkeys(OF_CLIENTS | OF_WORKERS, count)
    names = arguments.only.split(",") if arguments.only else [*known, *OF_RAY]
    print("| fault | injected | survived | updates of others lost | clients | result | s each |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if name in OF_RAY:
                print(count_lost(name, arguments.times), flush=True)
            else:
                print(count(name, arguments.times, f"{folder}/flag"), flush=True)


if __name__ == "__main__":
    main()
