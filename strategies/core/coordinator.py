"""The course of a round: the order in which a method is asked and told, and its attributes change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.common import FitIns, Parameters, Scalar
from flwr.server.client_manager import ClientManager

from fedtide.base.contract import SGD, FitConfig, metrics
from fedtide.base.errors import ResultError, SettingsError, change_in_place
from strategies.core.layers import Vector
from strategies.core.members import Proxies, is_availability_manager
from strategies.core.norms import MAX_RESULT
from strategies.core.parameters import check_range, largest, read_parameters
from strategies.core.reading import ReplyReader
from strategies.core.replies import Replies, ReplyTable
from strategies.core.roster import are_among
from strategies.core.round import RoundInstructions, RoundReport, Sent, Task
from strategies.core.selection import checked_choice, failed

if TYPE_CHECKING:
    from strategies.core.app import FlowerArguments
    from strategies.core.strategy import FlexibleStrategy


class OpenRound(NamedTuple):
    """A round whose clients have been asked."""

    number: int
    report: RoundReport
    config: FitConfig  # what all of them are asked
    app: FlowerArguments | None  # whose round it is; None: our own engine's


class Coordinator:
    """Plays the rounds of a method.

    Attributes
    ----------
    sent
        The global model, as clients get it.
    open
        The round that was begun, until it ends.
    """

    def __init__(self, method: FlexibleStrategy) -> None:
        self.method = method
        self.open: OpenRound | None = None
        self._logged = set[tuple[str, str]]()
        self.pack()
        self._check_lateness()

    def begin(
        self, server_round: int, parameters: Parameters, manager: ClientManager
    ) -> RoundInstructions[FitIns]:
        """Bring the roster up to date, select clients and tell them what to do."""
        method, roster = self.method, self.method.roster
        app = None if is_availability_manager(manager) else method.arguments
        if app:
            method.options = app.wait(manager, method.options)
        method.round = server_round
        method.membership.take_leave({})  # of clients asked in a round that never ended
        method.report = RoundReport()
        self.adopt(parameters)
        available, at_work, proxy = method.membership.begin(server_round, manager)
        if method.initial_model:
            method.initial_model.begin(server_round, roster, method.weights, method.buffers)
        stopped = method.membership.stopped
        probed, awaited = method.probed, roster.member[at_work] & ~are_among(at_work, stopped)
        method.tasks.begin(server_round, at_work[awaited & (roster.asked[at_work] > 0)])
        method.at_work = int(awaited.sum())
        rate = method.options.scheduled_rate(server_round, roster) * (1.0 if probed is None else 0.5)
        method.learning_rate = method.report.learning_rate = rate
        method.observe(available)
        method.selected = checked_choice(method.select, method.select(available), available)
        roster.asked[method.selected] = server_round
        instructions = self._instructions(app, proxy)
        instructions.withdrawn = [str(client) for client in at_work[~roster.member[at_work]].tolist()]
        instructions.stopped = [str(client) for client in stopped.tolist()]
        return instructions

    def _instructions(self, app: FlowerArguments | None, proxy: Proxies) -> RoundInstructions[FitIns]:
        """Open the round: tell those who were selected what to do, and note what each was sent."""
        method, probed = self.method, self.method.probed
        shared, start = (method.shared_task() if probed is None else Task(rule=SGD)), self.sent
        if probed is not None:
            start = method.wire.pack(probed, method.buffers)
        elif shared.weights is not None:
            start = method.wire.pack(shared.weights.vector, method.buffers)
        config = self.config(shared)
        config = app.added_to(config) if app else config
        self.open = OpenRound(method.round, method.report, config, app)
        instructions = RoundInstructions(FitIns, start, shared.arrays, config)
        sent = Sent(method.round, start, method.learning_rate, method.version, shared.local_steps)
        selected = method.selected.tolist()
        method.tasks.ask(selected, sent)
        for client in selected:
            task = instructions.add(proxy(client), self.task(client) if probed is None else None)
            if task is not None:
                method.tasks.ask([client], sent.with_own(task))
        method.membership.ask_leaving(instructions, proxy)
        return instructions

    def end(self, server_round: int, table: ReplyTable, failures: Sequence[Any]) -> dict[str, Scalar]:
        """Have the method take in the active replies; return the metrics of the round."""
        method, opened = self.method, self._close(server_round)
        report = method.report = opened.report if opened else RoundReport(method.learning_rate)
        app = opened.app if opened else None
        if opened and app:
            needs_steps = method.needs_steps and not method.knows_steps and method.probed is None
            app.check_replies(type(method).__name__, needs_steps, opened.config, table)
        reader = ReplyReader(method, server_round)
        farewells, others = reader.farewells(table)
        if opened:
            method.membership.take_leave(farewells)
        replies = reader.read(others)
        if opened:
            method.tasks.end()
            self._take_in(replies, failures)
        if app or not opened:
            report.warn(server_round, self._logged)
        numbers: dict[str, Scalar] = {"active": len(replies), "rejected": len(report.rejected)}
        if (loss := replies.mean_train_loss()) is not None:
            numbers[metrics.TRAIN_LOSS] = loss
        return numbers | (app.metrics(table, method.roster, replies.clients) if app else {}) | report.counts()

    def _close(self, server_round: int) -> OpenRound | None:
        """Return the open round; None: nobody was asked for this one, or it is over."""
        if self.open is None or self.open.number != server_round:
            return None
        opened, self.open = self.open, None
        return opened

    def _take_in(self, replies: Replies, failures: Sequence[Any]) -> None:
        """Change the model and the method's state."""
        method, report, roster = self.method, self.method.report, self.method.roster
        before, buffers, probing = method.weights.copy(), method.buffers, method.probed is not None
        if not probing:
            method.selection.note(method.round, replies, failed(failures, report, roster))
        report.active, report.planned, report.steps = replies.clients, replies.planned, replies.steps
        report.incomplete = int((replies.steps < replies.planned).sum())
        method.lag = int(replies.lag.max(initial=0))
        method.membership.note_data(replies)
        if probing:
            self._end_probe(replies)
        else:
            self._update(replies)
            self._apply_layers(before)
        moved = not np.array_equal(method.weights, before)
        method.version += moved
        if moved or not np.array_equal(method.buffers, buffers):
            self.pack()

    def _update(self, replies: Replies) -> None:
        """Have the method change the weights, and check that it leaves some."""
        method = self.method
        if not len(replies):
            method.empty_round()
            return
        method.membership.note_losses(replies)
        if method.initial_model:
            method.initial_model.trained = True
        change_in_place("self.weights", method.update, replies)
        weights = np.asarray(method.weights)
        if weights.shape != (method.layout.size,) or weights.dtype.kind not in "fiu":
            left = f"{weights.dtype} of shape {weights.shape}"
            raise ResultError(
                method.update, f"leaves {left} as self.weights, not {method.layout.size} numbers"
            )
        method.weights = weights.astype(np.float64, copy=False)
        if len(method.buffers):
            method.buffers = replies.mean_buffers()
        method.roster.accepted[replies.clients] = method.round

    def _apply_layers(self, before: Vector) -> None:
        """Apply the layers; keep the old weights where later replies to the new ones could not count."""
        method, size = self.method, largest(self.method.weights)
        states = [layer.state_dict() for layer in method.layers]
        if method.layers and size <= MAX_RESULT:  # False for NaN
            for layer in method.layers:
                method.weights = layer.apply(before, method.weights, method.round, method.lag)
            size = largest(method.weights)
        if not size <= MAX_RESULT:
            method.weights = before
            for layer, state in zip(method.layers, states, strict=True):
                layer.load_state_dict(state)
            reason = f"weights as large as {size:.1e}"
            method.report.events.append({"event": "discarded update", "reason": reason})

    def _end_probe(self, replies: Replies) -> None:
        """Take in the replies of a probe round; begin anew from the model that the last one leads to."""
        method = self.method
        assert method.initial_model is not None
        model = method.initial_model.end(replies, method.weights, method.buffers, method.report)
        if model is not None:
            method.weights, method.buffers = model
            for layer in method.layers:
                layer.restart(method.weights, method.round)
            method.on_restart()

    def config(self, shared: Task) -> FitConfig:
        """Return the scalars for all clients of the round."""
        method, options, rule = self.method, self.method.options, shared.rule or self.method.rule
        if missing := set(rule.scalars) - set(shared.scalars):
            raise TypeError(f"rule {rule.name} needs {sorted(missing)} in the shared task")
        config = FitConfig(
            round=method.round,
            learning_rate=method.learning_rate,
            batch_size=options.batch_size,
            model_arrays=len(method.wire.shapes),
            buffer_arrays=method.wire.num_buffers,
            frozen_checksum=method.wire.frozen_checksum,
            local_steps=0 if options.local_epochs else options.local_steps,
            local_epochs=options.local_epochs,
            rule=rule.name,
        )
        return shared.added_to(config)

    def task(self, client: int) -> Task | None:
        """Return what is a client's own: the method's task, and what settles the client's last reply."""
        task = self.method.task(client)
        if not self.method.rule.remembers:
            return task
        return replace(task or Task(), last_accepted=int(self.method.roster.accepted[client]))

    def pack(self) -> None:
        """Make what clients get of the weights and buffers."""
        self.sent = self.method.wire.pack(self.method.weights, self.method.buffers)

    def adopt(self, parameters: Parameters) -> None:
        """Take over the weights if the server, or a wrapper such as differential privacy, changed them."""
        method = self.method
        if parameters is not self.sent:
            before, changed = method.weights, read_parameters(parameters, method.wire)[0]
            weights, buffers = method.wire.divide(changed)
            if not largest(weights) <= MAX_RESULT:  # False for NaN
                raise ValueError(
                    "the weights that a wrapper of the strategy returned are not finite, or too large"
                )
            check_range(buffers, self.sent.buffers)
            method.weights, method.buffers = weights, buffers
            self.pack()
            method.on_outside_change(method.weights - before)

    def _check_lateness(self) -> None:
        """Refuse what needs late replies if these are dropped: most rounds of event time, `max_lag`."""
        method = self.method
        B, C = method.options.round_ends, method.options.clients_per_round
        most = C or len(method.roster)
        if 0 < B < most and not method.takes_late_replies:
            name, limit = type(method).__name__, C or f"0, that is all {most}"
            raise SettingsError(
                f"{name} drops late replies, and most would be late with round-ends {B} and "
                f"clients-per-round {limit}: set round-ends to {most} or more, or take a method that counts "
                "them, such as mifa"
            )
        if method.options.max_lag >= 0 and not method.takes_late_replies:
            takes = "takes late replies in event time only" if method.late_replies != "drop" else "takes none"
            raise SettingsError(f"max-lag is about late replies, and {type(method).__name__} {takes}")
