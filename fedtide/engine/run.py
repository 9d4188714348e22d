"""A run: the rounds of an experiment over a transport, and the run folder that they leave."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple

from numpy.typing import NDArray
from rich.console import Console
from threadpoolctl import threadpool_limits

from fedtide.base.contract import FitConfig
from fedtide.base.display import lost_display
from fedtide.base.errors import described, is_of, own_places, told
from fedtide.base.memory import keep_freed_memory
from fedtide.base.wording import say
from fedtide.engine.availability import TraceClientManager
from fedtide.engine.checkpoints.checkpointing import Checkpointing, Position
from fedtide.engine.checkpoints.store import num_bytes
from fedtide.engine.experiment import Experiment, prepare
from fedtide.engine.interrupts import Stopped, deferring, stopping_on_interrupt
from fedtide.engine.observers import LoggedRun, Observer, observing
from fedtide.engine.run_files import records_in
from fedtide.engine.run_folder import (
    FolderLost,
    KeptWeights,
    RunFolder,
    finite,
    frozen_sha256,
    weights_sha256,
)
from fedtide.engine.server import RoundServer
from fedtide.engine.stopping import StoppingRule, slow_evaluation
from fedtide.engine.transports.base import EngineLost, Transport
from fedtide.engine.transports.inline import InlineTransport
from fedtide.engine.transports.virtual import Simulation
from fedtide.interop.stock_strategy import NO_UPDATE
from fedtide.plan import Plan
from fedtide.tasks.data import preprocessing_of
from fedtide.tasks.modules import LanguageModel
from strategies import FlexibleStrategy
from strategies.core.parameters import count_bytes
from strategies.sequential_sgd import SequentialSGD

# What a run may report in the end besides the global model's loss and metric: what it was tested on, personal
# models, and the global one on the clients' hold-outs.
FINAL = (
    "tested_examples",
    "tested_clients",
    "client_loss",
    "client_{}",
    "client_tested_examples",
    "client_tested_clients",
    "worst_client_{}",
    "tenth_percentile_{}",
)
NOBODY = "trace: nobody will be online any more"  # what stopped a run whose clock is over
DIVERGED = 10.0  # times the loss of the initial model
# What ends a run though the program is right, and is one line, unless a part of the user's own has raised it.
FAILURES = (OSError, MemoryError, EngineLost, FolderLost)


def virtual_transport(
    experiment: Experiment, on_message: Callable[[str], object] = lambda line: None
) -> Transport:
    """Make the transport to virtual clients that the settings name: inline or Ray.

    `on_message` takes lines about what killed processes had left on this machine, and about failing workers.
    """
    settings = experiment.settings
    defaults = FitConfig(
        round=1,
        local_steps=settings.local_steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
    )
    simulation = Simulation(experiment.environment, experiment.initial, experiment.clock, defaults)
    if settings.engine == "inline":
        return experiment.timed(InlineTransport(simulation))
    num_workers = min(settings.num_workers, settings.most_clients)
    with deferring() as signals:
        from fedtide.engine.transports.ray.transport import RayTransport  # Ray need not be installed

        ray = (num_workers, settings.client_gpus, settings.ray_address)
        transport = RayTransport(simulation, *ray, on_message)
    if signals:
        transport.close()
        raise Stopped(signals[0])
    if transport.leftovers:
        on_message(f"removed what killed runs had left: {', '.join(transport.leftovers)}")
    return experiment.timed(transport)


class Outcome(NamedTuple):
    """How a run ended."""

    summary: dict[str, Any]  # the content of `summary.json`, see docs/run-folder.md
    arrays: list[NDArray[Any]]  # the final weights, one per tensor


def drive(
    experiment: Experiment,
    transport: Transport,
    folder: RunFolder,
    console: Console,
    watch: Callable[[LoggedRun], Sequence[Observer]] = lambda run: (),
    stopping: Callable[[RoundServer, Console], AbstractContextManager[list[int]]] = stopping_on_interrupt,
    extendable: bool = True,
) -> Outcome:
    """Run the rounds of an experiment over a transport, and close the transport.

    `watch` makes further observers, such as loggers, and `stopping` says what a signal does. An `extendable`
    run is saved at its end, so that it can be made longer. ResumeError: the folder's run cannot be resumed.
    A defect in a round is raised once weights and summary are written.
    """
    settings, state = experiment.settings, _State(experiment.settings.learning_rate, partial(say, console))
    folder.warn = experiment.evaluator.say = state.say
    with ExitStack() as watched:
        watched.callback(folder.close)
        try:
            checkpoints = Checkpointing(experiment.strategy, transport, folder, settings, console)
            before, model = checkpoints.resume(), experiment.strategy.model
            run = LoggedRun(folder.path.name, folder.path, folder.path.parent, after=before.round)
            rule = StoppingRule(settings, experiment.metrics, before.seconds, experiment.cycle)
            keeping = KeptWeights(folder, settings.keep_weights, lambda: model(server.parameters))
            counting = experiment.evaluator.times_active
            observers = [state, rule, counting, folder, *watch(run), keeping, checkpoints]
            for record in records_in(folder.path):
                for observer in observers:
                    observer.recall(record)
            folder.write_names(experiment.client_names)
            folder.write_preprocessing(preprocessing_of(experiment.data))
            server = RoundServer(
                experiment.strategy,
                TraceClientManager(experiment.clock.round, transport, settings.seed),
                settings.evaluate_every,
                [observer.round for observer in observers],
                experiment.clock,
                settings.evaluate_seconds,
                rule,
            )
            start = time.perf_counter()
            with stopping(server, console) as state.signals, suppress(KeyboardInterrupt):
                watched.enter_context(observing(observers, settings))
                start = time.perf_counter()
                try:
                    state.defect, state.failure = _train(server, settings.num_rounds, before)
                except EngineLost as error:  # the signal may have gone to Ray's processes as well
                    say(console, f"stopped at once: {error}")
                    raise KeyboardInterrupt from error
                if state.last["round"] >= settings.num_rounds or server.is_over():
                    state.signals = []  # they have cut off nothing
                if not state.failure and (state.signals or extendable):
                    checkpoints.end(state.last["round"], always=bool(state.signals or rule.reason))
            state.signals = [*state.signals]  # later ones do not interrupt the training
            state.seconds = before.seconds + time.perf_counter() - start
            if state.last["round"] < settings.num_rounds and not state.signals:
                state.stopped = rule.reason or (NOBODY if server.is_over() and not state.failure else "")
            if count_bytes(server.parameters):  # none, if it failed before it had any
                state.arrays = model(server.parameters)
            unwritten = folder.try_to_write_weights(state.arrays)  # before anything else can fail
            evaluator = experiment.evaluator
            if not unwritten and evaluator.model.num_frozen and not _frozen_from_files(experiment):
                unwritten = folder.try_to_write_model(evaluator.state_dict(state.arrays))
            state.failure = state.failure or unwritten
            if state.failure:  # at once: where Ray has died, it ends this process seconds later
                say(console, f"the run has failed: {state.failure}; {checkpoints.how_to_resume()}")
        finally:
            transport.close()
        summary = _summary(experiment, folder, state)
        if not console.quiet and (lost := lost_display()):
            summary["display"] = lost
        try:
            for observer in observers:
                observer.finish(summary)
        except OSError as error:
            summary["failed"] = state.failure or str(error)
            if not state.failure:
                say(console, f"the run has failed: {error}")
    if summary["no_reply_counted"] and "failed" not in summary:
        console.print("no reply ever counted: metrics.jsonl names the reasons")
    if slow := slow_evaluation(state.phases, settings, experiment.trace):
        say(console, slow)
    if state.defect:
        raise state.defect
    return Outcome(summary, state.arrays)


@dataclass
class _State(Observer):
    """What is known of a run: last values, updates aggregated, seconds, weights, and why it has ended."""

    learning_rate: float
    say: Callable[[str], object]
    first_loss: float | None = None
    diverged: str = ""  # said once
    last: dict[str, Any] = field(default_factory=lambda: {"round": 0})
    client_fits: int = 0
    phases: Counter[str] = field(default_factory=Counter)  # seconds
    seconds: float = 0.0
    arrays: list[NDArray[Any]] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    stopped: str = ""
    failure: str = ""
    defect: Exception | None = None

    def round(self, record: dict[str, Any]) -> None:
        known = self.diverged
        self.recall(record)
        if self.diverged and not known:
            self.say(self.diverged)

    def recall(self, record: dict[str, Any]) -> None:
        self.last.update(record)
        self.phases.update(record.get("seconds") or {})
        if not any(event.get("event") == NO_UPDATE for event in record.get("events", ())):
            self.client_fits += len(record.get("active", []))
        if record.get("tested_examples") and not self.diverged:
            self._compare_loss(record["round"], math.inf if record["loss"] is None else record["loss"])

    def _compare_loss(self, server_round: int, loss: float) -> None:
        """Note in one line whether the loss says that training has diverged."""
        self.first_loss = first = loss if self.first_loss is None else self.first_loss
        if server_round and not loss <= first + (DIVERGED - 1) * abs(first):
            rate = self.learning_rate
            self.diverged = (
                f"learning-rate {rate:g} may be too large: loss {loss:.3g} in round {server_round}, at first "
                f"{first:.3g}; --tune learning-rate={rate / 100:g}..{rate:g} searches for a better one"
            )


def _train(server: RoundServer, num_rounds: int, before: Position) -> tuple[Exception | None, str]:
    """Run the rounds; return the defect that has ended them, and why the run failed, empty if it did not."""
    with _undisturbed():
        try:
            server.fit(num_rounds, after=before.round)
        except Exception as error:
            if server.stopping and isinstance(error, EngineLost):
                raise
            if isinstance(error, FAILURES) and not own_places(error):
                return None, " ".join(str(error).split()) or type(error).__name__
            if is_of(error, "flwr.server.strategy"):
                named = f"strategy {type(server.strategy).__name__} of Flower"
                return None, f"{named} does not work with these clients and this model: {described(error)}"
            return error, told(error)
    return None, ""


def _summary(experiment: Experiment, folder: RunFolder, ended: _State) -> dict[str, Any]:
    settings, last, metrics = experiment.settings, ended.last, experiment.metrics
    slow = slow_evaluation(ended.phases, settings, experiment.trace)
    measured = [key.format(metrics[0].key) for key in FINAL]
    model = experiment.evaluator.model
    summary: dict[str, Any] = finite(
        {
            "strategy": settings.strategy,
            "task": settings.task,
            "model": experiment.plan.model_name,
            "rounds": last["round"],
            "client_fits": ended.client_fits,
            "ends": experiment.plan.model_ends._asdict(),
            "weights": model.num_trainable,
            **({"frozen_weights": model.num_frozen} if model.num_frozen else {}),
            **({"frozen_sha256": frozen_sha256(model.module)} if _frozen_from_files(experiment) else {}),
            **({} if ended.failure else _state_bytes(experiment.strategy)),
            "seconds": round(ended.seconds, 3),
            "cycle": experiment.cycle,
            "metrics": [metric._asdict() | {"name": metric.key} for metric in metrics],
            "final": {
                **{metric.key: last.get(metric.key) for metric in metrics},
                "loss": last.get("loss"),
                "train_loss": None if ended.defect else experiment.evaluator.train_loss(ended.arrays),
                **{key: last[key] for key in measured if key in last},
            },
            "run_dir": str(folder.path),
            "weights_sha256": weights_sha256(ended.arrays),
            "no_reply_counted": not isinstance(experiment.strategy, SequentialSGD)
            and bool(last["round"])
            and not ended.client_fits,
            "interrupted": bool(ended.signals),
            **({"signal": Signals(ended.signals[0]).name} if ended.signals else {}),
            **({"stopped": ended.stopped} if ended.stopped else {}),
            **({"failed": ended.failure} if ended.failure else {}),
            **({"hint": hint} if (hint := ended.diverged or slow or experiment.hint) else {}),
        }
    )
    return summary


def _frozen_from_files(experiment: Experiment) -> bool:
    """Whether files give the frozen weights back, to the bit, so that the run folder need not hold them."""
    model = experiment.evaluator.model
    return bool(model.num_frozen) and isinstance(model.module, LanguageModel) and model.module.from_files


def _state_bytes(strategy: FlexibleStrategy) -> dict[str, int]:
    """Measure what the server keeps between rounds; a state that cannot be saved has been warned of."""
    with suppress(ValueError, TypeError):
        return {"state_bytes": num_bytes(strategy.state_dict())}
    return {}


def simulate(plan: Plan, path: Path | None = None, **options: Any) -> tuple[Experiment, RunFolder, Outcome]:
    """Run an experiment with virtual clients, silently; return it, its run folder, and how it ended.

    `path` is as of `RunFolder`, and the options are those of `drive`. ValueError: the settings are invalid.
    """
    experiment = prepare(plan)
    folder = RunFolder(experiment.plan, path)
    ended = drive(experiment, virtual_transport(experiment), folder, Console(quiet=True), **options)
    return experiment, folder, ended


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Save milliseconds per round.

    Idle BLAS threads spin while they wait for work, and so take cores from the clients; the garbage
    collector would scan all imported modules again and again; and memory that is returned to the system
    costs page faults when it is taken again.
    """
    keep_freed_memory()
    with unscanned(), threadpool_limits(1, "blas"):
        yield


@contextmanager
def unscanned() -> Iterator[None]:
    """Collect garbage, and have the collector leave alone what is left, above all PyTorch's modules.

    To scan these takes longer than many a run. If they are left alone already, for several runs, only what
    has been made since is collected.
    """
    gc.collect()
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
