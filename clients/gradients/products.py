"""Products of matrices that round alike wherever the matrices lie in memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def ignore_alignment() -> None:
    """Have MKL, which multiplies for PyTorch on x86, round alike for matrices at any address.

    Its fastest kernels for processors other than Intel's sum small products in an order that depends on the
    address modulo 64 bytes, which depends on who else is in a cohort. Its mode for reproducible results
    (`MKL_CBWR`) does not. MKL reads the variable when it is first used; what the user has set stays.
    """
    if not _made_by_intel():
        os.environ.setdefault("MKL_CBWR", "AUTO")


def _made_by_intel() -> bool:
    about = Path("/proc/cpuinfo")
    return "GenuineIntel" in (about.read_text(errors="replace") if about.exists() else platform.processor())
