"""Client updates per second in event time, beside rounds in which all clients reply.

    python benchmarks/event_time.py --data-dir data
    python benchmarks/event_time.py --clients 1000000 --at-work 1000 --replies 10,1000 --rounds 200

FedLaAvg's setting: MNIST, 1,000 clients of 60 images, logistic regression, 10 local steps of batch 5, FedBuff
without a buffer; speeds are log-normal with spread 0.5. Each number of replies that ends a round, and rounds
of as many clients as are at work, run in turns, in separate processes, in one process each.
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
from benchmarks.workloads import WORKLOADS, ensure_mnist, settings_of

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
    return {"module": "with_fedtide", "settings": settings, "rounds": rounds, "seconds": seconds}


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
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    about = machine()
    rates: dict[int, list[float]] = {replies: [] for replies in (0, *map(int, chosen.replies.split(",")))}
    memory: dict[int, int | None] = {}
    with tempfile.TemporaryDirectory() as scratch:
        data_dir, note = ensure_mnist(chosen.data_dir, scratch)
        for _ in range(chosen.turns):
            for replies in rates:
                sizes = (chosen.at_work, chosen.clients)
                one = measure(job_of(replies, *sizes, data_dir, chosen.rounds, chosen.seconds), 600.0)
                if one.error:
                    raise SystemExit(one.error)
                rates[replies].append(rate_of(one, replies or chosen.at_work))
                memory[replies] = one.peak_bytes
    rows, results = [], []
    for replies, found in rates.items():
        rate, size = statistics.median(found), replies or chosen.at_work
        ratio = rate / statistics.median(rates[0])
        row = {"replies": replies, "updates_per_second": rate, "turns": sorted(found), "ratio": ratio}
        results.append({**row, "seconds_per_round": size / rate, "peak_bytes": memory[replies]})
        shown = f"{min(found):,.0f} to {max(found):,.0f}"
        rows.append([replies or "all", rate, shown, ratio, 1000 * size / rate, mebibytes(memory[replies])])
    print(table(["B", "updates/s", "turns", "of all", "ms a round", "MiB"], rows))
    print(f"\n{machine_line(about)}{note and chr(10) + note}")
    write_json(chosen.json, machine=about, results=results)


if __name__ == "__main__":
    main()
