"""Client updates per second in event time, beside rounds in which all clients reply.

    python benchmarks/event_time.py --data-dir data
    python benchmarks/event_time.py --clients 1000000 --at-work 1000 --replies 10,1000 --rounds 200
    python benchmarks/event_time.py --data-dir data --afl-lib AFL-Lib --asyncflower FedStaleAsync

FedLaAvg's setting: MNIST, 1,000 clients of 60 images, logistic regression, 10 local steps of batch 5, FedBuff
without a buffer; speeds are log-normal with spread 0.5. Each number of replies that ends a round, and rounds
of as many clients as are at work, run in turns, in separate processes, in one process each.

Checkouts of AFL-Lib and AsyncFlower run beside them, with the same model, clients and numbers of replies: see
with_afl_lib.py and with_asyncflower.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Job, Measured, machine, machine_line, measure, mebibytes, table, write_json
from benchmarks.workloads import WORKLOADS, ensure_mnist, settings_of, write_shards
from benchmarks.workloads import job_of as job_of_peer

OURS = "with_fedtide"
WARM_UP = 20  # rounds: the first tasks are all of the same age


def job_of(replies: int, at_work: int, clients: int, data_dir: str, rounds: int, seconds: float) -> Job:
    """Return the job of a run whose rounds end with so many replies; 0: rounds of all clients at work."""
    settings = {
        **settings_of(WORKLOADS["fedlaavg"], clients, at_work, data_dir),
        "strategy": "fedbuff:buffer=1",
        "trace": "speeds" if replies else "always",
        "round-ends": replies,
        "engine": "inline",
    }
    if clients > 60_000:  # more than MNIST has images
        settings |= {"task": "synthetic", "partition": ""}
    return {"module": OURS, "settings": settings, "rounds": rounds, "seconds": seconds}


def peer_job(module: str, checkout: Path, replies: int, at_work: int, clients: int, shards: Path) -> Job:
    """Return the same job of another program, that of a checkout."""
    job = job_of_peer(WORKLOADS["fedlaavg"], clients, at_work, str(shards))
    return {**job, "module": module, "checkout": str(checkout.resolve()), "replies": replies}


def rate_of(one: Measured, replies: int) -> float:
    """Return updates per second after the first rounds; the mean, as most rounds train nobody."""
    timed = one.round_seconds[WARM_UP:] or one.round_seconds
    return replies * len(timed) / sum(timed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--clients", type=int, default=1000, help="N")
    parser.add_argument("--at-work", type=int, default=100, help="C")
    parser.add_argument("--replies", default="1,10,100", help="values of B, separated by commas")
    parser.add_argument("--rounds", type=int, default=0, help="rounds per turn; 0: for --seconds")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--afl-lib", type=Path, metavar="FOLDER", help="a checkout of AFL-Lib")
    parser.add_argument("--asyncflower", type=Path, metavar="FOLDER", help="a checkout of AsyncFlower")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    about, sizes = machine(), (chosen.at_work, chosen.clients)
    several = [int(part) for part in chosen.replies.split(",")]
    lengths = chosen.rounds, chosen.seconds
    measured: dict[tuple[str, int], list[Measured]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        data_dir, note = ensure_mnist(chosen.data_dir, scratch)
        jobs = {(OURS, replies): job_of(replies, *sizes, data_dir, *lengths) for replies in (0, *several)}
        peers = {"with_afl_lib": chosen.afl_lib, "with_asyncflower": chosen.asyncflower}
        if any(peers.values()):
            write_shards(Path(scratch), WORKLOADS["fedlaavg"], chosen.clients, data_dir)
        for module, checkout in peers.items():
            if checkout is not None:
                for replies in several:
                    job = peer_job(module, checkout, replies, *sizes, Path(scratch))
                    jobs[module, replies] = {**job, "rounds": lengths[0], "seconds": lengths[1]}
        for _ in range(chosen.turns):
            for key, job in jobs.items():
                one = measure(job, 600.0)
                if one.error:
                    raise SystemExit(f"{key[0]}: {one.error}")
                measured.setdefault(key, []).append(one)
    rates = {
        key: [rate_of(one, key[1] or chosen.at_work) for one in turns] for key, turns in measured.items()
    }
    rows, results = [], []
    for (program, replies), found in rates.items():
        rate, size = statistics.median(found), replies or chosen.at_work
        ratio, memory = rate / statistics.median(rates[OURS, 0]), measured[program, replies][-1].peak_bytes
        row = {"program": program, "replies": replies, "updates_per_second": rate, "turns": sorted(found)}
        results.append({**row, "ratio": ratio, "seconds_per_round": size / rate, "peak_bytes": memory})
        shown = f"{min(found):,.0f} to {max(found):,.0f}"
        rows.append([program, replies or "all", rate, shown, ratio, 1000 * size / rate, mebibytes(memory)])
    print(table(["program", "B", "updates/s", "turns", "of all", "ms a round", "MiB"], rows))
    print(f"\n{machine_line(about)}{note and chr(10) + note}")
    write_json(chosen.json, machine=about, results=results)


if __name__ == "__main__":
    main()
