"""Which engine is faster for a run: this process alone, or Ray's workers, which take seconds to start."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import numpy as np

from clients.rules import SGD
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import VirtualClients
from fedtide.base.contract import FitConfig
from fedtide.base.contract.fit import planned_steps

if TYPE_CHECKING:
    from fedtide.engine.experiment import Experiment

START_SECONDS = 6.0  # until Ray and its workers have started, and in the end stopped
ROUND_SECONDS = 0.002  # that jobs and answers take on their way, in every round
EFFICIENCY = 0.7  # of a worker beside others, compared with one process
MAX_CLIENTS = 128  # that are timed
SLOW_STEP = 0.05  # seconds: a step of one client that takes as long is not timed for many
TIMED_SECONDS = 0.5  # after which no further step is worth timing
REPEATS = 5  # of the timing, of which the shortest counts


def fastest_engine(experiment: Experiment, rule: type[SGD]) -> tuple[Literal["ray", "inline"], str]:
    """Choose an engine, by timing some steps of some clients; return it, and the reason in a line.

    Both give the same bits. `rule` is what clients do in a step; plain SGD is timed.
    """
    if reason := _needs_ray(experiment):
        return "ray", reason
    cores = os.cpu_count() or 1
    if cores == 1 or find_spec("ray") is None:
        return "inline", "one core" if cores == 1 else "Ray is not installed"
    process = VirtualClients(experiment.environment)
    if rule.steps_are_corrected() and process.oracle.threads > 1:
        return "inline", "this process trains on all cores"
    seconds = _seconds(experiment, process)
    saved = seconds * (1 - 1 / (EFFICIENCY * cores)) - ROUND_SECONDS * experiment.settings.num_rounds
    why = f"about {_rounded(seconds)} of training; Ray takes {START_SECONDS:.0f} s to start"
    return "ray" if saved > START_SECONDS else "inline", why


def _needs_ray(experiment: Experiment) -> str:
    """Return the reason why the run needs Ray; empty if it does not."""
    settings = experiment.settings
    if experiment.environment.device != "cpu":
        return "workers share the GPU"
    wanted = {
        "num-workers": settings.num_workers > 1,
        "ray-address": settings.ray_address,
        "client-timeout": settings.client_timeout,
    }
    return next((f"{name} is set" for name, value in wanted.items() if value), "")


def _seconds(experiment: Experiment, process: VirtualClients) -> float:
    """Return about how long one process trains in the whole run."""
    settings, data = experiment.settings, experiment.data
    there = (experiment.clock.first.completion > 0) & (data.sizes > 0)
    if not there.any():
        return 0.0
    clients = np.flatnonzero(there)[:MAX_CLIENTS].tolist()
    examples = int(np.median(data.sizes[there]))
    planned = planned_steps(settings.local_steps, settings.local_epochs, settings.batch_size, examples)
    replies = settings.round_ends or settings.clients_per_round or len(there)
    of_round = min(replies, int(there.sum()))
    sent = Broadcast(experiment.initial.vector)

    def timed(count: int, steps: int) -> float:
        task = FitConfig(round=1, learning_rate=1e-9, batch_size=settings.batch_size, local_steps=steps)
        start = time.process_time()  # what other processes take of the core does not count
        process.fit(sent, [Job(client, (), task, 1.0) for client in clients[:count]])
        return (time.process_time() - start) / (count * steps)

    timed(1, 1)
    step = timed(1, 1)
    if step < SLOW_STEP:
        count = min(len(clients), of_round)
        steps = min(planned, max(1, int(TIMED_SECONDS / (REPEATS * count * step))))
        timed(count, steps)
        step = min(timed(count, steps) for _ in range(REPEATS))
    return step * planned * of_round * settings.num_rounds


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
