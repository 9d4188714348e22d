"""A run without some of its clients: `fedtide without RUN --clients 3,7`.

Exact unlearning by replay: the rounds from the arrival of these clients on are run again as if they had never
come. Traces are functions of the round and every draw of a client is its own, so that all others do what they
would have done: the weights are those of a run with the arrivals `3=never,7=never`, bit by bit.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedtide.api.functions import run as resume
from fedtide.base.display import command
from fedtide.base.errors import RunError, SettingsError
from fedtide.base.wording import client_name, count, duration, new_console, say
from fedtide.config import Settings
from fedtide.engine.checkpoints.checkpointing import FOLDER
from fedtide.engine.checkpoints.resume import what_changed
from fedtide.engine.checkpoints.store import CheckpointStore
from fedtide.engine.client_states import number_of
from fedtide.engine.read_run import Run, consistent, read_run
from fedtide.engine.run_folder import RunFolder, finite
from fedtide.federation import Federation
from fedtide.plan import Plan
from strategies.core.state import StateDict, take
from traces import parse_rounds, written_rounds
from traces.base import NEVER

if TYPE_CHECKING:
    from fedtide.tasks import Examples, FederatedData

PROG = "fedtide without"
BLOCK = 1000  # clients whose examples are compared at once


@dataclass(frozen=True)
class Measured:
    """How a model does on the examples of the clients that left, and on the test split of the task."""

    their_loss: float
    their_metric: float
    test_loss: float
    test_metric: float


@dataclass(frozen=True)
class Replay:
    """A run and its replay without some clients."""

    run_dir: str  # the folder of the replay
    clients: list[int]  # who is left out
    rounds: int  # of the replay
    replayed: int  # how many of them were run again
    seconds: float  # that took, on the wall clock
    distance: float  # norm of the difference of the final weights; NaN: a smaller vocabulary, another model
    relative: float  # that over the norm of the run's weights
    metric: str  # name of the task's metric
    before: Measured
    after: Measured


def replay(run: Run, clients: Sequence[int], run_dir: Path, progress: bool = True) -> Replay:
    """Run the rounds again that some clients may have influenced, without them, in a new folder in `run_dir`.

    SettingsError: the run cannot be replayed, or not without these clients; RunError: the replay has failed;
    KeyboardInterrupt: it was interrupted.
    """
    _check_replayable(run)
    settings = _without(run.settings, clients)
    first = min(_first_round(run, client) for client in clients)
    if first > run.last_round:
        raise SettingsError(f"{run.path}: none of these clients came in its {count(run.last_round, 'round')}")
    plan = Plan.of(replace(settings, run_dir=str(run_dir)))
    console = new_console(stderr=True)
    for change in what_changed(run.path, plan.sources):
        say(console, f"warning: {change}: not all of the difference may be due to the clients")
    before = Federation.of(run.settings.for_clients())
    with_them, without_them = before.divided(holdout=0.0), plan.divided(holdout=0.0)
    if settings.evaluate_on == "everybody" or not _alike(with_them, without_them, clients):
        first = 1  # their examples count before they come
    folder = RunFolder(plan)
    folder.close()
    start, done = time.perf_counter(), _copy_checkpoint(run.path, folder.path, plan.settings, first)
    try:
        ended = resume(progress=progress, trust=True, resume=str(folder.path))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted: --resume {folder.path} continues the replay") from None
    seconds = time.perf_counter() - start
    old, new = (np.concatenate([np.ravel(a) for a in one.weights]) for one in (run, ended))
    alike = old.shape == new.shape
    distance = float(np.linalg.norm(new.astype(np.float64) - old)) if alike else math.nan
    return Replay(
        str(folder.path),
        [*clients],
        ended.last_round,
        ended.last_round - done,
        round(seconds, 3),
        distance,
        distance / float(np.linalg.norm(old.astype(np.float64)) or 1.0),
        run.metric.title,
        _measured(run, with_them, clients),
        _measured(ended, without_them, clients),
    )


def _check_replayable(run: Run) -> None:
    """Raise SettingsError for a run that cannot be run again, or need not end where it did."""
    if run.config.get("flower-run"):
        raise SettingsError(
            f"{run.path}: a run under `flwr run` cannot be replayed: the data of clients are with them"
        )
    if run.problem:
        raise SettingsError(f"{run.path}: the run {run.problem}; resume it first")
    if run.stopped.startswith("until-seconds"):
        raise SettingsError(
            f"{run.path}: until-seconds ended it, by the wall clock; resume it with --until-seconds 0 first"
        )


def _without(settings: Settings, clients: Sequence[int]) -> Settings:
    """Return the settings of the replay, in whatever engine, and without loggers."""
    arrivals, departures = parse_rounds(settings.arrivals), parse_rounds(settings.departures)
    arrivals |= dict.fromkeys(clients, NEVER)
    if len(clients) == settings.num_clients:
        raise SettingsError("clients: nobody would be left")
    departures = {client: when for client, when in departures.items() if client not in clients}
    here = replace(settings, engine="auto", ray_address="", client_timeout=0.0, log="", resume="")
    here = replace(here, until_seconds=0.0)  # not reached in the run, and no rule of the replay
    return replace(here, arrivals=written_rounds(arrivals), departures=written_rounds(departures))


def _first_round(run: Run, client: int) -> int:
    """Return the first round in which a client was a member; `NEVER`: there is none."""
    when = parse_rounds(run.settings.arrivals).get(client, 1)
    if isinstance(when, int):
        return when
    begins = ((r["round"], r.get("begin") or 0.0) for r in run.with_records().records if r["round"])
    return next((number for number, begin in begins if begin >= when), NEVER)


def _alike(old: FederatedData, new: FederatedData, left_out: Sequence[int]) -> bool:
    """Whether the test split and the examples of all other clients are encoded alike.

    Means, classes and vocabularies may come from all clients, from the first round on.
    """
    stay = np.setdiff1d(np.arange(len(old.sizes)), left_out)
    blocks = np.array_split(stay, -(-len(stay) // BLOCK))  # as all at once may not fit into memory
    pairs = chain([(old.test, new.test)], ((old.train_set(b), new.train_set(b)) for b in blocks))
    return all(np.array_equal(x, y) for pair in pairs for x, y in zip(*pair, strict=True))


def _copy_checkpoint(source: Path, folder: Path, settings: Settings, first: int) -> int:
    """Copy the newest checkpoint of a run from before a round, and the records up to it; return its round.

    Without one, the replay begins with round 1.
    """

    def check(state: StateDict) -> None:
        if take(state, "strategy.round") >= first:
            raise ValueError(f"it is not from before round {first}")

    with closing(CheckpointStore(source / FOLDER)) as kept, closing(CheckpointStore(folder / FOLDER)) as new:
        try:
            found = kept.load(check)
        except (OSError, ValueError):  # all are later, or damaged
            return 0
        if found is None:
            return 0
        length, _ = take(found.state, "metrics")
        records = (source / "metrics.jsonl").read_bytes()[:length]
        (folder / "metrics.jsonl").write_bytes(records)
        known = {key: value for key, value in settings.as_mapping().items() if key != "cohort"}
        new.save(found.round, found.state | {"settings": known})
        return found.round


def _measured(run: Run, data: FederatedData, clients: Sequence[int]) -> Measured:
    from clients.gradients.flat import FlatModel
    from clients.simulated.evaluation import evaluate

    model = FlatModel(run.model(), "cpu", data.criterion)

    def score(examples: Examples) -> tuple[float, float]:
        return evaluate(model, examples) if len(examples[1]) else (math.nan, math.nan)

    return Measured(*score(data.train_set(np.array(clients))), *score(data.test))


def describe(found: Replay, names: Sequence[str] = ()) -> str:
    """Return what a replay has shown, as lines."""
    who = ", ".join(client_name(client, names) for client in found.clients)
    rows = {
        f"{found.metric} on their examples": (found.before.their_metric, found.after.their_metric),
        "loss on their examples": (found.before.their_loss, found.after.their_loss),
        f"{found.metric} on the test split": (found.before.test_metric, found.after.test_metric),
        "loss on the test split": (found.before.test_loss, found.after.test_loss),
    }
    width = max(map(len, rows))
    lines = [
        f"without client{'s' * (len(found.clients) > 1)} {who}: {found.run_dir}",
        f"{found.replayed} of {count(found.rounds, 'round')} replayed in {duration(found.seconds)}",
        f"{'':{width}}  {'with':>9}  {'without':>9}",
        *(f"{name:{width}}  {old:9.4f}  {new:9.4f}" for name, (old, new) in rows.items()),
    ]
    if math.isnan(found.distance):
        return "\n".join([*lines, "distance of the weights: none, as their numbers differ"])
    far = f"distance of the weights: {found.distance:.4g}, {found.relative:.3g} of the norm of the run's"
    return "\n".join([*lines, far])


def _clients(run: Run, given: Sequence[str]) -> list[int]:
    """Return the numbers of clients, given by name, or as numbers and ranges with commas between them."""
    found = set[int]()
    for text in given:
        for part in [text] if text in run.client_names else filter(None, map(str.strip, text.split(","))):
            first, dash, last = part.partition("-")
            if dash and part not in run.client_names and first.isdecimal() and last.isdecimal():
                if int(first) > int(last):
                    raise SettingsError(f"clients: {part} is the wrong way round: write {last}-{first}")
                found |= {number_of(run, client) for client in range(int(first), int(last) + 1)}
            else:
                found.add(number_of(run, part))
    if not found:
        raise SettingsError(f"clients: {' '.join(given)!r} names none")
    return sorted(found)


@command(PROG)
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    text = "Run a simulation again as if some of its clients had never come, and compare the models."
    parser = argparse.ArgumentParser(prog=PROG, description=text)
    parser.add_argument("run", metavar="RUN", help="run folder")
    text = "numbers, such as 3,7-9, or names"
    parser.add_argument("--clients", required=True, nargs="+", metavar="CLIENT", help=text)
    parser.add_argument(
        "--run-dir", metavar="DIR", help="where the new run folder is made; default: that of RUN"
    )
    parser.add_argument("--trust", action="store_true", help="import parts that only the folder names")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    options = parser.parse_args(argv)
    path = Path(options.run)
    with consistent([path]):
        run = read_run(path, options.trust)
        clients = _clients(run, options.clients)
    try:
        found = replay(run, clients, Path(options.run_dir or run.settings.run_dir), progress=not options.json)
    except (RunError, KeyboardInterrupt) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 128 + signal.SIGINT
    print(json.dumps(finite(asdict(found))) if options.json else describe(found, run.client_names))
    return 0
