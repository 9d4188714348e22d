"""A fleet: what follows from its log, and the command that starts on its devices what was simulated."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from fedtide.base.specs import bind, trace_specs
from fedtide.base.wording import count
from fedtide.config import Settings
from fedtide.tasks import TASKS
from traces import TRACES
from traces.base import SECOND
from traces.recorded.device_log import read_device_log
from traces.recorded.log import DeviceLog

METHODS = ["fedavg", "scheme-c", "mifa", "mimic"]  # unless others are named
SEEDS = [0, 1, 2]
MAX_CLIENTS = 2**20  # in a log that numbers them

# Settings without effect under `flwr run`, and those that simulate who takes part.
LEFT_OUT = {"engine", "num-workers", "client-gpus", "ray-address", "client-timeout", "cohort-size", "resume"}
LEFT_OUT |= {"trace", "arrivals", "departures", "data-dir", "run-dir"}
SUPERLINK = "lab"  # in docs/deploy.md; without a name, Flower simulates
STATE = "/var/lib/fedtide"  # of its server: where runs may read and write
PATHS = ("", "file", "folder", "name", "path")  # options that may be paths; the first is NAME of hf:NAME


def rehearsal_values(log: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a rehearsal, by kebab-case key: those given, and what follows from the log.

    `log` is what follows `recorded:file=` in a trace: FILE, or FILE,OPTION=VALUE,... ValueError: the log
    cannot be read, or a setting contradicts it.
    """
    for key in ("trace", "resume", "cell"):
        if values.get(key):
            change = "--rehearse FILE,OPTION=VALUE+... changes the trace"
            advice = change if key == "trace" else "leave it out"
            raise SettingsError(f"{key} does not go with a rehearsal: {advice}")
    first, *others = trace_specs(f"recorded:file={log}")
    options = bind("trace", TRACES, first).options
    found = read_device_log("rehearse", options["file"], MAX_CLIENTS)
    speeds = speeds_by_device(found)
    # Sessions without a speed get those of the other devices. Where the log has no speeds at all, a device
    # that is online throughout a round just finishes its steps.
    if len(speeds) and np.isnan(found.speed).any() and not {"speed", "spread"} & options.keys():
        first += f",speed={np.median(speeds):.6g},spread={np.log(speeds).std():.6g}"
    named = sum(map(bool, found.names))
    devices = named or int(np.flatnonzero(np.diff(found.first))[-1]) + 1
    given = {"strategy": METHODS, "seed": SEEDS, "num-clients": devices}
    return {**given, **values, "trace": "+".join([first, *others])}


def speeds_by_device(log: DeviceLog) -> NDArray[np.float64]:
    """Return the median steps per second (of an even number, the lower one) of each device that has some."""
    import pandas

    devices = np.repeat(np.arange(log.num_devices), np.diff(log.first))
    medians = pandas.Series(log.speed).groupby(devices).quantile(interpolation="lower")
    return np.asarray(medians.dropna())


def deadline(settings: Settings) -> float:
    """Return the seconds that a client of this rehearsal has for its work."""
    trace = bind("trace", TRACES, trace_specs(settings.trace)[0])
    return float(trace.option("deadline") or trace.option("round_seconds"))


def describe_log(settings: Settings, covered: float) -> list[tuple[str, str]]:
    """Return lines on the log of a rehearsal whose rounds last `covered` seconds, each a name and a text."""
    trace = bind("trace", TRACES, trace_specs(settings.trace)[0])
    log = read_device_log("rehearse", trace.options["file"], MAX_CLIENTS)
    length = float(log.cycle.max()) / SECOND
    share = f"the rounds cover {covered / 3600:.1f} of {length / 3600:.1f} hours"
    if covered < 0.9 * length:
        rounds = math.ceil(length / float(trace.option("round_seconds")))
        longer = math.ceil(length / settings.num_rounds)
        share += f", {covered / length:.0%}; --num-rounds {rounds} or FILE,round-seconds={longer} covers all"
    speeds = speeds_by_device(log)
    steps = "the log has no speeds: a device that is online throughout a round just finishes its steps"
    if len(speeds):
        typical = f"{np.median(speeds):.3g} per second (median of {count(len(speeds), 'device')})"
        steps = f"{typical}, from {speeds.min():.3g} to {speeds.max():.3g}"
    return [("log", share), ("local steps", steps)]


class Deployment(NamedTuple):
    """How a run is started on devices, on the server of docs/deploy.md."""

    values: dict[str, Any]  # the settings for `flwr run` that differ from their defaults, by kebab-case key
    files: dict[str, str]  # on this machine, by the paths that the settings have on the server

    @property
    def command(self) -> str:
        """The command line that starts it."""
        shown = " ".join(f"{key}={_quoted(value)}" for key, value in self.values.items())
        return f"flwr run . {SUPERLINK} --stream --run-config {shlex.quote(shown)}"


def deployment(settings: Settings, **changes: Any) -> Deployment:
    """Return how what was simulated is started on devices.

    No trace is among the settings, as one that is named is replayed: members are the devices that connect.
    `changes` are settings that only devices need, by field.
    """
    defaults, values = Settings().as_mapping(), replace(settings, **changes).as_mapping()
    chosen = {key: value for key, value in values.items() if value != defaults[key] and key not in LEFT_OUT}
    files: dict[str, str] = {}
    for key, value in chosen.items():
        if isinstance(value, list):  # which the run configuration has none of
            chosen[key] = ",".join(_on_server(part, files) for part in value)
        elif isinstance(value, str):
            name, colon, options = value.partition(":")
            chosen[key] = name + colon + ",".join(_on_server(part, files) for part in options.split(","))
    if bind("task", TASKS, settings.task).takes("data_dir"):
        chosen["data-dir"] = f"{STATE}/data"
    return Deployment(chosen | {"run-dir": f"{STATE}/runs"}, files)


def _on_server(option: str, files: dict[str, str]) -> str:
    """Return KEY=VALUE or VALUE with the path on the server, if it is one; add that to `files`."""
    key, equals, value = option.rpartition("=")
    if key == "data-dir":
        return f"{key}={STATE}/data"
    if not value or not (key in PATHS or "/" in value) or not os.path.exists(value):
        return option
    here = Path(value).resolve()
    there = f"{STATE}/{here.name}"
    if files.setdefault(there, str(here)) != str(here):
        there = f"{STATE}/{'-'.join(here.parts[1:])}"
        files[there] = str(here)
    return f"{key}{equals}{there}"


def _quoted(value: Any) -> str:
    """Return a value in TOML; Flower finds the end of a text by its quotes and knows no escapes."""
    if isinstance(value, str) and ('"' in value or "\\" in value):
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)
