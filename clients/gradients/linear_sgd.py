"""SGD of a linear classifier with cross-entropy, compiled by Numba: all local steps of a client in one call.

A client's weights and the examples of a batch fit into a core's caches, so that what limits these loops is
how many numbers they load for each product, and how many of the loads cross a cache line. So products take
two outputs and five examples at a time, and a client's weights are copied to rows that begin with a cache
line. Batches are filled up to a multiple of five by their last example, whose further errors are zero; the
outputs to an even number, by rows of zeros. Loops are written out, as array expressions take Numba twice as
long to compile. One layer has a function of its own here, which is compiled in a fraction of the time that
`chain_sgd` takes for several.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.gradients.machine_code import compiled, inlined

Floats = NDArray[Any]
Integers = NDArray[np.int64]

LINE = 16  # numbers: rows of weights begin at multiples of this, and so with a cache line


class Work(NamedTuple):
    """All steps y -= eta (g(y) + strength (y - start) + direction) of K clients."""

    y: Floats  # (K, M), receives each layer's weights, and after them its biases, if there are any
    start: Floats  # (K, M), or (1, M) if all clients have the same
    strength: float
    direction: Floats  # (K, M), (1, M), or (1, 0): none
    rates: Floats  # (K,)
    inputs: Floats  # (P, D), examples of all clients
    indices: Integers  # (T, K, B), the examples of each step
    targets: Integers  # (T, K, B)
    lengths: NDArray[np.intp]  # (T, K), how many of them count: 0 after a client's last step
    losses: Floats  # (T, K), receives the mean loss before each step
    norms: NDArray[np.float64]  # (K,), receives how far `y` is from `start`


class Space(NamedTuple):
    """Memory for a client of a linear classifier, B examples at most, a multiple of five; C' is even."""

    w: Floats  # for its weights, C' `pitched` rows
    step: Floats  # for their change, as many numbers; none if B is ten at most
    bias: Floats  # (C,)
    errors: Floats  # (C', B)


@inlined
def pitched(size: int) -> int:
    """Round up to whole cache lines."""
    return (size + LINE - 1) // LINE * LINE


@inlined
def products(w: Floats, x: Floats, pitch: int, rows: Integers, size: int, out: Floats) -> None:
    """out[o, b] = <w[o], x[rows[b]]> for an even number of outputs.

    Rows have `size` numbers; they begin in `w` at multiples of `pitched(size)`, in `x` of `pitch`. There is a
    multiple of five `rows`, ten of which stay in the cache for all outputs.
    """
    zero, step = w.dtype.type(0), pitched(size)
    for start in range(0, len(rows), 10):
        for o in range(0, len(out), 2):
            v, u, p, q = w[o * step :], w[(o + 1) * step :], out[o], out[o + 1]
            for b in range(start, min(start + 10, len(rows)), 5):
                x0, x1, x2 = x[rows[b] * pitch :], x[rows[b + 1] * pitch :], x[rows[b + 2] * pitch :]
                x3, x4 = x[rows[b + 3] * pitch :], x[rows[b + 4] * pitch :]
                r0, r1, r2, r3, r4 = zero, zero, zero, zero, zero
                s0, s1, s2, s3, s4 = zero, zero, zero, zero, zero
                for i in range(size):
                    vi, ui = v[i], u[i]
                    r0 += vi * x0[i]
                    r1 += vi * x1[i]
                    r2 += vi * x2[i]
                    r3 += vi * x3[i]
                    r4 += vi * x4[i]
                    s0 += ui * x0[i]
                    s1 += ui * x1[i]
                    s2 += ui * x2[i]
                    s3 += ui * x3[i]
                    s4 += ui * x4[i]
                p[b], p[b + 1], p[b + 2], p[b + 3], p[b + 4] = r0, r1, r2, r3, r4
                q[b], q[b + 1], q[b + 2], q[b + 3], q[b + 4] = s0, s1, s2, s3, s4


@inlined
def subtract(w: Floats, x: Floats, pitch: int, rows: Integers, size: int, errors: Floats) -> None:
    """w[o] -= sum_b errors[o, b] x[rows[b]]; see `products`."""
    step = pitched(size)
    for start in range(0, len(rows), 10):
        for o in range(0, len(errors), 2):
            v, u, d, e = w[o * step :], w[(o + 1) * step :], errors[o], errors[o + 1]
            for b in range(start, min(start + 10, len(rows)), 5):
                x0, x1, x2 = x[rows[b] * pitch :], x[rows[b + 1] * pitch :], x[rows[b + 2] * pitch :]
                x3, x4 = x[rows[b + 3] * pitch :], x[rows[b + 4] * pitch :]
                d0, d1, d2, d3, d4 = d[b], d[b + 1], d[b + 2], d[b + 3], d[b + 4]
                e0, e1, e2, e3, e4 = e[b], e[b + 1], e[b + 2], e[b + 3], e[b + 4]
                for i in range(size):
                    a0, a1, a2, a3, a4 = x0[i], x1[i], x2[i], x3[i], x4[i]
                    v[i] -= d0 * a0 + d1 * a1 + d2 * a2 + d3 * a3 + d4 * a4
                    u[i] -= e0 * a0 + e1 * a1 + e2 * a2 + e3 * a3 + e4 * a4


@inlined
def descend(
    w: Floats, bias: Floats, step: Floats, x: Floats, pitch: int, rows: Integers, size: int, errors: Floats
) -> None:
    """Subtract a layer's gradient from its weights and biases, of which there may be none; see `subtract`.

    More than ten examples are summed in `step` first: rounded at the size of the weights ten at a time,
    small steps would be lost.
    """
    at_once = len(rows) <= 10
    used = 0 if at_once else len(errors) * pitched(size)
    for i in range(used):
        step[i] = 0
    subtract(w if at_once else step, x, pitch, rows, size, errors)
    for i in range(used):
        w[i] += step[i]
    for o in range(len(bias)):
        total = w.dtype.type(0)
        for b in range(len(rows)):
            total += errors[o, b]
        bias[o] -= total


@inlined
def softmax_error(logits: Floats, b: int, target: int, scale: Any) -> Any:
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
def load(source: Floats, size: int, w: Floats, bias: Floats) -> None:
    """Copy a layer's weights, `size` for each output, and then its biases, if any, from a flat vector."""
    for o in range(len(bias)):
        at, row = o * size, w[o * pitched(size) :]
        for i in range(size):
            row[i] = source[at + i]
    for i in range(len(bias) * pitched(size), len(w)):
        w[i] = 0  # another client may have left infinity
    for o in range(len(source) - len(bias) * size):
        bias[o] = source[len(bias) * size + o]


@inlined
def correct(
    w: Floats, bias: Floats, size: int, start: Floats, share: Any, direction: Floats, rate: Any
) -> None:
    """y += share (start - y) - rate direction, of a layer; an empty direction is zero."""
    for o in range(len(bias)):
        at, row = o * size, w[o * pitched(size) :]
        if share != 0:
            for i in range(size):
                row[i] += share * (start[at + i] - row[i])
        if len(direction):
            for i in range(size):
                row[i] -= rate * direction[at + i]
    for o in range(len(start) - len(bias) * size):
        at = len(bias) * size + o
        if share != 0:
            bias[o] += share * (start[at] - bias[o])
        if len(direction):
            bias[o] -= rate * direction[at]


@inlined
def save(w: Floats, bias: Floats, size: int, start: Floats, out: Floats) -> Any:
    """Copy a layer to a flat vector; return the sum of squares of what differs from `start`."""
    total = 0.0
    for o in range(len(bias)):
        at, row, squares = o * size, w[o * pitched(size) :], w.dtype.type(0)
        for i in range(size):
            out[at + i] = row[i]
            squares += (row[i] - start[at + i]) * (row[i] - start[at + i])
        total += squares
    for o in range(len(start) - len(bias) * size):
        at = len(bias) * size + o
        out[at] = bias[o]
        total += (bias[o] - start[at]) * (bias[o] - start[at])
    return total


@compiled
def train(work: Work, space: Space, first: int, stride: int) -> None:
    """Train every stride-th client's linear classifier."""
    w, step, bias, errors = space
    y, start, strength, direction, rates, inputs, indices, targets, lengths, losses, norms = work
    size, classes, flat = inputs.shape[1], len(bias), inputs.reshape(-1)
    rows = np.empty(errors.shape[1], np.int64)
    for k in range(first, len(y), stride):
        rate = rates[k]
        share, of_batch = w.dtype.type(rate * strength), errors[:classes]
        own_start, own_direction = start[min(k, len(start) - 1)], direction[min(k, len(direction) - 1)]
        load(own_start, size, w, bias)
        for t in range(len(lengths)):
            count = lengths[t, k]
            if not count:
                break
            wide, scale = (count + 4) // 5 * 5, rate / count
            for b in range(wide):
                rows[b] = indices[t, k, min(b, count - 1)]
            products(w, flat, size, rows[:wide], size, errors)
            total = 0.0
            for b in range(wide):
                for c in range(classes):
                    errors[c, b] += bias[c]
                if b < count:
                    total += softmax_error(of_batch, b, targets[t, k, b], scale)
                for c in range(0 if b >= count else classes, len(errors)):
                    errors[c, b] = 0
            losses[t, k] = total / count
            correct(w, bias, size, own_start, share, own_direction, rate)
            of_bias = bias[: len(own_start) - classes * size]
            descend(w, of_bias, step, flat, size, rows[:wide], size, errors)
        norms[k] = math.sqrt(save(w, bias, size, own_start, y[k]))
