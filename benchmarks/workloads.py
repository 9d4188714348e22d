"""The work of all contenders: FedLaAvg's setting on MNIST, and larger models, also on CIFAR-10's shapes."""

from __future__ import annotations

import argparse
import gzip
import struct
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks.measure import Job
from fedtide.base.specs import bind
from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.tasks import MODELS

STAND_IN = "MNIST could neither be found nor downloaded; random images of its shapes are used instead."
CIFAR = "benchmarks.stand_in.images:channels=3,side=32,count=10000"


@dataclass(frozen=True)
class Workload:
    """The work of a client in a round."""

    model: str
    local_steps: int
    batch_size: int
    learning_rate: float = 0.01
    task: str = "mnist"


WORKLOADS = {
    "fedlaavg": Workload("logistic", 10, 5),
    "2nn": Workload("mlp", 10, 10),
    "lenet": Workload("lenet", 10, 16),
    "cnn": Workload("cnn", 5, 10),  # McMahan et al.'s
    "tutorial": Workload("lenet:padding=0", 10, 50, task=CIFAR),  # the network of PyTorch's CIFAR-10 tutorial
    "pfl": Workload("benchmarks.stand_in.pfl_cnn", 5, 10, 0.1, task=CIFAR),  # pfl-research's on CIFAR-10
    "resnet18": Workload("resnet18", 2, 20, task=CIFAR),
}


def settings_of(
    workload: Workload, num_clients: int, clients_per_round: int, data_dir: str
) -> dict[str, Any]:
    """Return fedtide's settings for a workload: clients are always online, and nothing is evaluated."""
    return {
        "strategy": "fedavg",
        "task": workload.task,
        "model": workload.model,
        "partition": "iid",
        "trace": "always",
        "num-clients": num_clients,
        "clients-per-round": clients_per_round,
        "num-rounds": 10**6,
        "evaluate-every": 10**6,
        "local-steps": workload.local_steps,
        "batch-size": workload.batch_size,
        "learning-rate": workload.learning_rate,
        "client-gpus": 0.0,
        "data-dir": data_dir,
    }


def ensure_mnist(data_dir: str, scratch: str) -> tuple[str, str]:
    """Return the directory to load MNIST from, and a note if that is a stand-in."""
    try:
        Federation.of(Settings.from_mapping({"task": "mnist", "data-dir": data_dir}, "benchmark")).data  # noqa: B018
    except ValueError as error:
        print(f"{error}; {STAND_IN}", file=sys.stderr)
        write_stand_in(Path(scratch))
        return scratch, STAND_IN
    return data_dir, ""


def ensure_data(workload: Workload, data_dir: str, scratch: str) -> tuple[str, str]:
    """Return the directory to load a workload's data from, and a note if they are a stand-in."""
    if workload.task == CIFAR:
        return data_dir, "Random images of CIFAR-10's shape."
    return ensure_mnist(data_dir, scratch)


def named_workloads(parser: argparse.ArgumentParser, text: str, known: Collection[str]) -> list[str]:
    """Return the names of workloads that the command line gives; an unknown one ends the program."""
    names = text.split(",")
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown workload {unknown[0]!r}; known: {', '.join(known)}")
    return names


def write_stand_in(directory: Path, train: int = 60_000, test: int = 10_000) -> None:
    """Write random images in MNIST's format, each class scattered around its own image."""
    rng = np.random.default_rng(0)
    raw = directory / "MNIST" / "raw"
    raw.mkdir(parents=True)
    centres = rng.integers(0, 200, (10, 28, 28), np.uint8)
    for part, count in (("train", train), ("t10k", test)):
        labels = rng.integers(0, 10, count, np.uint8)
        images = centres[labels] + rng.integers(0, 56, (count, 28, 28), np.uint8)
        for name, magic, shape, values in (
            ("images-idx3", 2051, (28, 28), images),
            ("labels-idx1", 2049, (), labels),
        ):
            content = struct.pack(f">{2 + len(shape)}i", magic, count, *shape) + values.tobytes()
            (raw / f"{part}-{name}-ubyte").write_bytes(content)
            (raw / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(b""))


def write_shards(directory: Path, workload: Workload, num_clients: int, data_dir: str) -> None:
    """Write the clients' examples, one client after the other, for contenders other than fedtide."""
    values = settings_of(workload, num_clients, num_clients, data_dir)
    data = Federation.of(Settings.from_mapping(values, "benchmark")).data
    x, y = data.train_set(np.arange(num_clients))
    for name, array in (("x", x), ("y", y), ("ends", np.cumsum(data.sizes))):
        np.save(directory / f"{name}.npy", array)


class Shards:
    """The clients' examples as tensors, mapped from the files of `write_shards`."""

    def __init__(self, directory: str) -> None:
        def read(name: str) -> NDArray[Any]:  # processes share the pages that none of them changes
            array: NDArray[Any] = np.load(Path(directory, f"{name}.npy"), mmap_mode="c")
            return array

        self.ends = read("ends").tolist()
        self.x, self.y = torch.from_numpy(read("x")), torch.from_numpy(read("y"))

    def client(self, client: int) -> tuple[Tensor, Tensor]:
        """Return all examples of a client."""
        part = slice(self.ends[client - 1] if client else 0, self.ends[client])
        return self.x[part], self.y[part]

    def one_pass(self, client: int, job: Job) -> TensorDataset:
        """Return as many examples as the local steps see, for programs whose clients do whole passes."""
        x, y = self.client(client)
        seen = job["local_steps"] * job["batch_size"]
        if seen > len(y):
            raise ValueError(f"{seen} examples of {len(y)}: this program does not begin a second pass")
        return TensorDataset(x[:seen], y[:seen])


def build_model(job: Job) -> nn.Module:
    """Build the workload's model, the same in each process."""
    torch.manual_seed(0)
    shape = np.load(Path(job["shards"], "x.npy"), mmap_mode="r").shape[1:]
    model = bind("model", MODELS, job["model"])
    module: nn.Module = model.build(shape, 10)
    return module


def linear_layers(job: Job) -> list[nn.Linear]:
    """Build the workload's model for a program that knows linear layers with ReLU, and nothing else."""
    parts = list(build_model(job).children())
    if any(not isinstance(part, nn.Flatten | nn.Linear | nn.ReLU) for part in parts):
        raise ValueError(f"this program knows linear layers with ReLU only, not {job['model']!r}")
    return [part for part in parts if isinstance(part, nn.Linear)]


def batches(num_examples: int, batch_size: int, steps: int) -> Iterator[Tensor]:
    """Yield the positions of each step's examples, in reshuffled passes over the data."""
    done = 0
    while done < steps:
        for rows in torch.split(torch.randperm(num_examples), batch_size)[: steps - done]:
            done += 1
            yield rows


class Trainer:
    """Trains clients in plain PyTorch: one thread, one model and one copy of the data per process.

    Attributes
    ----------
    model
        To train a client, load the global weights into it, call `train`, and read the local weights from it.
    """

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)
        self.shards, self.model, self.job = Shards(job["shards"]), build_model(job), job

    def train(self, client: int) -> int:
        """Do the local steps of a round; returns the client's number of examples."""
        x, y = self.shards.client(client)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.job["learning_rate"])
        for rows in batches(len(y), self.job["batch_size"], self.job["local_steps"]):
            optimizer.zero_grad()
            functional.cross_entropy(self.model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return len(y)


def job_of(workload: Workload, num_clients: int, clients_per_round: int, shards: str) -> Job:
    """Return the job of the contenders other than fedtide."""
    return {
        **asdict(workload),
        "num_clients": num_clients,
        "clients_per_round": clients_per_round,
        "shards": shards,
    }
