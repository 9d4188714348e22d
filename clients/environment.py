"""What clients train on: their data, their model and their availability, made from the settings.

Server and clients do so independently, with the same result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtide.config import Settings
from fedtide.ground import dotted
from fedtide.ground.errors import SettingsError
from fedtide.ground.specs import Part, bind
from fedtide.tasks import MODELS, PARTITIONS, SIZES, TASKS, FederatedData, TaskSource, are_classes, initialise
from fedtide.tasks.data import client_names
from fedtide.tasks.division import checked_partition, checked_sizes
from traces import TRACES, Combined, Membership, Trace, parse_rounds

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ClientEnvironment:
    """What a process needs to simulate clients."""

    data: FederatedData
    build_model: Callable[[], nn.Module]
    seed: int  # of the batches
    device: str = "cpu"
    cohort: str = "auto"  # how gradients are computed, see `clients.gradients.oracles`
    cohort_size: int = 0  # how many clients train in one call; 0: chosen
    timeout: float = 0.0  # seconds for a call that trains or evaluates, then the process ends; 0: no limit
    proven: bool = False  # cohort and size are what `choose` has chosen in this process


def task_source(settings: Settings) -> TaskSource:
    """Return the data set that the settings name; nothing is loaded yet."""
    task = bind("task", TASKS, settings.task)
    if isinstance(task.factory, type) and not hasattr(task.factory, "federate"):  # it is not called
        raise SettingsError(f"task {task.name} has no method federate: see fedtide.tasks.TaskSource")
    source: TaskSource = task.build(data_dir=settings.data_dir)
    for attribute in ("default_partition", "default_model", "federate"):
        if not hasattr(source, attribute):
            made = f"task {task.name} gives a {type(source).__name__}"
            raise SettingsError(f"{made} without {attribute}: see fedtide.tasks.TaskSource")
    return source


def missing_folder(settings: Settings) -> str | None:
    """Return the folder that the task reads its data from if it is not there: loading would download them."""
    task = bind("task", TASKS, settings.task)
    folder = task.options.get("data_dir", settings.data_dir)
    return folder if task.takes("data_dir") and not Path(folder).is_dir() else None


def federated_data(settings: Settings) -> FederatedData:
    """Load the data and divide them among the clients, as far as the settings are possible for the data."""
    source = task_source(settings)
    name = settings.partition or source.default_partition
    if settings.partition and source.default_partition is None:
        raise SettingsError(
            f"task {settings.task}: the data are already divided among the clients; leave the partition out"
        )
    partition = None
    if name:
        partition = _bound("partition", PARTITIONS, name)
    sizes = _bound("sizes", SIZES, settings.sizes)
    holdout = settings.holdout if settings.evaluate_on != "test" or settings.evaluate_clients else 0.0
    return source.federate(settings.num_clients, partition, sizes, holdout, settings.seed)


def model_name(settings: Settings) -> str:
    """Return the spec of the model: the one that is set, or the task's own."""
    return settings.model or task_source(settings).default_model


def model_builder(settings: Settings, data: FederatedData) -> Callable[[], nn.Module]:
    """Return a function that makes the model, with initial weights determined by the seed."""
    vocabulary = getattr(data, "vocabulary", 0)
    return build_for(settings, data.input_shape, data.num_outputs, vocabulary)


def build_for(
    settings: Settings, input_shape: tuple[int, ...], num_outputs: int, vocabulary: int = 0
) -> Callable[[], nn.Module]:
    """Return a function that makes the model for inputs of this shape; see `model_builder`."""
    model = bind("model", MODELS, model_name(settings))
    options = dict(model.options)
    if model.takes("vocabulary") and not options.get("vocabulary"):
        options["vocabulary"] = vocabulary
    return partial(initialise, partial(model.factory, input_shape, num_outputs, **options), settings.seed)


def make_trace(settings: Settings, data: FederatedData | None = None) -> Trace:
    """Return the availability of all clients in all rounds, arrivals and departures included.

    A recording that has names of clients goes by those of the data or, where these have none, by those of the
    recording before it. `data` are loaded where they are needed and not given.
    """
    names: tuple[str, ...] = ()
    if any(part.takes("client_names") for part in _parts_by_data(settings)):
        names = client_names(federated_data(settings) if data is None else data)
    parts: list[Trace] = []
    for spec in trace_specs(settings.trace):
        parts.append(_one_trace(spec, settings, names))
        names = names or parts[-1].devices
    if settings.arrivals or settings.departures:
        rounds = {}
        for name in ("arrivals", "departures"):
            try:
                rounds[name] = parse_rounds(getattr(settings, name))
            except ValueError as error:
                raise SettingsError(f"{name}: {error}") from None
        parts.append(Membership(settings.num_clients, rounds["arrivals"], rounds["departures"]))
    return parts[0] if len(parts) == 1 else Combined(*parts)


def trace_specs(text: str) -> list[str]:
    """Return the specs of the traces that `a+b` combines.

    A plus before a digit is part of a number, 1e+5, and one in the path of a file or folder part of that.
    """
    specs: list[str] = []
    for part in re.split(r"\+(?![0-9])", text):
        path = f"{specs[-1].rpartition('=')[2]}+{part.partition(',')[0]}" if specs else ""
        if "/" in part.partition(":")[0].partition(",")[0] or (path and os.path.exists(path)):
            specs[-1:] = [f"{specs[-1]}+{part}" if specs else part]
        else:
            specs.append(part)
    return specs


def needs_data(settings: Settings) -> bool:
    """Whether the trace depends on the clients' data: on their labels, or on their names."""
    return bool(_parts_by_data(settings))


def _parts_by_data(settings: Settings) -> list[Part]:
    """Return the traces that depend on the data."""
    named = task_source(settings).default_partition is None  # whose clients have names, perhaps
    parts = [bind("trace", TRACES, spec) for spec in trace_specs(settings.trace)]
    return [
        part
        for part in parts
        if part.takes("label_shares")
        or (named and part.takes("client_names") and ("file" in part.options or not part.takes("file")))
    ]


def _one_trace(spec: str, settings: Settings, names: Sequence[str]) -> Trace:
    part = bind("trace", TRACES, spec)
    # A trace with a clock needs the number of steps.
    given: dict[str, Any] = {"local_steps": settings.local_steps, "client_names": names}
    if part.takes("label_shares"):  # who is online depends on the data
        given["label_shares"] = label_shares(settings)
    trace: Trace = part.build(settings.num_clients, settings.seed, **given)
    dotted.expect("trace", spec, trace, Trace, "derive it from traces.Trace and define `round`")
    object.__setattr__(trace, "label", part.name)  # most are frozen
    return trace


def label_shares(settings: Settings) -> NDArray[np.float64]:
    """Return the share of each label in each client's data, shape (N, L); zeros for one without examples.

    Held-out examples count, too: who is online must not depend on how the run is evaluated.
    """
    data = federated_data(replace(settings, evaluate_on="test", evaluate_clients=0))
    if not are_classes(data.test[1]):
        raise SettingsError(f"trace {settings.trace}: the targets of task {settings.task} are not classes")
    counts = np.empty((settings.num_clients, data.num_outputs))
    for client in range(settings.num_clients):
        _, labels = data.train_set(np.array([client]))
        counts[client] = np.bincount(labels, minlength=data.num_outputs)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def client_settings(settings: Settings) -> Settings:
    """Return the settings that clients depend on, with defaults for the others."""
    kept = [field.name for field in fields(Settings) if field.metadata["client"]]
    return replace(Settings(), **{name: getattr(settings, name) for name in kept})


def _bound(kind: str, registry: dict[str, Any], text: str) -> Callable[..., Any]:
    part = bind(kind, registry, text)
    divide = partial(part.factory, **part.options)
    if part.name in registry:
        return divide
    return checked_sizes(part.name, divide) if kind == "sizes" else checked_partition(part.name, divide)
