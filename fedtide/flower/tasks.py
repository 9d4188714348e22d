"""A method's tasks as messages that an app's clients know, and their replies as methods know them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isclose
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common import Code, FitIns, FitRes, Status

from fedtide.base.contract import SGD, metrics
from fedtide.base.contract.fit import FAREWELL, LEARNING_RATE, LOCAL_STEPS
from fedtide.base.errors import SettingsError
from fedtide.flower.messages import (
    BUFFER_NAMES,
    LIMIT,
    OWN,
    OWN_ARRAYS,
    NamedArrays,
    app_record,
    own_record,
    own_vectors,
)
from strategies import Layout
from strategies.core.app import check_rule, is_plain
from strategies.core.parameters import FlatParameters


@dataclass
class AppTasks:
    """Tasks of one method for the clients of one app.

    Attributes
    ----------
    method
        Its name, for messages.
    names
        The app's arrays.
    weighted_by_key, arrayrecord_key, configrecord_key
        As of Flower's `FedAvg`.
    rate_key
        Where the app's configuration has the clients' rate; empty: nowhere.
    rate
        That of the clients at first; None: not known.
    local_steps
        E as the options have it, what an app's clients do by themselves; 0 with `local_epochs`.
    knows_steps
        Whether they say so; otherwise a client that reports steps has done all of its own.
    checked
        Whether clients have to say that they have followed the method's rule.
    """

    method: str
    names: NamedArrays
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    rate_key: str
    rate: float | None
    local_steps: int
    knows_steps: bool
    checked: bool
    _records: dict[int, tuple[FlatParameters, ArrayRecord]] = field(default_factory=dict)

    def begin(self, parameters: FlatParameters, arrays: ArrayRecord) -> None:
        """Begin a round, whose model is known in both forms."""
        self._records = {id(parameters.vector): (parameters, arrays)}

    def message(self, node: int, ins: FitIns, config: ConfigRecord) -> Message:
        """Return a task for a node; `config` is the app's own."""
        parameters = cast(FlatParameters, ins.parameters)
        key = id(parameters.vector)
        if key not in self._records:  # some clients may start from another model
            self._records[key] = parameters, self.names.record(parameters.vector)
        plain, rate = self.is_plain(ins), cast(float, ins.config[LEARNING_RATE])
        if self.rate_key:
            config = ConfigRecord({**config, self.rate_key: rate})
        content = RecordDict({self.arrayrecord_key: self._records[key][1], self.configrecord_key: config})
        if plain and self.rate is not None and not self.rate_key:
            if not isclose(rate, self.rate):
                raise SettingsError(
                    f"{self.method} changes the clients' learning rate, which they read from train_config: "
                    "put it there as 'lr'"
                )
            content[OWN] = ConfigRecord({LEARNING_RATE: rate})
        if not plain:
            limit = {LIMIT: ins.config[LOCAL_STEPS]} if self._limits_steps(ins) else {}
            content[OWN] = ConfigRecord({**ins.config, BUFFER_NAMES: [*self.names.buffers], **limit})
            if parameters.extra:
                content[OWN_ARRAYS] = own_record(parameters.extra)
        return Message(content, dst_node_id=node, message_type=MessageType.TRAIN)

    def result(self, content: RecordDict, node: int, ins: FitIns) -> FitRes:
        """Return a reply as methods know it.

        ValueError: it cannot be used. SettingsError: the client does not follow the method's rule.
        """
        if self.checked and not self.is_plain(ins):
            applied = content.config_records.get(OWN, ConfigRecord()).get(metrics.RULE)
            check_rule(self.method, f"node {node}", str(ins.config.get(metrics.RULE, SGD.name)), applied)
        if len(content.metric_records) != 1:
            raise ValueError(f"{len(content.metric_records)} MetricRecords where one is expected")
        (said,) = content.metric_records.values()
        if self.weighted_by_key not in said:
            raise ValueError(f"the MetricRecord has no {self.weighted_by_key!r}")
        told: dict[str, Any] = {key.replace("_", "-"): value for key, value in said.items()}
        told |= content.config_records.get(OWN, {})
        told.pop(metrics.ROUND, None)  # Flower's messages say what they answer
        told[metrics.DEPARTING] = bool(told.get(metrics.DEPARTING))
        if metrics.STEPS in told and not self.knows_steps and not self._limits_steps(ins):
            told.setdefault(metrics.PLANNED, told[metrics.STEPS])
        examples = cast(int, said[self.weighted_by_key])
        return FitRes(Status(Code.OK, ""), self._parameters(content, ins), examples, told)

    def is_plain(self, ins: FitIns) -> bool:
        """Whether a client that trains its weights as it always does follows this task."""
        changed = self._limits_steps(ins) or cast(FlatParameters, ins.parameters).extra
        return not changed and is_plain(str(ins.config.get(metrics.RULE, SGD.name)), ins.config)

    def _limits_steps(self, ins: FitIns) -> bool:
        """Whether the method itself says how many steps a client does."""
        return bool(ins.config.get(LOCAL_STEPS, self.local_steps) != self.local_steps)

    def _parameters(self, content: RecordDict, ins: FitIns) -> FlatParameters:
        """Return what a reply has: weights and buffers, or vectors in place of the weights."""
        record, extra, layout = app_record(content), own_vectors(content), self.names.layout
        if ins.config.get(FAREWELL):
            return FlatParameters(np.empty(0), Layout((), layout.dtype), extra)
        if extra and len(record) < len(self.names.dtypes):
            return FlatParameters(self.names.buffer_vector(record), layout.buffers, extra)
        return FlatParameters(self.names.vector(record), layout, extra)
