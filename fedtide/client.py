"""The client's part of our methods in the training loop of any Flower app, in two lines.

    @app.train()
    def train(message, context):
        model = Net()
        task = fedtide.client.Task(message, context, model)  # loads the weights, and knows the method's rule
        optimizer = task.optimizer(torch.optim.SGD(model.parameters(), lr=task.learning_rate))
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        return task.reply(num_examples=len(loader.dataset))

The rules are those of `clients.rules`. They are about SGD: with another optimizer, what it subtracts from the
weights, divided by its rate, stands for the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from clients.memory.handshake import open_memory
from clients.memory.stores import ContextStore
from clients.rules import SGD, usable_memory
from clients.rules.vectors import Vector, as_array, copy_of
from clients.training import finish, make_rule
from fedtide.base.contract import FitConfig
from fedtide.base.contract import metrics as names
from fedtide.flower.messages import (
    BUFFER_NAMES,
    LIMIT,
    OWN,
    OWN_ARRAYS,
    RATES,
    NamedArrays,
    app_record,
    own_record,
    own_vectors,
)

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


class Task:
    """What a client of an app is asked to train, by whichever method the server runs.

    Parameters
    ----------
    message, context
        What the app's function got. The context keeps the client's memory, where the method has one.
    model
        A PyTorch model, which gets the weights; its `state_dict` has the arrays of the message, by the same
        names or in the same order. None: the app trains `arrays` by `step`, without PyTorch.

    Attributes
    ----------
    arrays
        The floating-point arrays of the message by name, to be trained where there is no model.
    learning_rate
        eta of the local steps, as the server knows it; NaN: it does not.
    local_steps
        The most steps that count, inf if the method sets no limit. Further ones change nothing.

    Raises
    ------
    ValueError
        The message does not fit the model, or its rule is unknown here.
    """

    def __init__(self, message: Message, context: Context, model: nn.Module | None = None) -> None:
        content = message.content
        self._message, self._context = message, context
        said = dict(content.config_records.get(OWN, {}))
        record = app_record(content)
        self._names = NamedArrays.of(record, cast(list[str], said.pop(BUFFER_NAMES, [])))
        self.local_steps = float(cast(int, said.pop(LIMIT, math.inf)))
        self._config = FitConfig.from_wire(said) if said.keys() - {*RATES} else None
        rates = [config[key] for config in content.config_records.values() for key in RATES if key in config]
        self.learning_rate = float(cast(float, [*rates, math.nan][0]))
        self._steps, self._rates, self._resync, self._counts = 0, 0.0, False, False
        self._model, self._tensors = model, {} if model is None else _load(model, record)
        parts = self._names.layout.split(self._names.vector(record))
        self.arrays = (
            {} if model is not None else {k: p.copy() for k, p in zip(self._names.order, parts, strict=True)}
        )
        self._trained = [*self._names.order[: len(self._names.layout.weights.shapes)]]
        self._rule: SGD | None = None
        self._y = self._before = self._weights()  # `_before`: as the last step left them
        if self._config is not None:
            self._follow(self._config, own_vectors(content))

    def _follow(self, config: FitConfig, own: list[NDArray[Any]]) -> None:
        """Make the method's rule, with what the client has kept for it."""
        self.learning_rate = config.learning_rate
        if config.farewell:
            self.local_steps = 0
        found = None
        if config.last_accepted is not None:
            size, dtype = self._y.shape[-1], as_array(self._y[:, :0]).dtype  # the model's own type
            found = usable_memory(ContextStore(self._context).load(), config.rule, size, dtype)
        self._memory, self._resync = open_memory(found, config.last_accepted)
        self._rule = make_rule(config, copy_of(self._y), [], [own], [self._memory], self._like_weights)

    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Let the steps of an optimizer follow the method's rule; return the same optimizer.

        Whatever else has changed the weights since the last step, such as an optimizer of other parameters
        that steps before this one, is a part of the step.

        ValueError: it does not train the model, the model is on another device than before, or the task has
        an optimizer. From its `step`: its parameters have different rates, or 0.
        """
        device = getattr(self._y, "device", None)
        if self._rule is not None and any(t.device != device for t in self._tensors.values()):
            raise ValueError("the model has moved to another device: move it there before the task is made")
        ours = {id(tensor) for tensor in self._tensors.values()}
        if not any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
            raise ValueError("the optimizer has none of the parameters of the task's model")
        if self._counts:
            raise ValueError("a task counts the steps of one optimizer: give it the one that steps last")
        self._counts = True
        optimizer.register_step_post_hook(
            lambda *_: self._end_step({float(group["lr"]) for group in optimizer.param_groups})
        )
        return optimizer

    def step(self, gradients: Mapping[str, NDArray[Any]], learning_rate: float) -> None:
        """Do one local step on `arrays`, given the gradients of the weights by name."""
        for key in self._trained:
            self.arrays[key] -= learning_rate * gradients[key]
        self._end_step({learning_rate})

    def _end_step(self, rates: set[float]) -> None:
        """Put what the rule does in the place of the step that has been done."""
        if self._rule is None:
            self._steps += 1
            return
        if self._steps >= self.local_steps:
            self._place(self._before)
            return
        if len(rates) > 1:
            raise ValueError(
                f"the optimizer has several learning rates, {sorted(rates)}; the method's rule has one"
            )
        (rate,) = rates
        if not rate:
            raise ValueError("a step with the learning rate 0 has no gradient: begin a scheduler above 0")
        self._steps, self._rates = self._steps + 1, self._rates + rate
        gradient = (self._before - self._weights()) / rate
        self._rule.step(self._y, lambda at: gradient, rate)
        self._place(self._rule.position(self._y))
        self._before = self._weights()

    def reply(
        self,
        num_examples: int,
        metrics: Mapping[str, float] | None = None,
        planned_steps: int | None = None,
    ) -> Message:
        """Return the reply to send.

        Parameters
        ----------
        num_examples
            n_k, the size of the client's whole data set.
        metrics
            Further numbers, which the server averages. Methods that look at losses know `train-loss`, and
            `departing`, 1, says that the client leaves for good.
        planned_steps
            E_k, how many steps a client that is not interrupted would have done; default: those that the
            strategy was told, or else those that were done.

        Raises
        ------
        ValueError
            No step was done, or with another rate than the method computes with.
        """
        if self._model is not None:  # which may have other buffers by now, as `to` makes new ones
            self._tensors = dict(
                zip(self._tensors, self._model.state_dict(keep_vars=True).values(), strict=True)
            )
        if not self._steps and self.local_steps:  # none are asked for in a farewell
            raise ValueError("no step was done: give the optimizer to task.optimizer, or call task.step")
        done: dict[str, Any] = {names.STEPS: self._steps}
        done |= {} if planned_steps is None else {names.PLANNED: planned_steps}
        done |= {names.RESYNC: True} if self._resync else {}
        config = self._context.node_config
        if (client := config.get("client-id", config.get("partition-id"))) is not None:
            done[names.CLIENT_ID] = client
        content = RecordDict()
        if self._config is None or self._rule is None:
            arrays = self._record(self._names.dtypes)
        else:
            done |= {names.ROUND: self._config.round, names.RULE: self._config.rule}
            own = self._finish(self._config, self._rule)
            arrays = self._record(self._names.dtypes if self._sends_weights else self._names.buffers)
            if own:
                content[OWN_ARRAYS] = own_record(own)
        key = next(key for key in self._message.content.array_records if key != OWN_ARRAYS)
        content[key], content[OWN] = arrays, ConfigRecord(done)
        content["metrics"] = MetricRecord({"num-examples": num_examples, **(metrics or {})})
        return Message(content, reply_to=self._message)

    @property
    def _sends_weights(self) -> bool:
        return self._rule is None or (self._rule.sends_weights and not self._rule.config.farewell)

    def _finish(self, config: FitConfig, rule: SGD) -> list[NDArray[Any]]:
        """End the rule's round: return the vectors to send, keep the client's memory, place the weights."""
        if config.farewell:
            return [*self._memory.committed.values()]
        rate = self._rates / self._steps
        if not math.isclose(rate, config.learning_rate, rel_tol=1e-5):
            raise ValueError(
                f"the method computes with the learning rate {config.learning_rate:g}, and the steps had "
                f"{rate:g} on average: use task.learning_rate, and the server's lr_schedule for a scheduler"
            )
        self._y = self._y + (self._weights() - self._before)
        self._place(self._y)
        extra, new = finish(rule, self._y, self._steps, rate, [self._memory], [config.round])
        for memory in new:
            ContextStore(self._context).save(memory)
        return extra[0] if extra else []

    def _weights(self) -> Vector:
        """Return a copy of the weights as one row, shape (1, M)."""
        if self._tensors:
            import torch

            return torch.cat([self._tensors[key].detach().reshape(-1) for key in self._trained])[None]
        return np.concatenate([self.arrays[key].ravel() for key in self._trained])[None]

    def _place(self, row: Vector) -> None:
        """Set the weights."""
        parts = self._names.layout.weights.split(cast("NDArray[Any]", row[0]))  # or a tensor: views as well
        for key, part in zip(self._trained, parts, strict=True):
            place: Any = self.arrays[key] if self.arrays else self._tensors[key].detach()
            place[...] = part

    def _like_weights(self, array: NDArray[Any]) -> Vector:
        """Return an array as what the rule computes with: where the model is, in its type."""
        if self.arrays:
            return array
        import torch

        return torch.from_numpy(array).to(cast("Tensor", self._y))

    def _record(self, keys: Iterable[str]) -> ArrayRecord:
        """Return arrays under the app's names, in its types."""
        found: dict[str, NDArray[Any]] = dict(self.arrays)
        found |= {key: as_array(tensor.detach()) for key, tensor in self._tensors.items()}
        constants, dtypes = self._names.constants, self._names.dtypes
        return ArrayRecord(
            {key: constants.get(key) or Array(found[key].astype(dtypes[key], copy=False)) for key in keys}
        )


def _load(model: nn.Module, record: ArrayRecord) -> dict[str, Tensor]:
    """Give a model the arrays of a record; return its tensors by the record's names."""
    import torch

    tensors = model.state_dict(keep_vars=True)
    if tensors.keys() != record.keys() and len(tensors) == len(record):
        tensors = dict(zip(record, tensors.values(), strict=True))
    if tensors.keys() != record.keys():
        raise ValueError(f"the message has the arrays {[*record]}, and the model {[*tensors]}")
    for key, tensor in tensors.items():
        array = record[key].numpy()
        if array.shape != tensor.shape:
            raise ValueError(f"array {key} has shape {array.shape}, and the model {tuple(tensor.shape)}")
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(array))
    return tensors
