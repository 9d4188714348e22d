"""What a finished run did for each client: its share of the updates, and the score on its examples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from torch import nn

from clients.environment import federated_data, make_trace, missing_folder, model_builder
from clients.evaluation import mean_scores
from clients.gradients.flat import FlatModel
from flexfl.config import Settings
from flexfl.engine.report.reading import Run
from flexfl.engine.report.records import MOST_LINE, Record, records_of
from flexfl.engine.report.shares import bounded_shares
from flexfl.files import parse_json, read_arrays, read_text, replacing
from flexfl.tasks import Examples, FederatedData
from traces import Trace

FILE = "clients.json"
FORMAT = 2
SAMPLE = 1000  # clients, if there are more
MOST_EXAMPLES = 20_000  # that the scores are computed on


@dataclass(frozen=True)
class ClientNumbers:
    """Numbers of some or all clients of a finished run, all in the order of `clients`.

    Attributes
    ----------
    clients
        Which ones.
    examples
        n_k.
    data_shares
        n_k / n, over all clients of the federation.
    rates
        Share of the run's rounds in which an update of the client counted.
    update_shares
        Share of everything that was applied to the weights; empty if it was not computed.
    metric, is_share
        What the task reports, in words, and whether that is from 0 to 1.
    scores
        That of the final global weights, None for a client without such examples; may be empty as well.
    scores_on
        Which examples these are of.
    notes
        Sentences on what is missing or a sample.
    """

    clients: list[int]
    examples: list[int]
    data_shares: list[float]
    rates: list[float]
    update_shares: list[float]
    metric: str
    is_share: bool
    scores: list[float | None]
    scores_on: str
    notes: list[str]


def numbers_of_run(run: Run, compute: bool) -> ClientNumbers | str:
    """Return what the run folder keeps, or compute and keep it; otherwise why there is nothing.

    Parameters
    ----------
    run
        The run.
    compute
        Whether to compute what is not there.
    """
    kept = read_numbers(run.path)
    if kept is not None:
        return kept
    if run.ended:
        return f"the run {run.ended}"
    if not compute:
        return "not computed yet; python -m flexfl.report FOLDER does it"
    settings = run.settings
    try:
        if (missing := missing_folder(settings)) is not None:
            return f"the data of {settings.task} are not in {missing}"
        arrays = read_arrays(run.path / "weights.npz")
        data = federated_data(settings)
        numbers = compute_numbers(
            settings,
            data,
            make_trace(settings),
            model_builder(settings, data)(),
            arrays,
            records_of(run.path),
        )
    except (ValueError, OSError, EOFError, KeyError, RuntimeError, BadZipFile) as error:
        return " ".join(str(error).split())
    keep_numbers(run.path, numbers)
    return numbers


def read_numbers(path: Path) -> ClientNumbers | None:
    """Return what a run folder keeps; None if it has nothing or something else."""
    try:
        content = parse_json(read_text(path / FILE, MOST_LINE))
        return ClientNumbers(**content) if content.pop("format") == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep_numbers(path: Path, numbers: ClientNumbers) -> None:
    """Write the numbers into a run folder; one that cannot be written to does without."""
    try:
        with replacing(path / FILE) as temporary:
            temporary.write_text(json.dumps({"format": FORMAT} | asdict(numbers)) + "\n", encoding="utf-8")
    except OSError:
        return


def compute_numbers(
    settings: Settings,
    data: FederatedData,
    trace: Trace,
    module: nn.Module,
    arrays: Sequence[NDArray[Any]],
    records: Sequence[Record],
) -> ClientNumbers:
    """Compute the numbers of all clients, or of a sample of them, which is always the same.

    Parameters
    ----------
    settings, data, trace
        Of the run.
    module
        The model, with any weights.
    arrays
        The final weights, one array per tensor.
    records
        Of the rounds.
    """
    n, notes = settings.num_clients, []
    clients = np.arange(n)
    if n > SAMPLE:
        clients = np.sort(np.random.default_rng([*b"report-clients"]).permutation(n)[:SAMPLE])
        notes.append(f"A sample of {SAMPLE:,} of the {n:,} clients.")
    shares, limits = bounded_shares(settings, data.sizes, trace, clients)
    notes += limits
    weights = np.concatenate([np.ravel(a) for a in arrays])
    model, metric = FlatModel(module, "cpu", data.criterion), data.criterion.metric
    found, scores_on, note = _scores(model, weights, data, clients)
    counts = np.zeros(n, np.int64)
    rounds = [record for record in records if record["round"] > 0]
    for record in rounds:
        counts[[k for k in record.get("active", []) if isinstance(k, int) and 0 <= k < n]] += 1
    return ClientNumbers(
        clients=clients.tolist(),
        examples=data.sizes[clients].tolist(),
        data_shares=(data.sizes / max(1, data.sizes.sum()))[clients].tolist(),
        rates=_rounded(counts[clients] / max(1, len(rounds))),
        update_shares=[] if shares is None else _rounded(shares),
        metric=metric.title,
        is_share=metric.is_share,
        scores=[None if np.isnan(score) else round(float(score), 6) for score in found],
        scores_on=scores_on,
        notes=notes + note,
    )


def _scores(
    model: FlatModel, weights: NDArray[Any], data: FederatedData, clients: NDArray[np.intp]
) -> tuple[NDArray[np.float64], str, list[str]]:
    """Return the mean score on each client's own examples, which these are, and whether they are a part."""
    own, name = data.holdout, "its held-out examples"
    try:
        own(clients[:1])
    except ValueError:
        own, name = data.train_set, "its own training examples"
    most = max(1, MOST_EXAMPLES // max(1, len(clients)))
    parts: list[Examples] = [own(np.array([client])) for client in clients.tolist()]
    cut = any(len(targets) > most for _, targets in parts)
    parts = [(x[:most], targets[:most]) for x, targets in parts]
    model.load(weights)
    title = data.criterion.metric.title.capitalize()
    return (
        mean_scores(model, parts),
        name,
        [f"{title}: on the first {most} examples of each client."] if cut else [],
    )


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
