"""Products of matrices do not depend on where the matrices lie."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]

SHIFTED = """
import torch
import clients.gradients.flat

torch.set_num_threads(1)
found = set()
for shift in range(16):
    memory = torch.empty(40 * 33 + 16)
    left = memory[shift : shift + 17 * 10].view(1, 17, 10)
    right = memory[shift + 17 * 10 :][: 3 * 10].view(1, 3, 10)
    left.copy_(torch.arange(170.0).view(1, 17, 10).sin())
    right.copy_(torch.arange(30.0).view(1, 3, 10).cos())
    found.add((left @ right.mT).numpy().tobytes())
print(len(found))
"""


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="PyTorch multiplies with another library")
def test_products_are_the_same_at_any_address() -> None:
    """MKL's kernels for other processors than Intel's are not, unless they are told to be."""
    environment = {key: value for key, value in os.environ.items() if key != "MKL_CBWR"}
    done = subprocess.run(
        [sys.executable, "-c", SHIFTED],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "1\n", done.stderr
