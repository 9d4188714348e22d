"""How close convolutions come to the limit of a core: GFLOP/s of one thread.

    python benchmarks/limits.py
    python benchmarks/limits.py --workloads tutorial --turns 20

For each workload the forward and backward passes of a client's local steps are timed three ways in turns: a
plain PyTorch loop, fedtide's oracle, and the convolutions and linear layers alone, each on its own inputs, in
whichever memory format is faster for it, with nothing around them: no activation, no pooling, no optimiser,
no batches. No program that leaves these layers to oneDNN is faster than they are alone; fedtide compiles
those of few channels itself. A matrix product says what the core can do.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gradients import Clients
from benchmarks.measure import machine, machine_line, table, write_json
from benchmarks.workloads import WORKLOADS, Trainer, ensure_data, job_of, named_workloads, write_shards
from clients.gradients.oracles import automatic
from fedtide.base.memory import keep_freed_memory
from fedtide.tasks import some_examples

SIDE = 1024  # of the matrices
FORMATS = (torch.contiguous_format, torch.channels_last)


def seconds_of(work: Callable[[], object], least: float = 0.2) -> float:
    """Return the CPU seconds that a piece of work takes, the shortest of as many trials as fit."""
    work()
    taken: list[float] = []
    while sum(taken) < least or len(taken) < 3:
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def matrix_product() -> float:
    """Return the FLOP/s of a product of two square matrices."""
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    return 2 * SIDE**3 / seconds_of(lambda: a @ b)


def layers_of(model: nn.Module, x: Tensor) -> list[tuple[nn.Module, Tensor]]:
    """Return the layers that compute products, each with its input when the model is given `x`."""
    layers: list[tuple[nn.Module, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda m, inputs, _: layers.append((m, inputs[0].detach())))
        for module in model.modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    return layers


def layer_seconds(layer: nn.Module, x: Tensor, is_first: bool) -> float:
    """Return the seconds of the forward and backward pass of a layer alone."""
    formats = FORMATS if isinstance(layer, nn.Conv2d) else FORMATS[:1]
    taken = []
    for memory_format in formats:
        layer = layer.to(memory_format=memory_format)
        inputs = x.contiguous(memory_format=memory_format).requires_grad_(not is_first)
        error = torch.rand_like(layer(inputs))

        def passes(layer: nn.Module = layer, inputs: Tensor = inputs, error: Tensor = error) -> None:
            layer.zero_grad()
            inputs.grad = None
            layer(inputs).backward(error)

        taken.append(seconds_of(passes))
    return min(taken)


def flops_of(model: nn.Module, x: Tensor) -> int:
    """Return the floating-point operations of a step, as PyTorch counts them."""
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    return int(counter.get_total_flops())


def measure_workload(name: str, turns: int, data_dir: str, scratch: Path) -> dict[str, Any]:
    """Measure the three ways in turns; the result has seconds and FLOP per step."""
    workload = WORKLOADS[name]
    write_shards(scratch, workload, 20, data_dir)
    trainer = Trainer(job_of(workload, 20, 2, str(scratch)))
    x, _ = trainer.shards.client(0)
    x = x[: workload.batch_size]
    flops, layers = flops_of(trainer.model, x), layers_of(trainer.model, x)
    clients = Clients(name, 20, 2, data_dir)
    oracle, _ = automatic(clients.virtual.model, some_examples(clients.virtual.data))
    taken: dict[str, list[float]] = {"plain": [], "fedtide": [], "layers": []}
    for _ in range(turns + 1):
        start = time.process_time()
        trainer.train(0)
        taken["plain"].append((time.process_time() - start) / workload.local_steps)
        taken["fedtide"].append(clients.milliseconds(oracle, 1) / 1000 / workload.local_steps)
        alone = sum(layer_seconds(layer, inputs, i == 0) for i, (layer, inputs) in enumerate(layers))
        taken["layers"].append(alone)
    seconds = {way: statistics.median(times[1:]) for way, times in taken.items()}
    return {"workload": name, "flop_per_step": flops, "oracle": oracle, **seconds, "turns": taken}


def describe(results: list[dict[str, Any]], peak: float) -> str:
    """Return the table."""
    header = ["workload", "MFLOP per step", "plain", "fedtide", "layers alone", "fedtide / plain", "limit"]
    rows = []
    for r in results:
        speeds = [r["flop_per_step"] / r[way] / 1e9 for way in ("plain", "fedtide", "layers")]
        ratios = [r["plain"] / r["fedtide"], r["plain"] / r["layers"]]
        rows.append([f"{r['workload']} ({r['oracle']})", r["flop_per_step"] / 1e6, *speeds, *ratios])
    return f"GFLOP/s of one thread; a product of matrices: {peak / 1e9:.0f}.\n\n{table(header, rows)}"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--workloads", default="lenet,cnn,tutorial,resnet18", help="which, of the benchmarks'"
    )
    parser.add_argument("--turns", type=int, default=10, help="how often each way is timed (default: 10)")
    parser.add_argument("--data-dir", default="data", help="directory of MNIST, downloaded if missing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the numbers")
    arguments = parser.parse_args()
    names = named_workloads(parser, arguments.workloads, WORKLOADS)
    about, data_dir = machine(), str(Path(arguments.data_dir).resolve())
    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    with tempfile.TemporaryDirectory(prefix="fedtide-limits-") as scratch:
        for name in names:  # from where the last one has found or put them
            data_dir, _ = ensure_data(WORKLOADS[name], data_dir, scratch)
        results = [measure_workload(name, arguments.turns, data_dir, Path(scratch)) for name in names]
    peak = matrix_product()
    print(f"{describe(results, peak)}\n\n{machine_line(about)}")
    write_json(arguments.json, machine=about, matrix_product=peak, results=results)


if __name__ == "__main__":
    main()
