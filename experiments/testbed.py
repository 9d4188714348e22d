"""Reproduces the testbed of Ruan et al. 2021, section 5.1: five workers that share a CPU with a competitor.

    python experiments/testbed.py --rounds 100 --write traces/patterns/pools_measured.json
    python experiments/testbed.py --write FILE --loads 70 90    # only these; FILE keeps the other loads

A worker trains (FedAvg's local steps of a two-layer perceptron, batches of 10) pinned to one core. The
competitor that takes the share p of that core is a group of processes on the same core, at the same
niceness, which alternate between busy and idle for random times (exponential, busy for `--burst` seconds on
average). A single process would not do: the scheduler divides the core equally among the runnable processes,
so that one competing process never takes more than half. The number of processes, and the fraction of time
for which each is busy, are chosen such that they take p from a worker that always runs.

The deadline is 5 % longer than the slowest of 20 rounds of E steps without a competitor. In each round the
worker then does as many of the E steps as it can before the deadline; the share of E that it finishes is the
measurement. The five workers run one after the other, on the same core, all with the deadline of the first.
Nothing else should run on that core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import time
from datetime import date
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

LOADS = {0: 0, 30: 1, 50: 2, 70: 5, 90: 18}  # percent of the core -> number of competing processes
PAPER = {0: 0.0, 30: 14.8, 50: 11.3, 70: 11.7, 90: 14.8}  # Table 2: standard deviations
CALIBRATION = 20  # rounds without a competitor
SLACK = 1.05  # the deadline, relative to the slowest of these rounds


def busy_fraction(share: float, processes: int) -> float:
    """Fraction of time d for which each of n processes must be busy to take `share` of the core together.

    With k of them busy, the worker keeps 1 / (k + 1) of the core. For binomial k the mean of that is
    (1 - (1 - d)^(n + 1)) / ((n + 1) d), which decreases in d, so that d is found by bisection.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        d = (low + high) / 2
        left = (1 - (1 - d) ** (processes + 1)) / ((processes + 1) * d)
        low, high = (d, high) if left > 1 - share else (low, d)
    return d


def compete(core: int, busy: float, idle: float, seed: int) -> None:
    """Alternate between busy and idle for exponential times with these means in seconds, forever."""
    pin(core)
    rng = random.Random(seed)
    time.sleep(rng.expovariate(1 / idle))
    while True:
        until = time.monotonic() + rng.expovariate(1 / busy)
        while time.monotonic() < until:
            pass
        time.sleep(rng.expovariate(1 / idle))


def work(core: int, steps: int, connection: Connection) -> None:
    """Train: for each deadline received, reply with the steps done before it and the seconds taken."""
    pin(core)
    import torch
    from torch.nn import functional

    from fedtide.config import Settings
    from fedtide.federation import Federation

    torch.set_num_threads(1)
    settings = Settings(task="digits", model="mlp", num_clients=5, partition="iid")
    federation = Federation.of(settings)
    data, model = federation.data, federation.model_builder()()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    while (deadline := connection.recv()) is not None:
        begin, done = time.monotonic(), 0
        for _ in range(steps):
            x, labels = data.examples(0, rng.integers(int(data.sizes[0]), size=10))
            sgd.zero_grad()
            functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(labels)).backward()
            sgd.step()
            if time.monotonic() - begin > deadline:
                break
            done += 1
        connection.send((done, time.monotonic() - begin))


def pin(core: int) -> None:
    """Pin this process to one core if the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def cpu_seconds(process: BaseProcess) -> float:
    """Return the CPU time of a running process; NaN without /proc."""
    stat = Path(f"/proc/{process.pid}/stat")
    if not stat.exists():
        return float("nan")
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(load: int, core: int, rounds: int, steps: int, burst: float, deadline: float) -> dict[str, Any]:
    """Run one worker's rounds against a competitor; a deadline of 0 is first calibrated without one."""
    context = multiprocessing.get_context("spawn")
    connection, worker_end = context.Pipe()
    worker = context.Process(target=work, args=(core, steps, worker_end), daemon=True)
    worker.start()

    def train(limit: float) -> tuple[int, float]:
        connection.send(limit)
        steps_and_seconds: tuple[int, float] = connection.recv()
        return steps_and_seconds

    for _ in range(3):  # warm up
        train(60.0)
    if not deadline:
        deadline = SLACK * max(train(60.0)[1] for _ in range(CALIBRATION))
    competitors = []
    if n := LOADS[load]:
        d = busy_fraction(load / 100, n)
        for seed in range(n):
            arguments = (core, burst, burst * (1 - d) / d, seed)
            competitors.append(context.Process(target=compete, args=arguments, daemon=True))
            competitors[-1].start()
        time.sleep(2 + 4 * burst)  # until all have started
    begin, before = time.monotonic(), sum(map(cpu_seconds, competitors))
    shares = []
    for _ in range(rounds):
        shares.append(100 * train(deadline)[0] / steps)
        time.sleep(0.02)  # the server's share of a round
    taken = 100 * (sum(map(cpu_seconds, competitors)) - before) / (time.monotonic() - begin)
    for process in (worker, *competitors):
        process.kill()
    return {
        "name": f"cpu-{load}",
        "mean": round(statistics.mean(shares), 2),
        "sd": round(statistics.stdev(shares), 2),
        "competitors": n,
        "taken": round(taken, 1),
        "deadline_seconds": round(deadline, 3),
        "shares": [round(share, 2) for share in shares],
    }


def machine() -> str:
    """Describe the machine and the system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{name or platform.processor()}, {os.cpu_count()} cores, {system}"


def main() -> None:
    """Measure the loads and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", type=Path, required=True, metavar="FILE", help="JSON file; loads already in it are kept"
    )
    parser.add_argument("--loads", type=int, nargs="+", choices=LOADS, default=list(LOADS), help="percent")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=2000, help="E")
    parser.add_argument(
        "--burst", type=float, default=0.5, help="mean seconds for which a competing process is busy"
    )
    parser.add_argument("--core", type=int, default=(os.cpu_count() or 1) - 1)
    options = parser.parse_args()
    found = json.loads(options.write.read_text()) if options.write.exists() else {"pool": []}
    pools = {int(pool["name"].partition("-")[2]): pool for pool in found["pool"]}
    for load in sorted(options.loads):
        deadline = pools[0]["deadline_seconds"] if load and 0 in pools else 0.0
        pools[load] = measure(load, options.core, options.rounds, options.steps, options.burst, deadline)
        pool = pools[load]
        print(f"{pool['name']}: mean {pool['mean']}, sd {pool['sd']}, competitors took {pool['taken']} %")
    header = {
        "what": "Share of E that a worker finished by the deadline, in percent, round by round; see "
        "experiments/testbed.py. Measured on one machine, workers one after the other.",
        "command": f"python experiments/testbed.py --rounds {options.rounds} --steps {options.steps} "
        f"--burst {options.burst:g}",
        "machine": machine(),
        "date": date.today().isoformat(),
    }
    ordered = ",\n".join(json.dumps(pools[load]) for load in sorted(pools))
    text = json.dumps({**header, "pool": []}, indent=1).replace("[]", f"[\n{ordered}\n]")
    options.write.write_text(text + "\n")
    print("| load | mean | sd | sd in Table 2 | competitors took | minimum |\n|---|---|---|---|---|---|")
    for load, pool in sorted(pools.items()):
        cells = load, pool["mean"], pool["sd"], PAPER[load], pool["taken"], min(pool["shares"])
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
