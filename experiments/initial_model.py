"""Sets of members that recur, a new one, and members that arrive one by one, with and without initial models.

    python sim.py --config experiments/initial-model.toml
    python experiments/initial_model.py runs/compare-FOLDER

Accuracy in percent on the data of the present members (`evaluate-on = "objective"`), mean and deviation over
seeds: in the first five rounds after a change, those of a probe included, and in all rounds until the next. A
set of members is `back` if it was there before, else `new`; the first session is neither. Where members
arrive one by one, it is the mean from the first arrival to the end.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import table
from experiments.swing import curve, runs_of
from fedtide.engine.run_files import records_in
from traces import RoundAvailability, Trace

FIRST, ALL = 5, sys.maxsize  # rounds after a change
COLUMNS = {
    "back: first 5": ("back", FIRST),
    "back: all": ("back", ALL),
    "new: first 5": ("new", FIRST),
    "new: all": ("new", ALL),
    "one by one": ("arrivals", ALL),
}


class Sets(Trace):
    """Sets of clients take turns as the members, all of which are online.

    Parameters
    ----------
    num_clients, seed
        N, of which each set has an equal part, in the order of the clients; nothing is random.
    order
        A letter for each session: `ABAC` are the sets A, B, A and C. The last one stays.
    rounds
        Of a session.
    """

    def __init__(self, num_clients: int, seed: int, *, order: str = "ABABABC", rounds: int = 20) -> None:
        self.num_clients, self.order, self.rounds = num_clients, order, rounds
        self.letters = sorted(set(order))

    def round(self, t: int) -> RoundAvailability:
        """Return who is a member in round t."""
        letter = self.order[min((t - 1) // self.rounds, len(self.order) - 1)]
        number = np.arange(self.num_clients) * len(self.letters) // self.num_clients
        return everybody_online(number == self.letters.index(letter))


class OneByOne(Trace):
    """The first clients are there from the start, the others arrive one by one; all are online.

    Parameters
    ----------
    num_clients, seed
        N; nothing is random.
    first
        How many are there from the start.
    start, every
        The round of the first arrival, and the rounds from one to the next.
    """

    def __init__(
        self, num_clients: int, seed: int, *, first: int = 20, start: int = 21, every: int = 3
    ) -> None:
        self.num_clients, self.first, self.start, self.every = num_clients, first, start, every

    def round(self, t: int) -> RoundAvailability:
        """Return who is a member in round t."""
        arrived = max(0, 1 + (t - self.start) // self.every)
        return everybody_online(np.arange(self.num_clients) < self.first + arrived)


def everybody_online(member: NDArray[np.bool_]) -> RoundAvailability:
    """Return a round in which all members are online and complete."""
    return RoundAvailability(member, member.copy(), member.astype(np.float32))


def sessions(folder: Path) -> list[tuple[str, int, int]]:
    """Return kind, first round and last round of each session of a run but the first one."""
    members, seen, found, last = set[int](), list[set[int]](), list[tuple[str, int]](), 0
    for record in records_in(folder):
        last, events = record["round"], record.get("events", [])
        arrived, departed = (
            {event["client"] for event in events if event["event"] == kind}
            for kind in ("arrival", "departure")
        )
        if arrived or departed:
            if not seen:
                seen.append(members | departed)  # the first set, where all of it has left
            members = (members | arrived) - departed
            kind = "arrivals" if not departed else "back" if members in seen else "new"
            found.append((kind, last))
            seen.append(members)
    ends = [*(start - 1 for _, start in found[1:]), last]
    return [(kind, start, end) for (kind, start), end in zip(found, ends, strict=True)]


def accuracy(folder: Path, kind: str, rounds: int) -> list[float]:
    """Return the accuracy in the first rounds of all sessions of a kind, in percent."""
    by_round = curve(folder, "accuracy")
    chosen = [range(start, min(end + 1, start + rounds)) for of, start, end in sessions(folder) if of == kind]
    return [100 * by_round[number] for numbers in chosen for number in numbers]


def entry(folders: list[Path], kind: str, rounds: int) -> str:
    """Return the mean over rounds, and then over seeds with its deviation."""
    means = [fmean(found) for folder in folders if (found := accuracy(folder, kind, rounds))]
    if not means:
        return "-"
    return f"{fmean(means):.1f} ± {stdev(means):.1f}" if len(means) > 1 else f"{means[0]:.1f}"


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, help="a comparison's folder in run-dir")
    down = ["task", "learning-rate", "strategy", "initial-model"]
    try:
        runs = runs_of(parser.parse_args().folder, ["trace"], down)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    rows = []
    for (*others, initial), row in runs.items():
        folders = [folder for several in row.values() for folder in several]
        rows.append([*others, initial or "-", *(entry(folders, *column) for column in COLUMNS.values())])
    print(table([*down, *COLUMNS], rows))


if __name__ == "__main__":
    main()
