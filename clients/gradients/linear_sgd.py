"""SGD of a linear classifier with cross-entropy, compiled by Numba: all local steps of a client in one call.

A client's weights and the examples of a batch fit into a core's caches, so that what limits these loops is
how many numbers they load for each product. So logits are computed for two classes and five examples at a
time, and updates for four examples. Loops are written out, as array expressions take Numba twice as long to
compile.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.gradients.machine_code import compiled, inlined

Floats = NDArray[Any]


@inlined
def _logits(v: Floats, w: Floats, x: Floats, rows: NDArray[np.int64], out_v: Floats, out_w: Floats) -> None:
    """out_v[b] = <v, x[rows[b]]> and out_w[b] = <w, x[rows[b]]> for the examples of a batch."""
    zero, wide = w.dtype.type(0), len(rows) // 5 * 5
    for b in range(0, wide, 5):
        x0, x1, x2, x3, x4 = x[rows[b]], x[rows[b + 1]], x[rows[b + 2]], x[rows[b + 3]], x[rows[b + 4]]
        r0, r1, r2, r3, r4 = zero, zero, zero, zero, zero
        s0, s1, s2, s3, s4 = zero, zero, zero, zero, zero
        for i in range(len(w)):
            vi, wi = v[i], w[i]
            r0 += vi * x0[i]
            r1 += vi * x1[i]
            r2 += vi * x2[i]
            r3 += vi * x3[i]
            r4 += vi * x4[i]
            s0 += wi * x0[i]
            s1 += wi * x1[i]
            s2 += wi * x2[i]
            s3 += wi * x3[i]
            s4 += wi * x4[i]
        out_v[b], out_v[b + 1], out_v[b + 2], out_v[b + 3], out_v[b + 4] = r0, r1, r2, r3, r4
        out_w[b], out_w[b + 1], out_w[b + 2], out_w[b + 3], out_w[b + 4] = s0, s1, s2, s3, s4
    for b in range(wide, len(rows)):
        x0, r0, s0 = x[rows[b]], zero, zero
        for i in range(len(w)):
            r0 += v[i] * x0[i]
            s0 += w[i] * x0[i]
        out_v[b], out_w[b] = r0, s0


@inlined
def _subtract(w: Floats, x: Floats, rows: NDArray[np.int64], errors: Floats) -> None:
    """w -= sum_b errors[b] x[rows[b]] for the examples of a batch."""
    wide = len(rows) // 4 * 4
    for b in range(0, wide, 4):
        x0, x1, x2, x3 = x[rows[b]], x[rows[b + 1]], x[rows[b + 2]], x[rows[b + 3]]
        e0, e1, e2, e3 = errors[b], errors[b + 1], errors[b + 2], errors[b + 3]
        for i in range(len(w)):
            w[i] -= e0 * x0[i] + e1 * x1[i] + e2 * x2[i] + e3 * x3[i]
    for b in range(wide, len(rows)):
        x0, e0 = x[rows[b]], errors[b]
        for i in range(len(w)):
            w[i] -= e0 * x0[i]


@inlined
def _softmax_error(logits: Floats, b: int, target: int, scale: Any) -> Any:
    """Replace the logits [:, b] by scale (softmax - one-hot); return the cross-entropy."""
    largest = logits[0, b]
    for c in range(len(logits)):
        largest = max(largest, logits[c, b])
    total, at_target = 0.0, logits[target, b] - largest  # in double precision: the loss may be close to 0
    for c in range(len(logits)):
        logits[c, b] = math.exp(logits[c, b] - largest)
        total += logits[c, b]
    for c in range(len(logits)):
        logits[c, b] *= scale / total
    logits[target, b] -= scale
    return math.log(total) - at_target


@inlined
def _correct(y: Floats, start: Floats, share: Any, direction: Floats, rate: Any) -> None:
    """y += share (start - y) - rate direction; an empty direction is zero."""
    if share != 0:
        for i in range(len(y)):
            y[i] += share * (start[i] - y[i])
    if len(direction):
        for i in range(len(y)):
            y[i] -= rate * direction[i]


@compiled
def train(
    y: Floats,
    start: Floats,
    strength: float,
    direction: Floats,
    rates: Floats,
    inputs: Floats,
    indices: NDArray[np.int64],
    targets: NDArray[np.int64],
    lengths: NDArray[np.intp],
    has_bias: bool,
    losses: Floats,
    first: int,
    stride: int,
) -> None:
    """Do y -= eta (g(y) + strength (y - start) + direction) in all steps of every stride-th client.

    `y`, (K, M), has the weights of each class, then the biases if there are any. `start` and `direction` have
    shape (K, M), or (1, M) if all clients have the same; no direction has M = 0. `inputs`, (P, D), are
    examples of all clients; `indices` and `targets`, (T, K, B), those of each step, of which the first
    `lengths`, (T, K), count: 0 after a client's last step. `losses`, (T, K), receives the mean losses before
    each step.
    """
    num_inputs = inputs.shape[1]
    num_classes = y.shape[1] // (num_inputs + has_bias)
    size = num_classes * num_inputs
    errors = np.empty((num_classes, indices.shape[2]), y.dtype)
    for k in range(first, len(y), stride):
        own, rate = y[k], rates[k]
        own_start, own_direction = start[min(k, len(start) - 1)], direction[min(k, len(direction) - 1)]
        for t in range(len(lengths)):
            count = lengths[t, k]
            if not count:
                break
            rows, scale = indices[t, k, :count], rate / count
            for c in range(0, num_classes, 2):
                d = min(c + 1, num_classes - 1)  # of an odd number, the last class twice
                v, w = own[c * num_inputs : (c + 1) * num_inputs], own[d * num_inputs : (d + 1) * num_inputs]
                _logits(v, w, inputs, rows, errors[c], errors[d])
            if has_bias:
                for c in range(num_classes):
                    for b in range(count):
                        errors[c, b] += own[size + c]
            total = 0.0
            for b in range(count):
                total += _softmax_error(errors, b, targets[t, k, b], scale)
            losses[t, k] = total / count
            _correct(own, own_start, y.dtype.type(rate * strength), own_direction, rate)
            for c in range(num_classes):
                _subtract(own[c * num_inputs : (c + 1) * num_inputs], inputs, rows, errors[c])
                if has_bias:
                    for b in range(count):
                        own[size + c] -= errors[c, b]
