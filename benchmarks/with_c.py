"""A program in C (with_c.c), compiled for this machine: client after client in cache, clients on all cores.

It knows logistic regression and the 2NN: what is gained by hand where nothing else has to be possible.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import Clock, Job
from benchmarks.workloads import Shards, linear_layers

LANES = 16  # numbers of a vector
FLAGS = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
# -ffast-math would change how the process that loads the program rounds tiny numbers.
FLAGS += [
    "-fassociative-math",
    "-ffinite-math-only",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-fno-math-errno",
]


class Loop:
    """Rounds of federated averaging."""

    def __init__(self, job: Job) -> None:
        layers, shards = linear_layers(job), Shards(job["shards"])
        self.job, self.ends, self.y = job, torch.tensor(shards.ends), shards.y.int()
        self.x = rows(shards.x.flatten(1), torch.ones(len(shards.x)))
        tables = [rows(layer.weight.data, layer.bias.data) for layer in layers]
        self.vector = torch.cat([table.flatten() for table in tables])
        self.weights: list[Tensor] = []  # of each layer the weights, then the biases: views of the vector
        pieces = self.vector.split([table.numel() for table in tables])
        for piece, layer in zip(pieces, layers, strict=True):
            table = piece.view(layer.out_features, -1)
            self.weights += [table[:, : layer.in_features], table[:, layer.in_features]]
        sizes = [layers[0].in_features, *(layer.out_features for layer in layers)]
        self.average = compiled(job, sizes, len(self.vector)).average

    def round(self) -> None:
        """Train K random clients and average their weights."""
        count = self.job["clients_per_round"]
        chosen = torch.randperm(self.job["num_clients"])[:count].int()
        seed, rate = int(torch.randint(2**31, ())), ctypes.c_float(self.job["learning_rate"])
        tensors = self.vector, self.x, self.y, self.ends, chosen
        self.average(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), count, rate, seed)


def rows(values: Tensor, last: Tensor) -> Tensor:
    """Return rows with a last number, filled up with zeros to whole vectors."""
    return functional.pad(torch.column_stack([values, last]), (0, LANES - 1 - values.shape[1] % LANES))


def compiled(job: Job, sizes: list[int], count: int) -> ctypes.CDLL:
    """Compile the program for layers of these sizes, which have `count` numbers."""
    source, library = Path(__file__).with_suffix(".c"), Path(job["scratch"], "with_c.so")
    numbers = {
        "SIZES": str(sizes)[1:-1],
        "WEIGHTS": count,
        "BATCH": job["batch_size"],
        "STEPS": job["local_steps"],
    }
    defined = [f"-D{name}={value}" for name, value in numbers.items()]
    subprocess.run(["cc", *FLAGS, *defined, str(source), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


def run(job: Job, clock: Clock) -> None:
    """Average the local weights of K random clients, round after round."""
    loop = Loop(job)
    while not clock.enough:
        loop.round()
        clock.tick()
    if not loop.vector.isfinite().all():
        raise RuntimeError("the weights are not finite")
