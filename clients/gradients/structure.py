"""What a model consists of besides layers that compute with their own parameters.

A hook, a parametrisation or a pruning mask changes what a layer computes, and nothing in the layer's type or
sizes says so. Fast gradients know none of these: models that have one are trained by autograd, which does.
"""

from __future__ import annotations

from torch import Tensor, nn

from clients.gradients.flat import FlatModel

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{kind}" for kind in _HOOKS)
_OF_WEIGHTS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def obstacle(model: FlatModel) -> str:
    """Return what keeps a model from being trained by other means than autograd; empty: nothing that shows.

    That is a hook of a layer, a container, a weight or of all modules, a `forward` that was set on one
    object, as `torch.compile` does, or a buffer, which training may change. Parts that are frozen change
    none.
    """
    if any(getattr(nn.modules.module, hooks) for hooks in _GLOBAL_HOOKS):
        return "all modules have a hook"
    inert = {*model.frozen_parts}
    for name, part in model.module.named_modules():
        where = f"layer {name}" if name else "the model"
        if any(getattr(part, hooks) for hooks in _HOOKS):
            return f"{where} has a hook"
        if "forward" in vars(part) or part._compiled_call_impl is not None:
            return f"{where} has a forward of its own"
        if part not in inert and any(True for _ in part.buffers(recurse=False)):
            return f"{where} has buffers"
    for name, weight in model.module.named_parameters():
        if any(getattr(weight, hooks) for hooks in _OF_WEIGHTS):
            return f"weight {name} has a hook"
    return ""


def plain_sequence(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of an `nn.Sequential` if the parameters are those that they compute with, in order.

    These are each layer's weight, (o, ...), and its bias, (o,), if it has one; all are trained, and none is
    of two layers. None: the model is anything else. What kinds of layers they are is not looked at.
    """
    if type(module) is not nn.Sequential:
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
