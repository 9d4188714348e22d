"""How precisely layers compute. Weights, gradients and all sums of a method keep their own type."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from fedtide.base.errors import SettingsError

TF32, BFLOAT16 = "tf32", "bfloat16"
_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # of x86 and ARM processors that multiply such numbers


def set_precision(precision: str, device: torch.device) -> None:
    """Have PyTorch compute so in this process, as far as that is not a matter of each call (`computing`).

    SettingsError: the device does not.
    """
    on_cpu = device.type == "cpu"
    if precision == TF32 and on_cpu:
        raise SettingsError("precision tf32 is for GPUs: take float32, or bfloat16")
    if precision == BFLOAT16 and on_cpu and not _has_bfloat16():
        raise SettingsError("precision bfloat16: this processor does not compute with it; take float32")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == TF32


def computing(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass, in which layers may round what they multiply."""
    return torch.autocast(device.type, torch.bfloat16) if precision == BFLOAT16 else nullcontext()


def _has_bfloat16() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not on Linux
        return True
    flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
    return bool(flags & _FLAGS)
