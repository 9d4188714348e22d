"""FLHetBench's metrics of heterogeneity (Zhang et al., CVPR 2024) of traces with a clock: a table.

    python experiments/heterogeneity.py SPEC... [--num-clients 100] [--seeds 3]

such as `phones:upload-bytes=343200776,download-bytes=343200776`. Rounds are played in which m of the clients
online at their beginning, or all if there are fewer, each do a task; nobody trains. Clients that leave go on
when they are back. Before each round, the server takes 20 s.

With R in its name, a metric counts the tasks that are done within 120 s, in 3000 rounds: it is
log(1 + sum_k min(S_k, c)) / log(1 + N c) for S_k of client k, where c are those of a client that does all of
its share. 1 is best. With T, it is the time until 10,000 tasks were given, where rounds end when 80 % of
their tasks are done, relative to tasks that take no time. 1 is best, too.

`Dev` is about devices, all of them online; tasks take as long as their transfers. `Stat` is about who is
online: tasks take 10, 20, ..., 120 s (R) or 0, 10, ..., 240 s (T), and the metric is the mean. `Inter` is
about both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedtide.config import Settings
from fedtide.federation import Federation
from traces.base import NEVER, SECOND, microseconds
from traces.clock import TimedTrace
from traces.sessions import Online

PAUSE, DEADLINE = 20 * SECOND, 120 * SECOND
ROUNDS, TASKS, LATE = 3000, 10_000, 0.2
Seconds = Callable[[int, Online], NDArray[np.float64]]


class Rounds:
    """Plays rounds of at most m clients of a trace, whose tasks take some time; `stay`: all are online."""

    def __init__(self, trace: TimedTrace, seconds: Seconds, m: int, seed: int, stay: bool = False) -> None:
        self.trace, self.seconds, self.m, self.stay = trace, seconds, m, stay
        self.rng = np.random.default_rng(seed)
        self.now, self.t = 0, 0

    def next(self) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Begin a round; return the clients chosen, and when their tasks are done."""
        self.t += 1
        self.now += PAUSE
        moment = self.trace.start + self.now
        there = self.trace.sessions.online(moment)
        if self.stay:
            everybody = np.arange(self.trace.num_clients)
            there = Online(everybody, np.zeros_like(everybody), np.full_like(everybody, NEVER))
        places = self.rng.permutation(len(there.client))[: self.m]
        chosen = Online(*(column[places] for column in there))
        wanted = microseconds(self.seconds(self.t, chosen))
        if self.stay or not len(places):
            return chosen.client, self.now + wanted
        done, _ = self.trace.sessions.work(moment, wanted, NEVER, chosen.client)
        return chosen.client, done - self.trace.start


def in_time(rounds: Rounds) -> float:
    """Return the metric of tasks that are done by the deadline."""
    n = rounds.trace.num_clients
    share = ROUNDS * rounds.m / n
    done = np.zeros(n)
    for _ in range(ROUNDS):
        clients, ends = rounds.next()
        done[clients[ends <= rounds.now + DEADLINE]] += 1
        rounds.now = int(np.minimum(ends, rounds.now + DEADLINE).max(initial=rounds.now))
    return float(np.log1p(np.minimum(done, share).sum()) / np.log1p(n * share))


def until_done(rounds: Rounds) -> float:
    """Return the metric of the time that tasks take."""
    given = 0
    while given < TASKS:
        clients, ends = rounds.next()
        given += len(clients)
        if len(ends):
            rounds.now = int(np.quantile(ends, 1 - LATE))
    return rounds.now / (TASKS / rounds.m * PAUSE)


def metrics(trace: TimedTrace, m: int, seed: int) -> list[float]:
    """Return Dev-R, Stat-R, Inter-R, Dev-T, Stat-T and Inter-T."""

    def transfers(t: int, there: Online) -> NDArray[np.float64]:
        return trace.rates(t, there)[1]

    found = []
    for metric, times in ((in_time, range(10, 130, 10)), (until_done, range(0, 250, 10))):
        found.append(metric(Rounds(trace, transfers, m, seed, stay=True)))
        equal = [lambda t, there, time=time: np.full(len(there.client), float(time)) for time in times]
        found.append(float(np.mean([metric(Rounds(trace, seconds, m, seed)) for seconds in equal])))
        found.append(metric(Rounds(trace, transfers, m, seed)))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", nargs="+", metavar="SPEC")
    parser.add_argument("--num-clients", type=int, default=100)
    parser.add_argument("--clients-per-round", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", default="data")
    options = parser.parse_args()
    print("| trace | DevMC-R | StatMC-R | InterMC-R | DevMC-T | StatMC-T | InterMC-T |\n" + "|---" * 7 + "|")
    for spec in options.specs:
        settings = [
            Settings(trace=spec, num_clients=options.num_clients, seed=seed, data_dir=options.data_dir)
            for seed in range(options.seeds)
        ]
        traces = [Federation.of(one).trace for one in settings]
        if not isinstance(traces[0], TimedTrace):
            sys.exit(f"{spec} has no clock")
        rows = [metrics(trace, options.clients_per_round, seed) for seed, trace in enumerate(traces)]
        means = np.mean(rows, axis=0)
        print(f"| `{spec}` | " + " | ".join(f"{value:.3f}" for value in means) + " |", flush=True)


if __name__ == "__main__":
    main()
