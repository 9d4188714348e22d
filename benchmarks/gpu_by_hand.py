"""The work of a round as anybody would write it for one model: in PyTorch, by `torch.func.vmap`, and in JAX.

Each function takes the data, the work and the device, and returns a call that trains all clients once, all of
the same size, from the same weights, and leaves their weights with the CPU. Batches are examples in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

from fedtide.base.specs import bind
from fedtide.tasks import PartitionedData
from fedtide.tasks.models import MODELS

RATE = 0.01
AT_A_TIME = 64  # clients in a call


def examples(data: PartitionedData, work: Any) -> tuple[Any, Any]:
    """Return the inputs and labels of each client's steps, (K, steps, batch, ...)."""
    count, needed = len(data.sizes), work.steps * work.batch_size
    x, y = data.train
    size = len(y) // count
    rows = np.arange(count)[:, None] * size + np.arange(needed) % size
    shape = (count, work.steps, work.batch_size)
    return x[rows].reshape(*shape, *x.shape[1:]), y[rows].reshape(shape)


def module_of(work: Any, device: str) -> nn.Module:
    """Build the model."""
    module: nn.Module = bind("model", MODELS, work.model).build(work.input_shape, 10)
    return module.to(device).train()


def loop(data: PartitionedData, work: Any, device: str) -> Callable[[], object]:
    """One client after the other, by `torch.optim`."""
    model, (x, y) = module_of(work, device), examples(data, work)
    inputs, targets = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def train() -> None:
        for own, labels in zip(inputs, targets, strict=True):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), RATE)
            for batch, label in zip(own, labels, strict=True):
                optimizer.zero_grad()
                functional.cross_entropy(model(batch), label).backward()
                optimizer.step()
            [tensor.cpu() for tensor in model.state_dict().values()]

    return train


def by_vmap(data: PartitionedData, work: Any, device: str) -> Callable[[], object]:
    """Clients in the same calls."""
    model, (x, y) = module_of(work, device), examples(data, work)
    inputs, targets = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
    count = min(AT_A_TIME, len(x))
    start, _ = stack_module_state([model] * count)

    def loss(weights: dict[str, Tensor], batch: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, weights, (batch,)), label)

    gradient = vmap(grad(loss), randomness="different")

    def train() -> None:
        for first in range(0, len(inputs) - count + 1, count):
            weights = {name: tensor.detach() for name, tensor in start.items()}
            for t in range(work.steps):
                rows = slice(first, first + count)
                changes = gradient(weights, inputs[rows, t], targets[rows, t])
                weights = {name: w - RATE * changes[name] for name, w in weights.items()}
            [tensor.cpu() for tensor in weights.values()]

    return train


def by_jax(data: PartitionedData, work: Any, device: str) -> Callable[[], object]:
    """A compiled function of all clients' steps, for sequences of common layers; ValueError: others."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    layers, (x, y) = [*module_of(work, "cpu").children()], examples(data, work)
    apply, weights = [], list[Any]()
    for layer in layers:
        own = [p.detach().numpy() for p in layer.parameters()]
        apply.append((_in_jax(layer, jax, jnp, lax), len(own)))
        weights += own
    where = jax.devices("cpu" if device == "cpu" else "gpu")[0]
    start, inputs, targets = jax.device_put((weights, x, y.astype(np.int32)), where)
    count = min(AT_A_TIME, len(x))

    def loss(weights: list[Any], batch: Any, label: Any) -> Any:
        place = 0
        for function, wanted in apply:
            batch = function(batch, *weights[place : place + wanted])
            place += wanted
        logs = jax.nn.log_softmax(batch)
        return -jnp.mean(jnp.take_along_axis(logs, label[:, None], 1))

    def steps(own: Any, labels: Any) -> list[Any]:
        def step(weights: list[Any], one: Any) -> tuple[list[Any], None]:
            changes = jax.grad(loss)(weights, *one)
            return [w - RATE * c for w, c in zip(weights, changes, strict=True)], None

        return lax.scan(step, start, (own, labels))[0]  # type: ignore[no-any-return]

    compiled = jax.jit(jax.vmap(steps))

    def train() -> None:
        for first in range(0, len(x) - count + 1, count):
            rows = slice(first, first + count)
            [np.asarray(w) for w in compiled(inputs[rows], targets[rows])]

    return train


def _in_jax(layer: nn.Module, jax: Any, jnp: Any, lax: Any) -> Callable[..., Any]:
    """Return a layer as a function of its inputs and weights."""
    if isinstance(layer, nn.Linear):
        return lambda x, w, b: x @ w.T + b
    if isinstance(layer, nn.ReLU):
        return lambda x: jax.nn.relu(x)
    if isinstance(layer, nn.Flatten):
        return lambda x: x.reshape(len(x), -1)
    if isinstance(layer, nn.MaxPool2d):
        size = (1, 1, 2, 2)
        return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, size, size, "VALID")
    if isinstance(layer, nn.Conv2d):
        pad = [(p, p) for p in layer.padding if isinstance(p, int)]

        def convolve(x: Any, w: Any, b: Any) -> Any:
            return lax.conv_general_dilated(x, w, (1, 1), pad) + b[None, :, None, None]

        return convolve
    raise ValueError(f"JAX by hand knows no {type(layer).__name__}")


BY_HAND = {"loop": loop, "vmap": by_vmap, "JAX": by_jax}
