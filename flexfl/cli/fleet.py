"""What follows from a fleet's log: how many clients there are, and what a local step costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.environment import trace_specs
from flexfl.config import Settings
from flexfl.ground.specs import bind
from flexfl.ground.wording import count
from traces import TRACES
from traces.recorded.device_log import read_device_log
from traces.recorded.sessions import DeviceLog

METHODS = ["fedavg", "scheme-c", "mifa", "mimic"]  # unless others are named
SEEDS = [0, 1, 2]
MAX_CLIENTS = 2**20  # in a log that numbers them


def rehearsal_values(log: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a rehearsal: those given, and what follows from the log.

    Parameters
    ----------
    log
        What follows `recorded:file=` in a trace: FILE, or FILE,OPTION=VALUE,...
    values
        Settings by kebab-case key; several values are a list.

    Raises
    ------
    ValueError
        The log cannot be read, or a setting contradicts it.
    """
    for key in ("trace", "resume", "cell"):
        if values.get(key):
            advice = (
                "--rehearse FILE,OPTION=VALUE+... changes the trace" if key == "trace" else "leave it out"
            )
            raise ValueError(f"{key} does not go with a rehearsal: {advice}")
    first, *others = trace_specs(f"recorded:file={log}")
    options = bind("trace", TRACES, first).options
    found = read_device_log("rehearse", options["file"], MAX_CLIENTS)
    if speeds := missing_speeds(found, options):
        first += f",{speeds}"
    devices = int(np.flatnonzero(np.diff(found.first))[-1]) + 1
    given = {"strategy": METHODS, "seed": SEEDS, "num-clients": devices}
    return {**given, **values, "trace": "+".join([first, *others])}


def missing_speeds(log: DeviceLog, options: Mapping[str, Any]) -> str:
    """Return options that give sessions without a speed those of the other devices; empty if none need it.

    Where the log has no speeds at all, a device that is online throughout a round just finishes its steps.
    """
    speeds = speeds_by_device(log)
    if not len(speeds) or not np.isnan(log.speed).any() or {"speed", "spread"} & options.keys():
        return ""
    return f"speed={np.median(speeds):.6g},spread={np.log(speeds).std():.6g}"


def speeds_by_device(log: DeviceLog) -> NDArray[np.float64]:
    """Return the median steps per second (of an even number, the lower one) of each device that has some."""
    device = np.repeat(np.arange(log.num_devices), np.diff(log.first))
    known = ~np.isnan(log.speed)
    device, speed = device[known], log.speed[known]
    speed = speed[np.lexsort((speed, device))]
    _, start, size = np.unique(device, return_index=True, return_counts=True)
    medians: NDArray[np.float64] = speed[start + (size - 1) // 2]
    return medians


def deadline(settings: Settings) -> float:
    """Return the seconds that a client of this rehearsal has for its work."""
    trace = bind("trace", TRACES, trace_specs(settings.trace)[0])
    return float(trace.option("deadline") or trace.option("round_seconds"))


def describe_speeds(settings: Settings) -> str:
    """Say what a local step costs."""
    options = bind("trace", TRACES, trace_specs(settings.trace)[0]).options
    speeds = speeds_by_device(read_device_log("rehearse", options["file"], settings.num_clients))
    if not len(speeds):
        return "the log has no speeds: a device that is online throughout a round just finishes its steps"
    typical = f"{np.median(speeds):.3g} per second (median of {count(len(speeds), 'device')})"
    return f"{typical}, from {speeds.min():.3g} to {speeds.max():.3g}"
