"""Times each generator of `traces` and the replay of a device log, and prints a table of ms per round.

    python benchmarks/trace_speed.py [--clients 1000000] [--rounds 30]

The log has three sessions per device, one per day. Times are medians; nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from traces import TRACES, Trace

GENERATORS = {
    "always": {},
    "bernoulli": {},
    "levels": {},
    "round-robin": {},
    "time-varying": {},
    "diurnal": {},
    "sleep": {},
    "markov": {},
    "sine": {},
    "pools": {},
    "pools:source=measured": {"source": "measured"},
    "stragglers": {},
    "lost": {},
    "rates": {},
    "rates:dynamics=markov": {"highest": 0.9, "dynamics": "markov"},
    "rates:dynamics=cyclic": {"highest": 0.9, "dynamics": "cyclic"},
    "periodic": {},
    "sessions": {},
    "sessions:kind=slots": {"kind": "slots"},
}
FIRST = 50  # the first round timed


def write_log(path: Path, num_clients: int) -> None:
    """Write three days of a device log."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write("client,start,end,steps_per_second\n")
        for day in range(3):
            start = day * 86400 + rng.integers(0, 30000, num_clients)
            end = start + rng.integers(10000, 50000, num_clients)
            speed = np.round(rng.lognormal(-4, 1, num_clients) + 0.001, 4)
            rows = zip(range(num_clients), start.tolist(), end.tolist(), speed.tolist(), strict=True)
            file.writelines(f"{k},{a},{b},{v}\n" for k, a, b, v in rows)


def milliseconds(trace: Trace, rounds: int) -> tuple[float, float]:
    """Return the median and the longest time that one round's availability and lost replies take."""
    taken = []
    for t in range(FIRST, FIRST + rounds):
        begin = time.perf_counter()
        trace.round(t)
        trace.lost(t)
        taken.append(1000 * (time.perf_counter() - begin))
    return statistics.median(taken), max(taken)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1_000_000, help="N")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print("| trace | median ms | longest ms |\n|---|---|---|")
    for name, values in GENERATORS.items():
        trace = TRACES[name.partition(":")[0]](options.clients, 0, **values)
        median, longest = milliseconds(trace, options.rounds)
        print(f"| `{name}` | {median:.1f} | {longest:.1f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        write_log(path, options.clients)
        for on_interrupt in ("stop", "pause"):
            begin = time.perf_counter()
            trace = TRACES["recorded"](options.clients, 0, file=str(path), on_interrupt=on_interrupt)
            loading = time.perf_counter() - begin
            median, longest = milliseconds(trace, options.rounds)
            print(f"| `recorded:on-interrupt={on_interrupt}` | {median:.1f} | {longest:.1f} |", flush=True)
        size = path.stat().st_size / 1e6
    print(f"\nThe log: {3 * options.clients:,} sessions, {size:.0f} MB, loaded in {loading:.1f} s.")


if __name__ == "__main__":
    main()
