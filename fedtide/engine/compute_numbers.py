"""Computes the numbers of a finished run's clients: shares of the updates, rates of participation, scores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from torch import nn

from clients.gradients.flat import FlatModel
from clients.simulated.evaluation import PartScores, part_scores
from fedtide.base.files import read_arrays
from fedtide.config import Settings
from fedtide.engine.client_numbers import SAMPLE, ClientNumbers, keep_numbers, read_numbers
from fedtide.engine.experiment import Experiment
from fedtide.engine.groups import TimesActive, group_numbers, groups_of, spread
from fedtide.engine.observers import Record
from fedtide.engine.read_run import Run
from fedtide.engine.run import Outcome
from fedtide.engine.run_folder import finite
from fedtide.engine.update_shares import check_replayable, update_shares
from fedtide.federation import Federation
from fedtide.plan import Plan
from fedtide.tasks import Examples, FederatedData
from fedtide.tasks.metrics import View
from traces import Trace

MAX_EXAMPLES = 20_000  # that the scores are computed on
MAX_UPDATES = 20_000  # client updates that are replayed: a thousand take about 0.1 seconds
HELD_OUT = "its held-out examples"
MIN_UPDATES = 10  # that a round takes as long as, which in event time may have one


def numbers_of_run(run: Run, compute: bool) -> ClientNumbers | str:
    """Return the numbers that a run's folder keeps, else compute them; or the reason why there are none."""
    kept = read_numbers(run.path)
    if kept is not None:
        return kept
    if run.problem:
        return f"the run {run.problem}"
    if not compute:
        return "not computed yet; fedtide report FOLDER computes them"
    settings = run.settings
    try:
        federation = Federation.of(settings.for_clients())
        if (missing := federation.missing_folder) is not None:
            return f"the data of {settings.task} are not in {missing}"
        arrays = [*read_arrays(run.path / "weights.npz").values()]
        made = (federation.data, federation.trace, federation.model_builder()())
        numbers = compute_numbers(settings, *made, arrays, run.records)
    except (ValueError, OSError, EOFError, KeyError, RuntimeError, BadZipFile) as error:
        return " ".join(str(error).split())
    keep_numbers(run.path, numbers)
    return numbers


def keep_numbers_of(experiment: Experiment, ended: Outcome, run: Run) -> None:
    """Compute the numbers of a run that has just ended, and keep them in its folder, if the run counts."""
    if not run.problem:
        made = (experiment.data, experiment.trace, experiment.build_model())
        numbers = compute_numbers(experiment.settings, *made, ended.arrays, run.records, experiment.plan)
        keep_numbers(run.path, numbers)


def compute_numbers(
    settings: Settings,
    data: FederatedData,
    trace: Trace,
    module: nn.Module,
    arrays: Sequence[NDArray[Any]],
    records: Sequence[Record],
    plan: Plan | None = None,
) -> ClientNumbers:
    """Compute the numbers of all clients, or of a sample of them that is always the same.

    `module` may have any weights; `arrays` are the final ones, one per tensor. Without a plan, one is made:
    if that is impossible, the shares of the updates and further metrics of groups are missing.
    """
    n, notes = settings.num_clients, []
    clients = np.arange(n)
    if n > SAMPLE:
        clients = np.sort(np.random.default_rng([*b"report-clients"]).permutation(n)[:SAMPLE])
        notes.append(f"A sample of {SAMPLE:,} of the {n:,} clients is shown.")
    rounds = [record for record in records if record["round"] > 0]
    if plan is None:
        with suppress(ValueError):  # `_shares` says why
            plan = Plan.of(settings)
    shares, limits = _shares(settings, plan, len(rounds), data.sizes, trace, clients)
    notes += limits
    weights = np.concatenate([np.ravel(a) for a in arrays])
    model, metric = FlatModel(module, "cpu", data.criterion), data.criterion.metric
    functions = plan.functions if plan else ()
    found, scores_on, note = _scores(model, weights, data, clients, {each.view for each in functions})
    active = TimesActive(n)
    for record in rounds:
        active.round(record)
    counts, means = active.counts, found.means
    held_out = scores_on == HELD_OUT
    groups = groups_of(data, counts) if held_out else {}
    return ClientNumbers(
        clients=clients.tolist(),
        examples=data.sizes[clients].tolist(),
        data_shares=(data.sizes / max(1, data.sizes.sum()))[clients].tolist(),
        rates=_rounded(counts[clients] / max(1, len(rounds))),
        update_shares=[] if shares is None else _rounded(shares),
        metric=metric.title,
        is_share=metric.is_share,
        scores=[None if np.isnan(score) else round(float(score), 6) for score in means],
        scores_on=scores_on,
        notes=notes + note,
        spread=finite(spread(means[found.counted], metric.higher_is_better)),
        groups=finite(group_numbers(groups, found, clients, data, functions)),
    )


def _shares(
    settings: Settings,
    plan: Plan | None,
    num_rounds: int,
    sizes: NDArray[np.int64],
    trace: Trace,
    clients: NDArray[np.intp],
) -> tuple[NDArray[np.float64] | None, list[str]]:
    """Return some clients' shares of the updates, from as many rounds as take seconds; None if unknown.

    Sentences name what is missing.
    """
    asked = settings.clients_per_round or trace.num_clients
    if settings.round_ends:
        asked = max(settings.round_ends, MIN_UPDATES)
    if asked > MAX_UPDATES:
        return None, [f"Shares of the updates are computed for at most {MAX_UPDATES:,} clients per round."]
    rounds = min(num_rounds, MAX_UPDATES // asked)
    groups = np.full(trace.num_clients, len(clients))  # all others together
    groups[clients] = np.arange(len(clients))
    try:
        plan = plan or Plan.of(settings)
        check_replayable(plan)
        shares = update_shares(plan, sizes, trace, groups, rounds)[: len(clients)]
    except ValueError as error:
        return None, [f"Shares of the updates are missing: {error}."]
    part = f"Shares of the updates cover the first {rounds:,} of {num_rounds:,} rounds."
    return shares, [part] if rounds < num_rounds else []


def _scores(
    model: FlatModel,
    weights: NDArray[Any],
    data: FederatedData,
    clients: NDArray[np.intp],
    needed: Collection[View],
) -> tuple[PartScores, str, list[str]]:
    """Return the scores of each client's own examples, their name, and a note if they are a part."""
    own, name = data.holdout, HELD_OUT
    try:
        own(clients[:1])
    except ValueError:
        own, name = data.train_set, "its own training examples"
    most = max(1, MAX_EXAMPLES // max(1, len(clients)))
    parts: list[Examples] = [own(np.array([client])) for client in clients.tolist()]
    cut = any(len(targets) > most for _, targets in parts)
    parts = [(x[:most], targets[:most]) for x, targets in parts]
    model.load(weights)
    note = f"{data.criterion.metric.title.capitalize()} is on the first {most} examples of each client."
    return part_scores(model, parts, needed), name, [note] if cut else []


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
