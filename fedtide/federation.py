"""The federation of a run: data, model and trace, which clients and server make alike from the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedtide.base import dotted
from fedtide.base.errors import SettingsError
from fedtide.base.memory import check_room
from fedtide.base.specs import Part, bind, trace_specs
from fedtide.config.settings import Settings
from fedtide.tasks import (
    MODELS,
    PARTITIONS,
    RATE,
    RATES,
    SIZES,
    TASKS,
    FederatedData,
    TaskSource,
    are_classes,
    initialise,
)
from fedtide.tasks.data import client_names
from fedtide.tasks.foreign_partitions import checked_partition, checked_sizes
from traces import TRACES, Membership, Trace, parse_rounds
from traces.base import NEVER
from traces.compose import combined

if TYPE_CHECKING:
    from torch import nn

CLIENT_BYTES = 100  # of each client, in the trace, roster and data


class ModelEnds(NamedTuple):
    """The shape of a model's inputs, its number of outputs, and of tokens (0: inputs are numbers)."""

    input_shape: tuple[int, ...]
    num_outputs: int
    vocabulary: int = 0


@dataclass(eq=False)
class Federation:
    """The parts that its settings name, each bound once; data and trace are read when needed."""

    settings: Settings
    task: Part
    source: TaskSource  # not loaded yet
    partition: Part | None  # None for data that come divided among the clients
    sizes: Part
    model: Part
    traces: tuple[Part, ...]

    @classmethod
    def of(cls, settings: Settings, **more: Any) -> Self:
        """Bind the parts; SettingsError: one does not exist, or does not allow its options."""
        needed = f"num-clients is {settings.num_clients}"
        check_room(needed, CLIENT_BYTES * settings.num_clients, "use fewer clients")
        task = bind("task", TASKS, settings.task)
        source = _source(task, settings.data_dir, _never(settings))
        partition = settings.partition or source.default_partition
        model = bind("model", MODELS, settings.model or source.default_model)
        if not settings.learning_rate:
            settings = replace(settings, learning_rate=RATES.get(model.name, RATE))
        return cls(
            settings=settings,
            task=task,
            source=source,
            partition=bind("partition", PARTITIONS, partition) if partition else None,
            sizes=bind("sizes", SIZES, settings.sizes),
            model=model,
            traces=tuple(bind("trace", TRACES, spec) for spec in trace_specs(settings.trace)),
            **more,
        )

    def replace(self, **changes: Any) -> Self:
        """Return the same parts and data under changed settings, of which none may name or shape a part."""
        other = copy(self)
        other.settings = replace(self.settings, **changes)
        return other

    @property
    def parts(self) -> dict[str, tuple[Part, ...]]:
        """The bound parts by kind."""
        parts = {"task": (self.task,), "model": (self.model,)}
        parts |= {"partition": (self.partition,)} if self.partition else {}
        return parts | {"sizes": (self.sizes,), "trace": self.traces}

    @property
    def model_name(self) -> str:
        """The spec of the model: the one that is set, or the task's own."""
        return self.settings.model or self.source.default_model

    @property
    def missing_folder(self) -> str | None:
        """The folder of the task's data if it does not exist: loading would download them."""
        folder = self.task.options.get("data_dir", self.settings.data_dir)
        return folder if self.task.takes("data_dir") and not Path(folder).is_dir() else None

    @cached_property
    def data(self) -> FederatedData:
        """The data, divided among the clients; SettingsError if the settings are impossible for them.

        Clients that never come have no examples.
        """
        settings = self.settings
        held_out = settings.evaluate_on != "test" or settings.evaluate_clients
        return self._of_those_who_come(self.divided(settings.holdout if held_out else 0.0))

    @cached_property
    def trace(self) -> Trace:
        """The availability of all clients in all rounds, arrivals and departures included.

        A recording with names of clients goes by those of the data or, if these have none, by those of the
        recording before it.
        """
        settings = self.settings
        names = client_names(self.data) if any(p.takes("client_names") for p in self._by_data) else ()
        traces: list[Trace] = []
        for part in self.traces:
            traces.append(self._one_trace(part, names))
            names = names or traces[-1].devices
        if settings.arrivals or settings.departures:
            rounds = (_rounds(name, getattr(settings, name)) for name in ("arrivals", "departures"))
            traces.append(Membership(settings.num_clients, *rounds))
        return combined(traces)

    @property
    def trace_needs_data(self) -> bool:
        """Whether the trace depends on the clients' data: on their labels, or on their names."""
        return bool(self._by_data)

    @property
    def model_ends(self) -> ModelEnds:
        """What the model for the data takes and gives."""
        data = self.data
        return ModelEnds(data.input_shape, data.num_outputs, getattr(data, "vocabulary", 0))

    def model_builder(self, ends: ModelEnds | None = None) -> Callable[[], nn.Module]:
        """Return a function that makes the model, by default for the data, see `model_maker`."""
        return model_maker(self.model, self.settings.seed, ends or self.model_ends)

    def divided(self, holdout: float) -> FederatedData:
        """Load the data and divide them among all clients, each of which holds out a share of its own."""
        settings, partition = self.settings, None
        if settings.partition and self.source.default_partition is None:
            raise SettingsError(
                f"task {settings.task}: the data are already divided among the clients; "
                "leave the partition out"
            )
        if self.partition:
            partition = _divide(self.partition, PARTITIONS, checked_partition)
        sizes = _divide(self.sizes, SIZES, checked_sizes)
        return self.source.federate(settings.num_clients, partition, sizes, holdout, settings.seed)

    def _of_those_who_come(self, data: FederatedData) -> FederatedData:
        if not (never := _never(self.settings)):
            return data
        if not hasattr(data, "without"):
            raise SettingsError(
                f"arrivals: the data of task {self.settings.task} cannot do without the examples of clients "
                "that never come: they have no method `without`"
            )
        rest: FederatedData = data.without(never)
        return rest

    @cached_property
    def _by_data(self) -> list[Part]:
        """The traces that depend on the data."""
        named = self.source.default_partition is None  # whose clients may have names
        return [
            part
            for part in self.traces
            if part.takes("label_shares")
            or (named and part.takes("client_names") and ("file" in part.options or not part.takes("file")))
        ]

    def _one_trace(self, part: Part, names: tuple[str, ...]) -> Trace:
        settings = self.settings
        # A trace with a clock needs the number of steps.
        given: dict[str, Any] = {"local_steps": settings.local_steps, "client_names": names}
        given["data_dir"] = settings.data_dir
        if part.takes("label_shares"):
            given["label_shares"] = self._label_shares()
        trace: Trace = part.build(settings.num_clients, settings.seed, **given)
        dotted.expect("trace", part.name, trace, Trace, "derive it from traces.Trace and define `round`")
        return trace

    def _label_shares(self) -> NDArray[np.float64]:
        """Return the share of each label in each client's data, shape (N, L); zeros for one without examples.

        Held-out examples count, too: who is online must not depend on how the run is evaluated.
        """
        data = self._of_those_who_come(self.divided(holdout=0.0))
        if not are_classes(data.test[1]):
            where = f"trace {self.settings.trace}"
            raise SettingsError(f"{where}: the targets of task {self.settings.task} are not classes")
        counts = np.empty((self.settings.num_clients, data.num_outputs))
        for client in range(self.settings.num_clients):
            _, labels = data.train_set(np.array([client]))
            counts[client] = np.bincount(labels, minlength=data.num_outputs)
        return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def model_maker(model: Part, seed: int, ends: ModelEnds) -> Callable[[], nn.Module]:
    """Return a function that makes a model for some data, with initial weights drawn from the seed."""
    options = dict(model.options)
    if model.takes("vocabulary") and not options.get("vocabulary"):
        options["vocabulary"] = ends.vocabulary
    make = partial(model.factory, ends.input_shape, ends.num_outputs, **options)
    return partial(initialise, make, seed)


def _never(settings: Settings) -> tuple[int, ...]:
    """Return the clients that never come."""
    when = _rounds("arrivals", settings.arrivals) if "never" in settings.arrivals else {}
    return tuple(k for k in sorted(when) if when[k] == NEVER and k < settings.num_clients)


def _source(task: Part, data_dir: str, never: tuple[int, ...]) -> TaskSource:
    """Return the data set that a task stands for; nothing is loaded yet."""
    if isinstance(task.factory, type) and not hasattr(task.factory, "federate"):  # it is not called
        raise SettingsError(f"task {task.name} has no method federate: see fedtide.tasks.TaskSource")
    source: TaskSource = task.build(data_dir=data_dir, absent=never)
    for attribute in ("default_partition", "default_model", "federate"):
        if not hasattr(source, attribute):
            made = f"task {task.name} gives a {type(source).__name__}"
            raise SettingsError(f"{made} without {attribute}: see fedtide.tasks.TaskSource")
    alone = task.takes("absent") or getattr(source, "clients_are_apart", False)
    if never and source.default_partition is None and not alone:
        raise SettingsError(
            f"arrivals: task {task.name} may compute means or the like from clients that never come as well; "
            "if it does not, set clients_are_apart = True in it"
        )
    return source


def _divide(part: Part, registry: Mapping[str, Any], checked: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a part stands for, whose results are checked if it is the user's own."""
    divide = partial(part.factory, **part.options)
    return divide if part.name in registry else checked(part.name, divide)


def _rounds(name: str, text: str) -> Any:
    try:
        rounds = parse_rounds(text)
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from None
    if name == "departures" and (staying := [client for client, when in rounds.items() if when == NEVER]):
        raise SettingsError(f"departures: client {staying[0]} departs never; leave it out")
    return rounds
