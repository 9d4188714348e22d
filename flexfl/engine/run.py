"""A run: the rounds of an experiment over a transport, and the run folder that they leave."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from signal import Signals
from typing import Any

from flwr.common import parameters_to_ndarrays
from rich.console import Console
from threadpoolctl import threadpool_limits

from clients.environment import ClientEnvironment, task_source
from flexfl.config import Settings
from flexfl.contract import FitConfig
from flexfl.engine.availability import TraceClientManager, remember
from flexfl.engine.experiment import Experiment, client_device, prepare, strategy_options
from flexfl.engine.interrupts import deferring_interrupts, stopping_on_interrupt
from flexfl.engine.progress import ProgressReport, final_table
from flexfl.engine.run_folder import RunFolder, finite, weights_sha256
from flexfl.engine.server import RoundServer
from flexfl.engine.transports.base import Transport
from flexfl.engine.transports.late import with_late_replies
from flexfl.engine.transports.virtual import InlineTransport
from traces import RoundAvailability

__all__ = ["Experiment", "drive", "prepare", "strategy_options", "virtual_transport"]


# What a run may report of its clients in the end: personal models, and the global one on their hold-outs.
OF_CLIENTS = ("client_accuracy", "client_loss", "worst_client_accuracy", "tenth_percentile_accuracy")


def virtual_transport(experiment: Experiment, availability: Callable[[int], RoundAvailability]) -> Transport:
    """Make the transport to virtual clients that the settings name: inline or Ray."""
    settings = experiment.settings
    defaults = FitConfig(
        round=1,
        local_steps=settings.local_steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
    )
    environment = ClientEnvironment(
        experiment.data,
        experiment.build_model,
        settings.seed,
        client_device(settings),
        settings.cohort,
        settings.cohort_size,
    )
    initial, trace = experiment.initial, experiment.trace
    if settings.engine == "inline":
        inline = InlineTransport(environment, initial, availability, defaults, trace.lost)
        return with_late_replies(inline, trace)
    with deferring_interrupts() as interrupts:
        from flexfl.engine.transports.ray import RayTransport  # Ray is not installed on every machine

        transport = RayTransport(
            environment,
            initial,
            availability,
            defaults,
            trace.lost,
            num_workers=settings.num_workers,
            client_gpus=settings.client_gpus,
            address=settings.ray_address,
        )
    if interrupts:
        transport.close()
        raise KeyboardInterrupt
    return with_late_replies(transport, trace)


def drive(
    experiment: Experiment,
    transport: Transport,
    availability: Callable[[int], RoundAvailability],
    folder: RunFolder,
    console: Console,
    timeout: float | None = None,
    stopping: Callable[[RoundServer, Console], AbstractContextManager[list[int]]] = stopping_on_interrupt,
    page: bool = True,
) -> dict[str, Any]:
    """Run the rounds of an experiment over a transport, and close the transport.

    Parameters
    ----------
    experiment, transport, folder, console
        What to run, how to reach the clients, where to save the results, and where to show progress.
    availability
        The experiment's trace, by round.
    timeout
        Seconds that a round waits for replies; None: no limit.
    stopping
        What a signal does to the run.
    page
        Whether the report that the settings may ask for is written as a page; otherwise only the numbers that
        a later one needs are kept.

    Returns
    -------
    dict
        The content of `summary.json`. `interrupted` says whether a signal ended the run early; `signal` is
        then its name.
    """
    settings = experiment.settings
    last: dict[str, Any] = {"round": 0}
    try:
        manager = TraceClientManager(availability, transport, settings.seed)
        with ProgressReport(settings.num_rounds, console) as progress:
            observers = (folder.write_round, progress.show, last.update)
            server = RoundServer(
                experiment.strategy,
                manager,
                transport,
                settings.evaluate_every,
                observers,
                experiment.trace.seconds,
            )
            start = time.perf_counter()
            with _undisturbed(), stopping(server, console) as signals, suppress(KeyboardInterrupt):
                server.fit(settings.num_rounds, timeout)
            seconds = time.perf_counter() - start
    finally:
        transport.close()
    arrays = parameters_to_ndarrays(server.parameters)
    folder.write_weights(arrays)
    summary: dict[str, Any] = finite(
        {
            "strategy": settings.strategy,
            "task": settings.task,
            "model": settings.model or task_source(settings).default_model,
            "rounds": last["round"],
            "client_fits": progress.client_fits,
            "seconds": round(seconds, 3),
            "final": {
                "accuracy": last.get("accuracy"),
                "loss": last.get("loss"),
                "train_loss": experiment.evaluator.train_loss(arrays),
                **{key: last[key] for key in OF_CLIENTS if key in last},
            },
            "run_dir": str(folder.path),
            "weights_sha256": weights_sha256(arrays),
            "interrupted": bool(signals),
            **({"signal": Signals(signals[0]).name} if signals else {}),
        }
    )
    folder.write_summary(summary)
    console.print(final_table(summary, progress.failures, last.get("virtual_seconds")))
    if settings.report:
        from flexfl.engine.report.after_run import report_run  # not needed before

        report_run(experiment, arrays, folder.path, console, page)
    return summary


def simulate(settings: Settings, path: Path | None = None, **options: Any) -> tuple[Experiment, RunFolder]:
    """Run an experiment with virtual clients, silently and without a page; return it and its run folder.

    Parameters
    ----------
    settings
        Of the run.
    path
        See `RunFolder`.
    options
        Of `drive`.

    Raises
    ------
    ValueError
        The settings are invalid.
    """
    experiment = prepare(settings)
    availability = remember(experiment.trace)
    folder = RunFolder(experiment.settings, path)
    transport = virtual_transport(experiment, availability)
    drive(experiment, transport, availability, folder, Console(quiet=True), **{"page": False, **options})
    return experiment, folder


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Save milliseconds per round.

    Idle BLAS threads spin while they wait for work, and so take cores from the clients; and the garbage
    collector would scan all imported modules again and again.
    """
    gc.collect()
    gc.freeze()
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        gc.unfreeze()
