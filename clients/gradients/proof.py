"""Whether a model can be trained by other means than autograd: what it consists of, then a trial.

A hook, a parametrisation or a pruning mask changes what a layer computes, and nothing in the layer's type or
sizes says so. Fast gradients know none of these: models that have one are trained by autograd, which does.
Structure does not say all: a class may have been changed while the program runs, a library may have a defect.
A wrong gradient trains as fast as a right one, and nothing else would notice. So an oracle is tried on real
examples before a run uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from clients.draws import BatchIndices
from clients.gradients.batches import Batch, CohortBatches
from clients.gradients.flat import FlatModel, as_tensor, own_draws
from clients.gradients.precision import BFLOAT16
from clients.rules.base import Correction
from fedtide.base.errors import SettingsError
from fedtide.tasks import Examples

if TYPE_CHECKING:
    from clients.gradients.oracle import CohortOracle

TOLERANCE = 1e-4  # of the norm of autograd's gradient
ON_GPUS = 2e-2  # where convolutions may be computed with ten bits
ROUNDED = 0.2  # where layers compute with eight
STEP = 0.1  # of the weights' norm: rounding them is far below the tolerance
FLAT = 0.1  # a gradient of a smaller norm may be mostly rounding, as where a model fits its examples

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{kind}" for kind in _HOOKS)
_OF_WEIGHTS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class DiffersError(SettingsError):
    """An oracle computes other gradients than autograd."""


def obstacle(model: FlatModel) -> str:
    """Return the reason, if one shows, why only autograd can train a model; else an empty text.

    It is a hook of a layer, a container, a weight or of all modules, a `forward` that was set on one
    object, as `torch.compile` does, or is of TorchScript, or a buffer, which training may change. Parts that
    are frozen change none.
    """
    if any(getattr(nn.modules.module, hooks) for hooks in _GLOBAL_HOOKS):
        return "all modules have a hook"
    inert = {*model.frozen_parts}
    for name, part in model.module.named_modules():
        where = f"layer {name}" if name else "the model"
        if any(getattr(part, hooks) for hooks in _HOOKS):
            return f"{where} has a hook"
        scripted = isinstance(part, torch.jit.ScriptModule)
        if scripted or "forward" in vars(part) or part._compiled_call_impl is not None:
            return f"{where} has a forward of its own"
        if part not in inert and any(True for _ in part.buffers(recurse=False)):
            return f"{where} has buffers"
    name = hooked_weight(model.module)
    return f"weight {name} has a hook" if name else ""


def hooked_weight(module: nn.Module) -> str:
    """Return the name of a weight that has a hook, which only autograd calls, if there is one."""
    named = module.named_parameters()
    return next((name for name, w in named if any(getattr(w, hooks) for hooks in _OF_WEIGHTS)), "")


def plain_sequence(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of an `nn.Sequential` if the parameters are those that they compute with, in order.

    These are each layer's weight, (o, ...), and its bias, (o,), if it has one; all are trained, and none is
    of two layers. None: the model is anything else, such as a subclass with a `forward` of its own. What
    kinds of layers they are is not looked at.
    """
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return None
    layers = [*module]
    pairs = [(getattr(layer, "weight", None), getattr(layer, "bias", None)) for layer in layers]
    own = [tensor for pair in pairs for tensor in pair if tensor is not None]
    whole = [*module.parameters()]
    if len(own) != len(whole) or any(
        a is not b or not b.requires_grad for a, b in zip(own, whole, strict=True)
    ):
        return None
    return layers if all(_fits(*pair) for pair in pairs) else None


def _fits(weight: Tensor | None, bias: Tensor | None) -> bool:
    return bias is None or (weight is not None and bias.shape == weight.shape[:1])


def prove(oracle: CohortOracle, examples: Examples, fused: bool = True) -> None:
    """Raise `DiffersError` if an oracle's gradients at these examples are not those of autograd.

    Whatever the oracle itself raises shows that it does not support the model. Rounding may switch a ReLU
    whose input is nearly zero, once in some hundred models, which changes a gradient by as much as a mistake:
    so a mistake is what shows with all examples, and again with both halves of them.
    """
    inputs, targets = (as_tensor(array).to(oracle.model.device) for array in examples)
    eps = torch.finfo(oracle.model.vector.dtype).eps
    tolerance = max(TOLERANCE if inputs.device.type == "cpu" else ON_GPUS, 50 * eps)
    if oracle.model.precision == BFLOAT16:
        tolerance = ROUNDED
    off = 0.0
    for part in (slice(None), slice(0, None, 2), slice(1, None, 2)):
        if not len(inputs[part]):
            continue
        off = _difference(oracle, inputs[part], targets[part], fused)
        if off <= tolerance:
            return
    raise DiffersError(f"its gradients are not those of autograd: they differ by {off:.2g} of the norm")


def _difference(oracle: CohortOracle, inputs: Tensor, targets: Tensor, fused: bool) -> float:
    """Return the distance of an oracle's steps from those of autograd, as a share of their length.

    Two clients, one of which has an example fewer, so that its batches are padded, do two steps of SGD. What
    is compared is the gradient at the initial weights and at those after a step, the second step, and, with
    `fused`, the weights after both where the oracle does all steps in one call. Where autograd's are not
    finite, nothing is compared, and nothing differs.
    """
    model = oracle.model
    clients = [_all_twice(len(inputs), model), _all_twice(max(1, len(inputs) - 1), model)]
    batches = CohortBatches(inputs, targets, clients, model.vector.dtype, criterion=model.criterion)
    one, other = batches.step(0), batches.step(1)
    start = model.vector.expand(2, -1).clone()
    at_start = oracle.gradient(start, one)[0].clone()  # or raises, before the model draws anything
    with own_draws(model.device):
        first = _by_autograd(model, start, one)
        size = STEP * start.norm().clamp(min=1)
        rate = (size / first.norm().clamp(min=FLAT)).repeat(2, 1)
        after = start - rate * first
        last = after - rate * _by_autograd(model, after, other)
    model.bind(model.vector)
    if not last.isfinite().all():
        return 0.0
    found = [(start - rate * at_start, after), (after - rate * oracle.gradient(after, other)[0], last)]
    found.append((after.clone(), last))
    oracle.descend(found[-1][0], rate, other, None)
    if fused and oracle.fuses_steps(clients[0]):
        found.append((torch.empty_like(start), last))
        oracle.run_fused(found[-1][0], start, rate, batches, Correction())
    size = torch.maximum(size, (last - after).norm())
    return float(torch.stack([(weights - expected).norm() / size for weights, expected in found]).max())


def _all_twice(count: int, model: FlatModel) -> BatchIndices:
    """Two steps, each with all of so many examples, and with other masks where a model has some."""
    seeds = np.arange(2) + 2 * count if model.random.are_needed else None
    return BatchIndices(np.tile(np.arange(count), 2), np.full(2, count), seeds=seeds)


def _by_autograd(model: FlatModel, y: Tensor, batch: Batch) -> Tensor:
    """Return the gradients at weights `y` of clients, one after the other."""
    gradients = []
    for k, n in enumerate(batch.lengths):
        model.random.begin(batch.seed(k), model.device)
        gradients.append(model.gradient(y[k], (batch.inputs[k, :n], batch.targets[k, :n]))[0].clone())
    return torch.stack(gradients)
