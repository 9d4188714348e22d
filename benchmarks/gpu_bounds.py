"""What a GPU needs at least for the work of benchmarks/gpu.py: arithmetic, memory, calls, and the way back.

    python benchmarks/gpu_bounds.py                                   # an H100 (SXM)
    python benchmarks/gpu_bounds.py --tflops 30 --gigabytes 3000 --call 15

Counts are those of fedtide's own steps, which run on the CPU for it: floating-point operations of one client,
bytes that its operations read and write, if nothing stays in a cache, and how many operations a step of a
cohort has, whatever its size: PyTorch starts them one after the other. No result of a GPU is in this.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gpu import LARGE, Work, make_clients, make_data
from benchmarks.measure import table
from clients.gradients.oracles import automatic
from clients.simulated.jobs import Broadcast, Job
from fedtide.base.contract import FitConfig
from fedtide.tasks import some_examples

FREE = {"detach", "empty", "new_empty", "empty_like", "_local_scalar_dense", "lift_fresh", "_unsafe_view"}


class Counted(TorchDispatchMode):
    """Counts operations that do more than look at a tensor in another shape, and bytes of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Do the operation, and count it."""
        result = func(*args, **(kwargs or {}))
        if not (func.is_view or func.overloadpacket.__name__ in FREE):
            self.calls += 1
            tensors = (leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor))
            self.bytes += sum(tensor.nbytes for tensor in tensors)
        return result


def of_a_step(work: Work, oracle: str, size: int) -> tuple[int, int, int]:
    """Return calls, bytes and floating-point operations of a step of a cohort: two steps less one."""
    clients = make_clients(make_data(size, work), work, "cpu", oracle, size)
    weights = Broadcast(clients.model.vector.numpy().copy())
    found = []
    for steps in (1, 1, 2):  # the first call of all makes what is kept
        task = FitConfig(round=1, learning_rate=0.01, batch_size=work.batch_size, local_steps=steps)
        with Counted() as counted, FlopCounterMode(display=False) as flops:
            clients.fit(weights, [Job(k, (), task, 1.0) for k in range(size)])
        found.append((counted.calls, counted.bytes, flops.get_total_flops()))
    _, one, two = found
    return two[0] - one[0], two[1] - one[1], two[2] - one[2]


def main() -> None:
    """Print a table: a line for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tflops", type=float, default=67.0, help="10^12 operations a second (67: float32)")
    parser.add_argument("--gigabytes", type=float, default=3350.0, help="of its memory, a second (3,350)")
    parser.add_argument("--link", type=float, default=25.0, help="gigabytes a second to the processor (25)")
    parser.add_argument("--call", type=float, default=10.0, help="microseconds to start an operation (10)")
    parser.add_argument("--cohort", type=int, default=64, help="clients of which operations are shared (64)")
    given = parser.parse_args()
    rows = []
    for name, work in LARGE.items():
        data = make_data(1, work)
        model = make_clients(data, work, "cpu", "loop", 1).model
        oracle, _ = automatic(model, some_examples(data), on_gpu=True)
        calls, moved, _ = of_a_step(work, oracle, 4)
        _, _, flops = of_a_step(work, "loop", 1)  # PyTorch counts those of grouped convolutions too high
        each = {
            "arithmetic": work.steps * flops / given.tflops / 1e12,
            "memory": work.steps * moved / 4 / given.gigabytes / 1e9,
            "calls": work.steps * calls * given.call / 1e6 / given.cohort,
            "reply": 4 * model.num_trainable / given.link / 1e9,
        }
        shown = [f"{1e6 * seconds:,.1f}" for seconds in each.values()]
        counts = [f"{work.steps * flops / 1e9:,.3g}", f"{work.steps * moved / 4e6:,.0f}", str(calls)]
        rows.append([name, *counts, *shown, f"{1 / max(each.values()):,.0f}"])
    head = ["model", "GFLOP", "MB", "calls a step", "arithmetic, us", "memory, us", "calls, us", "reply, us"]
    print(table([*head, "clients/s at most"], rows))


if __name__ == "__main__":
    main()
