"""Times each generator of `traces` and the replay of a device log, and prints a table of ms per round.

    python benchmarks/trace_speed.py [--clients 1000000] [--rounds 30]
    python benchmarks/trace_speed.py --phones FOLDER    # `--show-trace phones:all` of 107,749 drawn phones

The log has three sessions per device, one per day. Times are medians; nothing else should run meanwhile.

Drawn phones are in files of FedScale's format and size, in FOLDER/fedscale: a stand-in where these cannot be
downloaded. Their shares of time online are log-normal, with median 5 % and a tenth above 23 %.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import sim
from traces import TRACES, Trace
from traces.recorded import fedscale

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


def drawn_phone(rng: np.random.Generator) -> dict[str, object]:
    """Draw a phone of FedScale's availability data: 5 to 13 days with some 16 sessions."""
    finish = int(rng.integers(5 * 86400, 13 * 86400))
    share, count = min(0.99, rng.lognormal(-3.0, 1.2)), 1 + rng.geometric(1 / 16)
    spells = rng.exponential(1, (count, 2))
    spells *= np.array([1 - share, share]) / spells.sum(axis=0)
    times = np.rint((np.cumsum(spells) + rng.random()) * finish).astype(int) % finish
    active, inactive = times[::2], times[1::2]
    if (active > inactive).any():  # the session at the end goes on at the beginning
        active, inactive = np.append(active, 0), np.append(inactive, finish)
    active, inactive = np.sort(active), np.sort(inactive)
    return {
        "duration": int((inactive - active).sum()),
        "inactive": inactive.tolist(),
        "finish_time": finish,
        "active": active.tolist(),
        "model": f"model {rng.integers(3000)}",
    }


def write_phones(folder: Path) -> None:
    """Write files like FedScale's: 107,749 phones, those online longest first, and 500,000 capacities."""
    rng = np.random.default_rng(0)
    phones = sorted((drawn_phone(rng) for _ in range(107_749)), key=lambda phone: -phone["duration"])
    ms, kbps = np.rint(rng.lognormal(4.5, 0.7, 500_000)) + 1, rng.lognormal(8, 1.2, 500_000)
    capacities = [{"computation": a, "communication": b} for a, b in zip(ms, kbps, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(fedscale.SHA256, (phones, capacities), strict=True):
        (folder / name).write_bytes(pickle.dumps(dict(enumerate(content, start=1)), protocol=3))


def show_phones(data_dir: Path, command: list[str]) -> None:
    """Run a command on all phones in a folder, drawn there if it has none; print seconds and MiB."""
    folder = data_dir / "fedscale"
    if not folder.exists():
        write_phones(folder)
    for name in fedscale.SHA256:
        with (folder / name).open("rb") as file:
            fedscale.SHA256[name] = hashlib.file_digest(file, "sha256").hexdigest()
    begin, cpu = time.perf_counter(), time.process_time()
    sim.main([*(command or ["--show-trace=phones:all", "--num-clients=107749"]), f"--data-dir={data_dir}"])
    taken, cpu = time.perf_counter() - begin, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{taken:.1f} s, {cpu:.1f} s of CPU, {peak:.0f} MiB")


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
    parser.add_argument("--phones", type=Path, metavar="FOLDER", help="a data directory")
    options, command = parser.parse_known_args()
    if options.phones:
        show_phones(options.phones, command)
        return
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
