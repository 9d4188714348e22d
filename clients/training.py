"""The local training of one client or of several: the same loop, whatever computes the gradients.

Arrays have a row for each client. The one with the most steps comes first, so that the clients still at
work are always the first rows; a client on its own is the only row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.memory.handshake import Memory
from clients.rules import SGD, rule_named
from clients.rules.base import Oracle, no_fisher
from clients.rules.vectors import Rate, Vector, as_array, concatenate
from fedtide.base.contract import FitConfig
from fedtide.base.errors import change_in_place

Arrays = Sequence[NDArray[Any]]


def make_rule(
    config: FitConfig,
    weights: Vector,
    shared: Sequence[Vector],
    arrays: Sequence[Arrays],
    memories: Sequence[Memory],
    as_vector: Callable[[NDArray[Any]], Vector],
    fisher: Oracle = no_fisher,
) -> SGD:
    """Make the rule that the task, that of any client of a cohort, names.

    The clients start from `weights`, (K, M), without buffers. The method's arrays are `shared` by all
    clients, then `arrays` of each. `as_vector` makes of an array what rules and gradients work on.
    """
    own = [as_vector(np.stack(of_all)) for of_all in zip(*arrays, strict=True)]
    committed = [memory.committed for memory in memories]
    state = {key: as_vector(np.stack([c[key] for c in committed])) for key in committed[0]}
    return rule_named(config.rule)(weights, [*shared, *own], config, state, fisher)


class LocalDeadline:
    """Whether there is time for another local step, if it takes as long as those before.

    A reply that comes after the end of the round is a late one, or lost; a step fewer costs little. The
    object is made when the first step begins. `until` is on the clock of `time.monotonic`; without it no
    clock is read, and `stop`, whether the work has to end now, is not asked.
    """

    def __init__(self, until: float | None, stop: Callable[[], bool] | None = None) -> None:
        self.until, self.stop = until, stop
        self.start = 0.0 if until is None else time.monotonic()

    def allows_another(self, done: int) -> bool:
        """Whether a step may follow the `done` steps, at least one, that are done."""
        if self.until is None:
            return True
        now = time.monotonic()
        return now + (now - self.start) / done <= self.until and not (self.stop and self.stop())


def do_steps(
    rule: SGD, y: Vector, steps: Iterable[tuple[int, Oracle]], rate: Rate, deadline: LocalDeadline
) -> int:
    """Do local steps, in place, until all are done or the deadline allows no other; return how many.

    `y`, (K, M + B), has the clients' weights and after them the model's buffers. `steps` says how many
    clients do each step, the first ones, and has the gradient at weights and buffers.
    """
    done, count, at = 0, len(y), weights_of(rule, y)
    own, own_rate = y, rate
    for doing, gradient in steps:
        if doing < count:
            rule.narrow(doing)
            count, own = doing, y[:doing]
            at = weights_of(rule, own)
            own_rate = rate if isinstance(rate, int | float) else rate[:doing]
        change_in_place("y", rule.step, at, of_weights(rule, gradient, own, at), own_rate)
        done += 1
        if not deadline.allows_another(done):
            break
    rule.widen()
    return done


def weights_of(rule: SGD, y: Vector) -> Vector:
    """Return `y` without the model's buffers."""
    trained = rule.weights.shape[-1]
    return y if trained == y.shape[-1] else y[..., :trained]


def of_weights(rule: SGD, oracle: Oracle, y: Vector, weights: Vector | None = None) -> Oracle:
    """Return an oracle of the weights alone, given one of weights and buffers.

    A client has its buffers once, in `y`, also where a rule computes gradients at several models: each
    updates them. `weights` are those of `y`: at them the model may change itself, as to limit norms.
    """
    trained = rule.weights.shape[-1]
    if trained == y.shape[-1]:
        return oracle

    def without_buffers(at: Vector) -> Vector:
        if at is weights:
            return oracle(y)[..., :trained]
        whole = concatenate(at, y[..., trained:])
        value = oracle(whole)[..., :trained]
        y[..., trained:] = whole[..., trained:]
        return value

    return without_buffers


def finish(
    rule: SGD, y: Vector, steps: Rate, rate: Rate, memories: Sequence[Memory], rounds: Sequence[int]
) -> tuple[list[list[NDArray[Any]]], list[Memory]]:
    """Return the method's own arrays that each client sends, and its new memory, after `steps`, (K, 1).

    `rounds` are those of the clients' tasks. The arrays are empty where none are sent, the memories where the
    rule keeps no state.
    """
    arrays, state = rule.finish(weights_of(rule, y), steps, rate)
    sent = [[*map(as_array, array)] if isinstance(array, list) else as_array(array) for array in arrays]
    extra = [[array[k] for array in sent] for k in range(len(y))] if sent else []
    if rule.config.last_accepted is None:
        return extra, []
    kept = {key: as_array(value) for key, value in state.items()}
    states = ({key: value[k].copy() for key, value in kept.items()} for k in range(len(y)))
    parts = zip(memories, rounds, states, strict=True)
    return extra, [memory.stage(server_round, new) for memory, server_round, new in parts]
