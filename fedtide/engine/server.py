"""The round loop: a Flower `Server` that runs any Flower strategy over any transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from flwr.common import FitIns, Scalar
from flwr.server.client_proxy import ClientProxy
from flwr.server.history import History
from flwr.server.server import Server
from flwr.server.strategy import Strategy

from fedtide.base.contract.metrics import ROUND, STEPS, TRAIN_LOSS
from fedtide.base.wording import plain
from fedtide.config import Settings
from fedtide.engine.availability import TraceClientManager
from fedtide.engine.event_clock import Clock
from fedtide.engine.stopping import StoppingRule, evaluation_is_due
from strategies import FlexibleStrategy
from strategies.core.parameters import count_bytes, whole
from strategies.core.replies import FitResult, ReplyTable
from strategies.core.round import ClientFailure

Record = dict[str, Any]


class RoundServer(Server):
    """Runs rounds and records each of them; no failure of a client ends the run.

    The strategy may be any of Flower's. Its weights are evaluated every so many rounds or, if given, virtual
    seconds, and after the last round, which may be the one in which the `rule` ends the run, or the last that
    the clock has. Observers, of which the rule is one, are called with the record of each round, starting
    with round 0, the evaluation before training.
    """

    def __init__(
        self,
        strategy: Strategy,
        client_manager: TraceClientManager,
        evaluate_every: int = 1,
        observers: Sequence[Callable[[Record], None]] = (),
        clock: Clock | None = None,
        evaluate_seconds: float = 0.0,
        rule: StoppingRule | None = None,
    ) -> None:
        super().__init__(client_manager=client_manager, strategy=strategy)
        self.trace_manager, self.transport = client_manager, client_manager.transport
        self.evaluate_every, self.evaluate_seconds = evaluate_every, evaluate_seconds
        self.observers, self.clock, self.rule = observers, clock, rule or StoppingRule(Settings())
        self.stopping = False  # set to True to end the training after the current round
        self.cut_off = False  # set to True when no client can be reached: the next attempt raises
        self.reaching = False  # whether clients are being reached now
        self._seconds_to_report = 0.0

    def fit(
        self, num_rounds: int, timeout: float | None = None, after: int | None = None
    ) -> tuple[History, float]:
        """Run the rounds up to number `num_rounds`; return Flower's history, and the seconds that they took.

        `timeout` is how long a round waits for replies, and `after` the last round of a resumed run.
        """
        history, start = History(), time.perf_counter()
        parameters = self.strategy.initialize_parameters(self._client_manager)
        if parameters is None:
            raise ValueError("the strategy has no initial parameters: pass initial_parameters to it")
        self.parameters = parameters
        if after is None:
            record: Record = {"round": 0}
            self._evaluate(0, record, history)
            self._report(record)
        server_round = after or 0
        now = self._seconds(server_round) if server_round else 0.0
        over = self.is_over() or self.stopping or bool(server_round and self.rule.time_is_up(now))
        while server_round < num_rounds and not over:
            server_round, before = server_round + 1, now
            record = self._run_round(server_round, timeout, history)
            now, ended = self._seconds(server_round), self._clock_is_over()
            if ended:
                record["notes"] = [*record.get("notes", ()), "nobody will be online any more: the run ends"]
            over = ended or self.rule.time_is_up(now) or self.stopping
            every = (self.evaluate_every, self.evaluate_seconds)
            if over or server_round == num_rounds or evaluation_is_due(*every, server_round, before, now):
                self._evaluate(server_round, record, history)
            self._report(record)
            over = self.is_over() or self.stopping
        return history, time.perf_counter() - start

    def _seconds(self, server_round: int) -> float | None:
        """Return the virtual seconds that have passed when a round ends; None without a clock."""
        return None if self.clock is None else self.clock.seconds(server_round)

    def is_over(self) -> bool:
        """Whether the rule has ended the run, or no client will be online again."""
        return self._clock_is_over() or bool(self.rule.reason)

    def _clock_is_over(self) -> bool:
        return self.clock is not None and self.clock.is_over()

    def _run_round(self, server_round: int, timeout: float | None, history: History) -> Record:
        """Select, train, aggregate; a round without active clients leaves the parameters unchanged."""
        record: Record = {"round": server_round, "seconds": {}}
        self.trace_manager.begin(server_round)
        with _timed(record, "select"), self._reaching_clients():
            instructions = self.strategy.configure_fit(server_round, self.parameters, self._client_manager)
        with _timed(record, "train"), self._reaching_clients():
            results, failures = self.transport.fit(server_round, instructions, timeout)
            given: ReplyTable | list[FitResult] = results
            if not isinstance(self.strategy, FlexibleStrategy):  # which takes the table
                given = results.as_flower(self.transport.proxy)
                given, failures = _on_time(server_round, given, failures)
                results = ReplyTable.of(given)
        record["seconds"] |= self.transport.seconds
        with _timed(record, "aggregate"):
            as_list = cast(list[FitResult], given)
            aggregated, metrics = self.strategy.aggregate_fit(server_round, as_list, list(failures))
        record |= {"notes": [*self.transport.notes]} if self.transport.notes else {}
        if aggregated is not None:
            self.parameters = aggregated
        history.add_metrics_distributed_fit(server_round, metrics)
        record["offline"] = self.trace_manager.num_offline()
        if len(at_work := self.trace_manager.at_work(server_round)):
            record["at_work"] = at_work.tolist()
        record |= _participation(self.strategy, instructions, results, failures)
        if TRAIN_LOSS in metrics:
            record["batch_loss"] = metrics[TRAIN_LOSS]
        if (seconds := self._seconds(server_round)) is not None:
            record["virtual_seconds"] = seconds
        if (seconds := self._device_seconds(server_round, record, results, failures)) is not None:
            record["device_seconds"] = round(seconds, 6)
        return record | self._of_transport(record, results)

    def _device_seconds(
        self, server_round: int, record: Record, results: ReplyTable, failures: Sequence[ClientFailure]
    ) -> float | None:
        """Return the working time of all clients together: by the trace's clock, else as far as measured.

        The clock of rounds knows it of all that were asked, event time of those whose tasks have ended.
        """
        if self.clock is not None and "virtual_seconds" in record and record["selected"]:
            known = self.clock.work_seconds(server_round, np.array(record["selected"], np.intp))
            if known is not None:
                return known
        took = np.append(results.reported["seconds"], [failure.seconds for failure in failures])
        measured = took[np.isfinite(took)]
        return float(measured.sum()) if len(measured) else None

    def _of_transport(self, record: Record, results: ReplyTable) -> Record:
        """Return the additions of the transport; for devices, all that the trace `run` needs for a replay."""
        added = self.transport.record()
        if stopped := added.get("stopped"):
            lost = sum(seconds for *_, seconds in stopped)
            added["device_seconds"] = round(record.get("device_seconds", 0.0) + lost, 6)
        if "events" not in added:
            return added
        took = dict(results.reported[["client", "seconds"]].tolist())
        added["reply_seconds"] = [round(took[client], 3) for client in record["active"]]
        if isinstance(self.strategy, FlexibleStrategy):
            added["planned"] = self.strategy.report.planned.tolist()
        added["events"] = [*record.get("events", ()), *added["events"]]
        return added | self.trace_manager.record()

    def _evaluate(self, server_round: int, record: Record, history: History) -> None:
        """Evaluate at the server, and at the clients that the strategy selects for it."""
        with _timed(record, "evaluate"):
            central = self.strategy.evaluate(server_round, self.parameters)
            if central is not None:
                loss, metrics = central
                history.add_loss_centralized(server_round, loss)
                history.add_metrics_centralized(server_round, metrics)
                record |= {"loss": loss, **_snake(metrics)}
            if server_round == 0:
                return
            instructions = self.strategy.configure_evaluate(
                server_round, self.parameters, self._client_manager
            )
            if instructions:
                with self._reaching_clients():
                    results, failures = self.transport.evaluate(server_round, instructions, None)
                mean, metrics = self.strategy.aggregate_evaluate(server_round, results, list(failures))
                if mean is not None:
                    history.add_loss_distributed(server_round, mean)
                    record["client_loss"] = mean
                record |= {f"client_{key}": value for key, value in _snake(metrics).items()}

    @contextmanager
    def _reaching_clients(self) -> Iterator[None]:
        self.reaching = True
        try:
            if self.cut_off:
                raise KeyboardInterrupt
            yield
        finally:
            self.reaching = False

    def _report(self, record: Record) -> None:
        """Call the observers; the next round's record gives their time, as `write`."""
        record.setdefault("seconds", {})["write"] = self._seconds_to_report
        start = time.perf_counter()
        for observer in self.observers:
            observer(record)
        self._seconds_to_report = round(time.perf_counter() - start, 6)


def _on_time(
    server_round: int, results: list[FitResult], failures: list[ClientFailure]
) -> tuple[list[FitResult], list[ClientFailure]]:
    """Take late replies for failures: a strategy of Flower would take them for replies of this round."""
    late = {proxy.cid for proxy, r in results if r.metrics.get(ROUND, server_round) != server_round}
    refused = [ClientFailure(name, "late reply: strategies of Flower take none") for name in sorted(late)]
    return [(proxy, r) for proxy, r in results if proxy.cid not in late], failures + refused


def _participation(
    strategy: Strategy,
    instructions: Sequence[tuple[ClientProxy, FitIns]],
    results: ReplyTable,
    failures: Sequence[ClientFailure],
) -> Record:
    """Record the selected, active and failed clients, the steps done, and the bytes sent each way."""
    failed = [(failure.client, failure.reason) for failure in failures]
    record: Record = {"selected": _names(proxy.cid for proxy, _ in instructions)}
    if isinstance(strategy, FlexibleStrategy):
        report = strategy.report
        failed += report.rejected
        record |= {"learning_rate": report.learning_rate, "events": report.events}
        record |= {"incomplete": report.incomplete, **report.measured}
        record |= {key: kept for key in ("late", "discarded") if (kept := getattr(report, key))}
        record |= {"active": report.active.tolist(), "steps": report.steps.tolist()}
    else:
        told = zip(results.names, results.results, strict=True)
        steps = {name: result.metrics.get(STEPS) for name, result in told}
        record["active"] = _names(steps)
        record["steps"] = [whole(steps[str(name)]) for name in record["active"]]
    record["failed"] = {plain(name): plain(reason) for name, reason in sorted(failed)}
    record["bytes_down"] = sum(count_bytes(ins.parameters) for _, ins in instructions)
    record["bytes_up"] = results.num_bytes
    return record


def _names(names: Any) -> list[int | str]:
    """Sort the names of clients; decimal ones become integers."""
    converted = [int(name) if name.isdecimal() else name for name in names]
    return sorted(converted, key=lambda name: (isinstance(name, str), name))


def _snake(metrics: dict[str, Scalar]) -> Record:
    return {key.replace("-", "_"): value for key, value in metrics.items()}


@contextmanager
def _timed(record: Record, phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    record.setdefault("seconds", {})[phase] = round(time.perf_counter() - start, 6)
