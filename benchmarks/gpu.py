"""Training on a GPU: the same numbers as on a CPU, and clients per second beside what is written by hand.

    python benchmarks/gpu.py --out gpu.jsonl             # at most eight minutes on one GPU
    python benchmarks/gpu.py --device cpu --quick        # all of the code without a GPU, in a minute

Needs neither Flower nor Ray, and no data: the examples are random. In this order, and each result is written
as soon as it is known:

1. Every rule, with every way to compute gradients, on small models with buffers and dropout among them: two
   rounds on the CPU and on the device, in double precision, where no ReLU or pooling is close enough to a
   kink to switch. Then in single precision whether a run has the same bits twice, and in what a client
   differs in cohorts of other sizes.
2. Clients per second and memory by size of the cohort, beside a loop of PyTorch, `torch.func.vmap` and JAX
   (`jit(vmap(scan))`), each written by hand for this work alone.
3. Steps that are recorded (CUDA graphs), and several streams.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gpu_by_hand import BY_HAND
from benchmarks.gpu_ways import Recorded, fit_in_streams
from benchmarks.measure import machine, machine_line, table
from clients.gradients.oracles import ORACLES
from clients.memory.handshake import Memory
from clients.rules import RULES
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers, ClientEnvironment, VirtualClients
from fedtide.base.contract import FitConfig
from fedtide.base.specs import bind
from fedtide.tasks import PartitionedData
from fedtide.tasks.models import MODELS, initialise

TOLERANCE = 1e-9  # of numbers in double precision, relative and absolute
STREAMS = 4
Result = dict[str, Any]

# What the server sends for each rule: numbers, and how many vectors.
SENT: dict[str, tuple[dict[str, Any], int]] = {
    "sgd": ({}, 0),
    "proximal": ({"mu": 0.3}, 0),
    "corrected": ({}, 1),
    "heavy-ball": ({"strength": 0.2}, 1),
    "last-gradient": ({}, 1),
    "apfl": ({"alpha": 0.4, "alpha-mode": "step", "gradient": "chain-rule"}, 0),
    "pfedme": ({"penalty": 2.0, "personal-rate": 0.05, "inner-steps": 2, "start": "warm"}, 0),
    "elastic": ({"lambda": 0.1, "compress": False, "kept": 20, "ties": "exact", "fisher-batches": 2}, 2),
    "corrected-upload": ({"per-step": True}, 1),
    "difference-upload": ({"normalize": True}, 0),
    "dynamic": ({"strength": 0.2}, 0),
    "kept-gradient": ({}, 0),
    "kept-last-gradient": ({}, 0),
}
ONES = {"difference-upload": 1, "kept-gradient": 2, "kept-last-gradient": 2}  # arrays of one number
FORGETFUL = ("sgd", "proximal", "corrected", "heavy-ball", "last-gradient")


class Work(NamedTuple):
    """A model and what its clients do."""

    model: str
    input_shape: tuple[int, ...]
    steps: int
    batch_size: int


SMALL = {
    "mlp": Work("mlp:hidden=8", (1, 6, 6), 3, 5),
    "lenet": Work("lenet", (1, 16, 16), 3, 5),
    "dropout": Work("cnn3x3:hidden=5,dropout=0.5", (2, 8, 8), 3, 5),
    "buffers": Work("vgg11:width=1,hidden=4,norm=batch,dropout=0.5", (2, 8, 8), 3, 5),
}
LARGE = {
    "lenet": Work("lenet", (1, 28, 28), 10, 16),
    "tutorial": Work("lenet:padding=0", (3, 32, 32), 10, 50),  # PyTorch's CIFAR-10 tutorial
    "pfl": Work("benchmarks.stand_in.pfl_cnn", (3, 32, 32), 5, 10),
    "2nn": Work("mlp", (1, 28, 28), 10, 10),
    "resnet18": Work("resnet18", (3, 32, 32), 2, 20),
    "logistic": Work("logistic", (1, 28, 28), 10, 5),
}
COHORTS = (512, 64, 8, 1)


def make_data(num_clients: int, work: Work, dtype: Any = np.float32, examples: int = 50) -> PartitionedData:
    """Return random examples of ten classes, equally many at each client."""
    rng = np.random.default_rng(0)
    count = num_clients * examples
    pool = (rng.normal(size=(count, *work.input_shape)).astype(dtype), rng.integers(10, size=count))
    return PartitionedData.divide(pool, pool, 10, np.split(np.arange(count), num_clients), 0.0, 0)


def make_clients(
    data: PartitionedData,
    work: Work,
    device: str,
    oracle: str = "auto",
    size: int = 0,
    recorded: bool = False,
    dtype: torch.dtype = torch.float32,
) -> VirtualClients:
    """Return clients on a device, `size` of them in one call; ValueError: not with this oracle."""
    part = bind("model", MODELS, work.model)

    def build() -> torch.nn.Module:
        module: torch.nn.Module = initialise(lambda: part.build(work.input_shape, 10), 0)
        return module.to(dtype)

    clients = VirtualClients(ClientEnvironment(data, build, 0, device, oracle, size))
    if recorded:
        clients.oracle = Recorded(clients.oracle)
    return clients


# The same numbers


def same_numbers(device: str) -> Iterator[Result]:
    """Compare the device with the CPU, for each model, rule, and way to compute gradients."""
    for name, work in SMALL.items():
        data = make_data(4, work, np.float64)
        ways = [
            (oracle, recorded)
            for oracle in ORACLES
            for recorded in (False, True)
            if supports(data, work, device, oracle) and not (recorded and "dropout" in work.model)
        ]
        for rule in RULES:
            expected = two_rounds(make_clients(data, work, "cpu", "loop", 1, dtype=torch.float64), rule, work)
            for oracle, recorded in ways:
                way = oracle + (", recorded" if recorded else "")
                result = {"kind": "numbers", "model": name, "rule": rule, "way": way}
                try:
                    clients = make_clients(data, work, device, oracle, 4, recorded, torch.float64)
                    yield result | compared(two_rounds(clients, rule, work), expected)
                except RuntimeError as error:  # the other ways are still to be checked
                    yield result | {"agrees": False, "error": str(error)}


def supports(data: PartitionedData, work: Work, device: str, oracle: str) -> bool:
    """Return whether a way to compute gradients can train a model."""
    try:
        make_clients(data, work, device, oracle, 1, dtype=torch.float64)
    except ValueError:
        return False
    return True


def two_rounds(clients: VirtualClients, rule: str, work: Work) -> list[NDArray[Any]]:
    """Train all clients for two rounds; return what they sent and what they remember."""
    weights = clients.model.vector.cpu().numpy().copy()
    numbers, vectors = SENT[rule]
    rng = np.random.default_rng(1)
    arrays = [rng.normal(0, 0.01, clients.model.num_trainable).astype(weights.dtype) for _ in range(vectors)]
    arrays += [np.ones(1, weights.dtype)] * ONES.get(rule, 0)
    remembers = {"last_accepted": 0} if rule not in FORGETFUL else {}
    config = FitConfig(
        round=1,
        local_steps=work.steps,
        batch_size=work.batch_size,
        learning_rate=0.05,
        rule=rule,
        own=numbers,
        **remembers,
    )
    memories: dict[int, Memory | None] = dict.fromkeys(range(len(clients.data.sizes)))
    found: list[NDArray[Any]] = []
    for number in (1, 2):
        task = replace(config, round=number, **({"last_accepted": number - 1} if remembers else {}))
        jobs = [Job(k, arrays, task, 1.0, memory) for k, memory in memories.items()]
        answers = clients.fit(Broadcast(weights), jobs)
        if answers.failures:
            raise RuntimeError(f"{rule} on {clients.model.device}: {answers.failures[0].reason}")
        found += in_order(answers)
        if answers.memories:
            memories |= zip(answers.reported["client"].tolist(), answers.memories, strict=True)
    return found


def in_order(answers: Answers) -> list[NDArray[Any]]:
    """Return all arrays that clients sent or keep, in ascending order of clients."""
    arrays: list[NDArray[Any]] = []
    for k in np.argsort(answers.reported["client"]).tolist():
        kept = answers.memories[k].pending if answers.memories else None
        extra = answers.extra[k] if answers.extra else ()
        arrays += [answers.vectors[k], *extra, *(kept or {}).values()]
    return arrays


def compared(found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> Result:
    """Return whether arrays agree, and the largest difference."""
    pairs = [*zip(found, expected, strict=True)]
    agrees = all(a.shape == b.shape and np.allclose(a, b, TOLERANCE, TOLERANCE) for a, b in pairs)
    return {"agrees": agrees, "difference": max(float(np.abs(a - b).max(initial=0)) for a, b in pairs)}


def same_bits(device: str) -> Iterator[Result]:
    """Train by SGD twice, then in cohorts of other sizes, in single precision."""
    for name, work in SMALL.items():
        data = make_data(8, work)

        def trained(size: int, data: PartitionedData = data, work: Work = work) -> NDArray[Any]:
            return np.stack(two_rounds(make_clients(data, work, device, "auto", size), "sgd", work))

        first = trained(8)
        result = {"kind": "bits", "model": name, "twice": bool(np.array_equal(first, trained(8)))}
        yield result | {f"cohort {size}": float(np.abs(first - trained(size)).max()) for size in (1, 2, 4)}


# Speed


def speeds(device: str, quick: bool, seconds: float) -> Iterator[Result]:
    """Measure what a run would take, by size of the cohort, and each program written by hand."""
    most = 4 if quick else 64 if device == "cpu" else max(COHORTS)
    for name, work in LARGE.items():
        if quick and name not in ("lenet", "logistic"):
            continue
        count = min(most, 64 if name == "resnet18" else most)
        data = make_data(count, work)
        for size in dict.fromkeys(min(size, count) for size in COHORTS):
            result = {"kind": "speed", "model": name, "way": "fedtide", "clients": count, "cohort": size}
            yield result | timed(device, count, seconds, partial(worker, data, work, device, size))
        for way, make in BY_HAND.items():
            result = {"kind": "speed", "model": name, "way": f"by hand: {way}", "clients": count}
            yield result | timed(device, count, seconds, partial(make, data, work, device))


def busier(device: str, quick: bool, seconds: float) -> Iterator[Result]:
    """Measure recorded steps and several streams, which fedtide does not use."""
    for name in ("lenet",) if quick else ("lenet", "2nn", "tutorial", "logistic"):
        work, count = LARGE[name], 8 if quick else 64
        data = make_data(count, work)
        for way, streams in (("recorded", 1), (f"{STREAMS} streams", STREAMS)):
            result = {"kind": "speed", "model": name, "way": way, "clients": count}
            make = partial(worker, data, work, device, count // streams, streams, streams == 1)
            yield result | timed(device, count, seconds, make)


def worker(
    data: PartitionedData, work: Work, device: str, size: int, streams: int = 1, recorded: bool = False
) -> Callable[[], object]:
    """Return what trains all clients once, after which the CPU has their weights."""
    workers = [make_clients(data, work, device, "auto", size, recorded) for _ in range(streams)]
    weights = workers[0].model.vector.cpu().numpy().copy()
    task = FitConfig(round=1, learning_rate=0.01, batch_size=work.batch_size, local_steps=work.steps)
    jobs = [Job(k, (), task, 1.0) for k in range(len(data.sizes))]
    return lambda: fit_in_streams(workers, Broadcast(weights), jobs)


def timed(device: str, count: int, seconds: float, make: Callable[[], Callable[[], object]]) -> Result:
    """Return the median speed of what trains so many clients, or why there is none."""
    try:
        call, rates = make(), list[float]()
        call()  # loads kernels
        began = time.perf_counter()
        while not rates or time.perf_counter() - began < seconds:
            start = time.perf_counter()
            call()
            rates.append(count / (time.perf_counter() - start))
    except (
        MemoryError,
        RuntimeError,
        ImportError,
        ValueError,
    ) as error:  # also PyTorch's, for want of memory
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"}
    result: Result = {"clients_per_second": statistics.median(rates), "trials": len(rates)}
    if device != "cpu":
        result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    return result


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement (default: 2)")
    parser.add_argument("--minutes", type=float, default=8.0, help="at most, in all (default: 8)")
    parser.add_argument("--quick", action="store_true", help="few clients, a moment each")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write each result to this file, a line each"
    )
    return parser.parse_args()


def main() -> None:
    """Check and measure; exit with 1 if a rule gives other numbers on the device."""
    arguments = parse()
    device, quick, seconds = arguments.device, arguments.quick, 0.0 if arguments.quick else arguments.seconds
    about: Result = {"kind": "machine", **machine(), "device": device}
    if device != "cpu":
        about["gpu"] = torch.cuda.get_device_name()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    parts = (same_numbers(device), same_bits(device), speeds(device, quick, seconds))
    results, until = list[Result](), time.monotonic() + 60 * arguments.minutes
    for result in (about, *(result for part in (*parts, busier(device, quick, seconds)) for result in part)):
        results.append(result)
        print(json.dumps(result), file=sys.stderr, flush=True)
        if arguments.out:
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
        if time.monotonic() > until:
            print(f"stopped after {arguments.minutes:g} minutes", file=sys.stderr)
            break
    checked = [result for result in results if result["kind"] == "numbers"]
    wrong = [result for result in checked if not result["agrees"]]
    print(f"{len(checked) - len(wrong)} of {len(checked)} agree with the CPU to {TOLERANCE:g}")
    for result in wrong:
        print(f"DIFFERS: {result}")
    speed = [result for result in results if result["kind"] == "speed"]
    rows = [
        [
            *(str(result.get(key, "")) for key in ("model", "way", "clients", "cohort")),
            result.get("error") or f"{result['clients_per_second']:,.0f}",
            f"{result['peak_gib']:.2f}" if "peak_gib" in result else "",
        ]
        for result in speed
    ]
    print("\n" + table(["model", "way", "clients", "in a cohort", "clients/s", "GiB"], rows))
    print(f"\n{about.get('gpu', 'no GPU')}; {machine_line(about)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
