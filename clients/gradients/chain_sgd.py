"""SGD of a sequence of layers with cross-entropy, compiled by Numba: all local steps of a client in one call.

Layers of images come first, if there are any, then linear layers with ReLUs between them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.gradients.image_layers import LAYER, gather, inputs_of, look, look_back
from clients.gradients.linear_sgd import (
    LINE,
    Floats,
    Integers,
    Work,
    correct,
    descend,
    load,
    pitched,
    products,
    save,
    softmax_error,
    subtract,
)
from clients.gradients.machine_code import compiled, inlined

__all__ = ["LAYER", "LINE", "Space", "Work", "train"]


class Space(NamedTuple):
    """What a client's layers are, and memory for them: B examples at most, a multiple of ten."""

    plan: Any  # the layers of images, see `LAYER`; there may be none
    images: Floats  # for their inputs
    where: NDArray[np.uint8]  # for what pooling has chosen
    spare: Floats  # (2, .), for outputs and derivatives
    gradient: Floats  # (2, .), for derivatives in their weights
    widths: Integers  # (L + 1,), the numbers of inputs of the linear layers, and that of the outputs
    biased: bool
    w: Floats  # each layer has a multiple of ten rows, `pitched`
    step: Floats  # for its change, as many numbers; none if B is ten
    bias: Floats  # (R,), R rows in all
    errors: Floats  # (R, B), for outputs, then for derivatives in them
    hidden: Floats  # (L + 1, B D), for the inputs of each layer, then for derivatives
    turned: Floats  # (B, R), for errors


@inlined
def in_tens(outputs: int) -> int:
    """Round up to ten: a layer's rows, of which two outputs and five terms are taken at a time."""
    return (outputs + 9) // 10 * 10


@inlined
def take(space: Space, weights: Floats, inputs: Floats, chosen: Integers, examples: int) -> None:
    """Compute the first linear layer's inputs: those of the model, or what layers of images make of them.

    There are so many `examples`, as the last one is repeated.
    """
    plan, batch, count = space.plan, space.errors.shape[1], len(chosen)
    x, n, pitch, zero = space.hidden[0], space.widths[0], pitched(space.widths[0]), space.w.dtype.type(0)
    if len(plan):
        gather(inputs, chosen, plan[0], inputs_of(plan[0], space.images, count, batch))
        look(plan, weights, space.images, space.where, space.spare[0], count, batch)
        seen, relu = space.spare[0], plan[len(plan) - 1].relu
        for b in range(examples):
            for c in range(n):
                value = seen[c * count + min(b, count - 1)]
                x[b * pitch + c] = zero if relu and value < zero else value  # NaN stays
    else:
        for b in range(examples):
            example = inputs[chosen[min(b, count - 1)]]
            for c in range(n):
                x[b * pitch + c] = example[c]


@inlined
def give_back(space: Space, weights: Floats, count: int) -> None:
    """Compute derivatives in the weights of the layers of images, of those in what they have made."""
    plan, batch, back = space.plan, space.errors.shape[1], space.hidden[len(space.widths) - 1]
    x, n, pitch, zero = space.hidden[0], space.widths[0], pitched(space.widths[0]), space.w.dtype.type(0)
    seen, relu = space.spare[0], plan[len(plan) - 1].relu
    for c in range(n):
        for b in range(count):
            alive = x[b * pitch + c] > 0 or not relu
            seen[c * count + b] = -back[b * pitch + c] if alive else zero
    of_weights, turned = space.gradient[0], space.gradient[1]
    look_back(
        plan, weights, space.images, space.where, seen, space.spare[1], count, batch, of_weights, turned
    )


@compiled
def train(work: Work, space: Space, first: int, stride: int) -> None:
    """Train every stride-th client's layers."""
    y, start, strength, direction, rates, inputs, indices, targets, lengths, losses, norms = work
    widths, biased, w, bias = space.widths, space.biased, space.w, space.bias
    errors, hidden, turned = space.errors, space.hidden, space.turned
    layers, batch, zero = len(widths) - 1, errors.shape[1], w.dtype.type(0)
    numbers, back = np.arange(max(batch, len(errors))), hidden[layers]
    for k in range(first, len(y), stride):
        rate, own_start = rates[k], start[min(k, len(start) - 1)]
        share, own_direction = w.dtype.type(rate * strength), direction[min(k, len(direction) - 1)]
        total, at, row, begin, own = 0.0, 0, 0, 0, y[k]
        for layer in range(layers):
            at += widths[layer + 1] * (widths[layer] + biased)
        of_images = len(own_start) - at  # numbers, before those of the linear layers
        for i in range(of_images):
            own[i] = own_start[i]
        at = of_images
        for layer in range(layers):
            n, m = widths[layer], widths[layer + 1]
            tens, stop = in_tens(m), at + m * (n + biased)
            load(own_start[at:stop], n, w[begin : begin + tens * pitched(n)], bias[row : row + m])
            at, row, begin = stop, row + tens, begin + tens * pitched(n)
        for t in range(len(lengths)):
            count = lengths[t, k]
            if not count:
                break
            examples, scale = (count + 4) // 5 * 5, rate / count
            chosen, rows = indices[t, k, :count], numbers[:examples]
            take(space, own, inputs, chosen, examples)
            row, begin = 0, 0
            for layer in range(layers):
                n, m = widths[layer], widths[layer + 1]
                x, pitch = hidden[layer], pitched(n)
                if layer:  # a ReLU
                    for b in range(examples):
                        for c in range(n):
                            x[b * pitch + c] = max(errors[row + c, b], zero)
                    row += in_tens(n)
                wide = (m + 1) // 2 * 2
                outputs = errors[row : row + wide]
                products(w[begin:], x, pitch, rows, n, outputs)
                begin += in_tens(m) * pitched(n)
                for c in range(m):
                    for b in range(examples):
                        outputs[c, b] += bias[row + c]
            total, logits = 0.0, outputs[:m]
            for b in range(examples):
                if b < count:
                    total += softmax_error(logits, b, targets[t, k, b], scale)
                for c in range(0 if b >= count else m, wide):
                    outputs[c, b] = 0
            losses[t, k], at = total / count, len(own_start)
            for layer in range(layers - 1, -1, -1):
                n, m = widths[layer], widths[layer + 1]
                stop, at = at, at - m * (n + biased)
                begin -= in_tens(m) * pitched(n)
                of_layer, of_bias = w[begin:], bias[row : row + m]
                outputs = errors[row : row + (m + 1) // 2 * 2]
                x, pitch = hidden[layer], pitched(n)
                if layer or len(space.plan):
                    terms = numbers[: (m + 4) // 5 * 5]
                    for b in range(examples):
                        for c in range(len(terms)):
                            turned[b, c] = outputs[c, b] if c < m else zero
                        for c in range(n):
                            back[b * pitch + c] = 0
                    subtract(back, of_layer, pitch, terms, n, turned[: (examples + 1) // 2 * 2])
                correct(of_layer, of_bias, n, own_start[at:stop], share, own_direction[at:stop], rate)
                descend(of_layer, of_bias[: m * biased], space.step, x, pitch, rows, n, outputs)
                if layer:
                    row -= in_tens(n)
                    for b in range(examples):
                        for c in range((n + 1) // 2 * 2):
                            alive = c < n and x[b * pitch + c] > 0
                            errors[row + c, b] = -back[b * pitch + c] if alive else zero
            if len(space.plan):
                give_back(space, own, count)
                for i in range(of_images):  # their errors have the rate in them
                    change = space.gradient[0, i]
                    if share != 0:
                        change += share * (own[i] - own_start[i])
                    if len(own_direction):
                        change += rate * own_direction[i]
                    own[i] -= change
        total, at, row, begin = 0.0, of_images, 0, 0
        for i in range(of_images):
            total += (own[i] - own_start[i]) ** 2
        for layer in range(layers):
            n, m = widths[layer], widths[layer + 1]
            stop = at + m * (n + biased)
            total += save(w[begin:], bias[row : row + m], n, own_start[at:stop], own[at:stop])
            at, row, begin = stop, row + in_tens(m), begin + in_tens(m) * pitched(n)
        norms[k] = math.sqrt(total)
