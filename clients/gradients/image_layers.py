"""Layers of images, compiled by Numba: convolutions and max pooling, forward and back.

Images have shape (channels, height, width * B): the B examples of a batch lie side by side. So loops run over
width * B numbers, however few channels there are, and a pixel to the right is B numbers further. Libraries
fill their vectors with channels instead, and few channels leave most of them empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.gradients.linear_sgd import Floats, Integers
from clients.gradients.machine_code import compiled, inlined

_SIZES = ("channels", "height", "width", "outputs", "out_height", "out_width")
LAYER = np.dtype(
    [
        (name, np.int64)
        for name in (*_SIZES, "tall", "wide", "rows", "columns", "biased", "relu", "at", "first")
    ]
)
"""A layer of images: sizes of its padded inputs and of its outputs, those of its kernel, and its padding.

`tall` is 0 for pooling. `relu`: a ReLU follows. Its weights begin at `first` of the client's, its inputs at
`at` times the size of a batch among all layers' inputs.
"""


@compiled
def _add(
    r: Floats, s: Floats, c: Floats, d: Floats, source: Floats, offsets: NDArray[np.int64], start: int
) -> None:
    """r += sum_t c[t] source[start + offsets[t] :] and s += sum_t d[t] source[start + offsets[t] :].

    Two sums and three terms at a time: with more, the compiler gives up proving that r and s do not overlap
    `source`, and does one number at a time.
    """
    wide = len(c) // 3 * 3
    for t in range(0, wide, 3):
        c0, c1, c2, d0, d1, d2 = c[t], c[t + 1], c[t + 2], d[t], d[t + 1], d[t + 2]
        x0, x1 = source[start + offsets[t] :], source[start + offsets[t + 1] :]
        x2 = source[start + offsets[t + 2] :]
        for j in range(len(r)):
            x, y, z = x0[j], x1[j], x2[j]
            r[j] += c0 * x + c1 * y + c2 * z
            s[j] += d0 * x + d1 * y + d2 * z
    for t in range(wide, len(c)):
        c0, d0, x0 = c[t], d[t], source[start + offsets[t] :]
        for j in range(len(r)):
            r[j] += c0 * x0[j]
            s[j] += d0 * x0[j]


@compiled
def convolve(x: Floats, weight: Floats, bias: Floats, batch: int, out: Floats) -> None:
    """Cross-correlate padded images (I, H, W B) with a weight (O, I, h, w), and add a bias (O,), or (0,).

    The results have shape (O, H - h + 1, (W - w + 1) B).
    """
    offsets = _taps(x, weight.shape[2], weight.shape[3], batch)
    source, own = x.reshape(-1), weight.reshape(len(weight), -1)
    spare = np.zeros(out.shape[2], out.dtype)  # the partner of the last of an odd number
    for row in range(out.shape[1]):
        for o in range(0, len(out), 2):
            p = min(o + 1, len(out) - 1)
            r, s = out[o, row], out[p, row] if p > o else spare
            r[:] = bias[o] if len(bias) else 0
            s[:] = bias[p] if len(bias) else 0
            _add(r, s, own[o], own[p], source, offsets, row * x.shape[2])


@compiled
def _taps(x: Floats, height: int, width: int, batch: int) -> NDArray[np.int64]:
    """Return where the factors of each weight of a kernel begin, for the first row."""
    offsets = np.empty(len(x) * height * width, np.int64)
    t = 0
    for i in range(len(x)):
        for row in range(height):
            for column in range(width):
                offsets[t] = (i * x.shape[1] + row) * x.shape[2] + column * batch
                t += 1
    return offsets


@compiled
def input_gradient(error: Floats, weight: Floats, batch: int, out: Floats) -> None:
    """Compute derivatives in the padded images, (I, H, W B), of those in the results, (O, H', W' B).

    The weight has its axes in the order (I, w, h, O).
    """
    _, width, height, outputs = weight.shape
    rows, length = error.shape[1:]
    source = error.reshape(-1)
    offsets = np.empty(height * outputs, np.int64)
    for row in range(height):
        for o in range(outputs):
            offsets[row * outputs + o] = (o * rows - row) * length
    spare = np.zeros(out.shape[2], out.dtype)
    out[:] = 0
    for row in range(out.shape[1]):
        # Kernel rows for which the row of the error exists.
        first, last = max(0, row - rows + 1) * outputs, min(height, row + 1) * outputs
        for i in range(0, len(out), 2):
            k = min(i + 1, len(out) - 1)
            r, s = out[i, row], out[k, row] if k > i else spare
            for column in range(width):
                own, other = weight[i, column].reshape(-1), weight[k, column].reshape(-1)
                begin, end = column * batch, column * batch + length
                c, d, terms = own[first:last], other[first:last], offsets[first:last]
                _add(r[begin:end], s[begin:end], c, d, source, terms, row * length)


@compiled
def weight_gradient(x: Floats, error: Floats, batch: int, out: Floats) -> None:
    """Compute derivatives in the weights, (O, I, h, w); two outputs and five weights at a time."""
    offsets, step = _taps(x, out.shape[2], out.shape[3], batch), x.shape[2]
    source, sums = x.reshape(-1), out.reshape(len(out), -1)
    rows, length, zero = error.shape[1], error.shape[2], out.dtype.type(0)
    wide = len(offsets) // 5 * 5
    for o in range(0, len(out), 2):
        p = min(o + 1, len(out) - 1)  # of an odd number, the last output twice
        for t in range(0, wide, 5):
            v0, v1, v2, v3, v4 = zero, zero, zero, zero, zero
            w0, w1, w2, w3, w4 = zero, zero, zero, zero, zero
            for row in range(rows):
                start = row * step
                x0, x1 = source[start + offsets[t] :], source[start + offsets[t + 1] :]
                x2, x3 = source[start + offsets[t + 2] :], source[start + offsets[t + 3] :]
                x4, v, w = source[start + offsets[t + 4] :], error[o, row], error[p, row]
                for j in range(length):
                    vj, wj = v[j], w[j]
                    v0 += vj * x0[j]
                    v1 += vj * x1[j]
                    v2 += vj * x2[j]
                    v3 += vj * x3[j]
                    v4 += vj * x4[j]
                    w0 += wj * x0[j]
                    w1 += wj * x1[j]
                    w2 += wj * x2[j]
                    w3 += wj * x3[j]
                    w4 += wj * x4[j]
            sums[o, t], sums[o, t + 1], sums[o, t + 2], sums[o, t + 3], sums[o, t + 4] = v0, v1, v2, v3, v4
            sums[p, t], sums[p, t + 1], sums[p, t + 2], sums[p, t + 3], sums[p, t + 4] = w0, w1, w2, w3, w4
        for t in range(wide, len(offsets)):
            v0, w0 = zero, zero
            for row in range(rows):
                x0, v, w = source[row * step + offsets[t] :], error[o, row], error[p, row]
                for j in range(length):
                    v0 += v[j] * x0[j]
                    w0 += w[j] * x0[j]
            sums[o, t], sums[p, t] = v0, w0


@compiled
def pool(x: Floats, batch: int, out: Floats, where: NDArray[np.uint8]) -> None:
    """Take the maximum of each square of 2 x 2 pixels: the first of equal ones, and NaN if there is one.

    `out` and `where`, (C, H // 2, (W // 2) B), receive the maxima and which pixel of the square each is.
    """
    for c in range(out.shape[0]):
        for row in range(out.shape[1]):
            top, bottom = x[c, 2 * row], x[c, 2 * row + 1]
            for start in range(0, out.shape[2], batch):
                left, right = 2 * start, 2 * start + batch
                a, b, d, e = top[left:], top[right:], bottom[left:], bottom[right:]
                best, pixel = out[c, row, start:], where[c, row, start:]
                for j in range(batch):
                    upper, lower = b[j] > a[j] or b[j] != b[j], e[j] > d[j] or e[j] != e[j]
                    u, v = b[j] if upper else a[j], e[j] if lower else d[j]
                    below = v > u or v != v
                    best[j] = v if below else u
                    pixel[j] = 2 + lower if below else upper


@compiled
def unpool(error: Floats, where: NDArray[np.uint8], batch: int, out: Floats) -> None:
    """Compute derivatives in the images of those in the maxima; see `pool`."""
    out[:] = 0
    for c in range(error.shape[0]):
        for row in range(2 * error.shape[1]):
            first = np.uint8(row % 2 * 2)  # pixel of the row
            for start in range(0, error.shape[2], batch):
                own, pixel = error[c, row // 2, start:], where[c, row // 2, start:]
                left, right = out[c, row, 2 * start :], out[c, row, 2 * start + batch :]
                for j in range(batch):
                    value, k = own[j], pixel[j]
                    left[j] = value if k == first else 0
                    right[j] = value if k == first + 1 else 0


@inlined
def inputs_of(layer: Any, images: Floats, count: int, batch: int) -> Floats:
    """Return the padded inputs of a layer, (I, H, W B)."""
    size = layer.channels * layer.height * layer.width * count
    own = images[layer.at * batch : layer.at * batch + size]
    return own.reshape((layer.channels, layer.height, layer.width * count))


@inlined
def outputs_of(layer: Any, numbers: Any, count: int) -> Any:
    """Return the first numbers of an array as outputs of a layer, (O, H', W' B)."""
    size = layer.outputs * layer.out_height * layer.out_width * count
    return numbers[:size].reshape((layer.outputs, layer.out_height, layer.out_width * count))


@inlined
def weight_of(layer: Any, weights: Floats) -> Floats:
    """Return the weight of a convolution, (O, I, h, w), in a client's weights."""
    size = layer.outputs * layer.channels * layer.tall * layer.wide
    own = weights[layer.first : layer.first + size]
    return own.reshape((layer.outputs, layer.channels, layer.tall, layer.wide))


@compiled
def place(source: Floats, relu: bool, layer: Any, x: Floats, count: int) -> None:
    """Copy images, (I, H - 2 rows, (W - 2 columns) B), into the padded inputs of a layer, after a ReLU."""
    zero = x.dtype.type(0)
    if layer.rows or layer.columns:
        x[:] = 0
    begin = layer.columns * count
    for i in range(source.shape[0]):
        for row in range(source.shape[1]):
            own, to = source[i, row], x[i, row + layer.rows, begin:]
            for j in range(len(own)):
                to[j] = zero if relu and own[j] < zero else own[j]  # NaN stays


@compiled
def gather(inputs: Floats, chosen: Integers, layer: Any, x: Floats) -> None:
    """Copy examples, (P, I H W) without padding, into the padded inputs of the first layer."""
    count = len(chosen)
    if layer.rows or layer.columns:
        x[:] = 0
    height, width = layer.height - 2 * layer.rows, layer.width - 2 * layer.columns
    for b in range(count):
        example = inputs[chosen[b]]
        for i in range(layer.channels):
            for row in range(height):
                own = example[(i * height + row) * width :]
                to = x[i, row + layer.rows, layer.columns * count + b :]
                for column in range(width):
                    to[column * count] = own[column]


@compiled
def look(
    plan: Any, weights: Floats, images: Floats, where: NDArray[np.uint8], out: Floats, count: int, batch: int
) -> None:
    """Compute the outputs of all layers of images, of which `out` receives the last ones, without their ReLU.

    The inputs of the first layer are in `images`; those of the others will be.
    """
    for n in range(len(plan)):
        layer = plan[n]
        x, outputs = inputs_of(layer, images, count, batch), outputs_of(layer, out, count)
        if layer.tall:
            weight = weight_of(layer, weights)
            end = layer.first + weight.size
            convolve(x, weight, weights[end : end + layer.biased * layer.outputs], count, outputs)
        else:
            pool(x, count, outputs, outputs_of(layer, where[layer.at * batch :], count))
        if n + 1 < len(plan):
            after = plan[n + 1]
            place(outputs, layer.relu, after, inputs_of(after, images, count, batch), count)


@compiled
def look_back(
    plan: Any,
    weights: Floats,
    images: Floats,
    where: NDArray[np.uint8],
    error: Floats,
    other: Floats,
    count: int,
    batch: int,
    gradient: Floats,
    turned: Floats,
) -> None:
    """Compute the derivatives in all weights of layers of images, of those in their last outputs, `error`."""
    zero = error.dtype.type(0)
    for n in range(len(plan) - 1, -1, -1):
        layer = plan[n]
        x, errors = inputs_of(layer, images, count, batch), outputs_of(layer, error, count)
        back = other[: x.size].reshape(x.shape)
        if layer.tall:
            weight, of_weight = weight_of(layer, weights), weight_of(layer, gradient)
            weight_gradient(x, errors, count, of_weight)
            end = layer.first + weight.size
            for o in range(layer.outputs * layer.biased):
                total = zero
                for row in range(layer.out_height):
                    own = errors[o, row]
                    for j in range(len(own)):
                        total += own[j]
                gradient[end + o] = total
            if n:
                permuted = turned[: weight.size].reshape(
                    (layer.channels, layer.wide, layer.tall, layer.outputs)
                )
                for o in range(layer.outputs):
                    for i in range(layer.channels):
                        for row in range(layer.tall):
                            for column in range(layer.wide):
                                permuted[i, column, row, o] = weight[o, i, row, column]
                input_gradient(errors, permuted, count, back)
        elif n:
            unpool(errors, outputs_of(layer, where[layer.at * batch :], count), count, back)
        if n:
            before, begin = plan[n - 1], layer.columns * count
            errors = outputs_of(before, error, count)
            for i in range(errors.shape[0]):
                for row in range(errors.shape[1]):
                    own, to = back[i, row + layer.rows, begin:], errors[i, row]
                    alive = x[i, row + layer.rows, begin:]
                    for j in range(len(to)):
                        to[j] = own[j] if alive[j] > zero or not before.relu else zero
