"""What the tensors of a model have to be, so that they can be views of one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedtide.base.errors import SettingsError


def require_one_type(tensors: dict[str, Tensor]) -> None:
    """Raise SettingsError unless all tensors have one type, of real numbers that NumPy has."""
    types = {str(tensor.dtype).removeprefix("torch."): name for name, tensor in reversed(tensors.items())}
    if len(types) > 1 or not {*types} <= {"float16", "float32", "float64"}:
        found = ", ".join(f"{name} {kind}" for kind, name in types.items())
        is_complex = any(tensor.is_complex() for tensor in tensors.values())
        advice = (
            "keep pairs of real numbers, and have forward call torch.view_as_complex"
            if is_complex
            else "convert it with .float()"
        )
        raise SettingsError(
            f"the model's weights and buffers must all be float32, or all float64 or float16, not {found}: "
            f"{advice}"
        )


def require_own_memory(module: nn.Module) -> None:
    """Raise SettingsError if a trained weight shares numbers with another tensor that is another object.

    As views of a vector they would be trained apart.
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    tensors = {name: t for name, t in named if t.numel() and t.layout == torch.strided and not t.is_meta}
    ends = dict[str, int]()  # of those before that reach beyond where the next one starts
    for name in sorted(tensors, key=lambda name: tensors[name].data_ptr()):
        tensor = tensors[name]
        ends = {other: end for other, end in ends.items() if end > tensor.data_ptr()}
        if shared := [other for other in ends if _share_trained(tensor, tensors[other])]:
            raise SettingsError(
                f"model: {shared[0]} and {name} share memory without being one parameter, and would be "
                "trained apart: assign the parameter itself, not its .data, or a clone()"
            )
        reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        ends[name] = tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _share_trained(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of the same memory, one of which is trained, are not merely interleaved."""
    if not (one.requires_grad or other.requires_grad):
        return False
    count = max(t.untyped_storage().nbytes() // t.element_size() for t in (one, other))
    places = torch.arange(count)
    of_one, of_other = (places.as_strided(t.shape, t.stride(), t.storage_offset()) for t in (one, other))
    return bool(torch.isin(of_one, of_other).any())
