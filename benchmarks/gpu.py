"""Training on a GPU: the same numbers as on a CPU, and clients per second of each way to compute gradients.

    python benchmarks/gpu.py --json gpu.json             # under ten minutes on one GPU
    python benchmarks/gpu.py --device cpu --quick        # the same code without a GPU

Needs neither Flower nor Ray, and no data: the examples are random. First every rule trains some clients for
two rounds on the CPU and on the device: weights and memories have to agree. Then each way to compute
gradients trains 10, 100 and 1,000 clients, all in one call and a tenth of them at a time; what does not fit
into memory says so. The same is done with recorded steps (CUDA graphs), and in several streams.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gpu_ways import Recorded, fit_in_streams
from benchmarks.measure import machine, machine_line, table, write_json
from clients.gradients.oracles import ONE_BY_ONE, ORACLES
from clients.memory.handshake import Memory
from clients.rules import RULES
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers, ClientEnvironment, VirtualClients
from fedtide.base.contract import FitConfig
from fedtide.tasks import PartitionedData
from fedtide.tasks.models import MODELS, initialise

RTOL, ATOL = 1e-4, 1e-5
STREAMS = 4

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


WORK = {
    "logistic": Work("logistic", (1, 28, 28), 10, 5),
    "2nn": Work("mlp", (1, 28, 28), 10, 10),
    "lenet": Work("lenet", (1, 28, 28), 10, 16),
    "cnn": Work("cnn", (1, 28, 28), 10, 10),
    "resnet18": Work("resnet18", (3, 32, 32), 2, 16),
}


def make_data(num_clients: int, input_shape: tuple[int, ...], examples: int = 40) -> PartitionedData:
    """Return random examples of ten classes, equally many at each client."""
    rng = np.random.default_rng(0)
    count = num_clients * examples
    pool = (rng.normal(size=(count, *input_shape)).astype(np.float32), rng.integers(10, size=count))
    return PartitionedData.divide(pool, pool, 10, np.split(np.arange(count), num_clients), 0.0, 0)


class Way(NamedTuple):
    """A way to compute gradients, whether its steps are recorded, and how many streams there are."""

    oracle: str
    recorded: bool = False
    streams: int = 1

    def __str__(self) -> str:
        streams = f", {self.streams} streams" if self.streams > 1 else ""
        return self.oracle + (", recorded" if self.recorded else "") + streams


WAYS = [
    Way(*way) for way in itertools.product(ORACLES, (False, True), (1, STREAMS)) if way[1:] != (True, STREAMS)
]


def make_clients(data: PartitionedData, work: Work, device: str, way: Way, size: int) -> VirtualClients:
    """Return clients on a device that compute gradients in this way, `size` of them in one call."""
    factory = MODELS[work.model]
    environment = ClientEnvironment(
        data, lambda: initialise(lambda: factory(work.input_shape, 10), 0), 0, device, way.oracle, size
    )
    clients = VirtualClients(environment)
    if way.recorded:
        clients.oracle = Recorded(clients.oracle)
    return clients


# The same numbers


def two_rounds(clients: VirtualClients, rule: str, work: Work) -> list[NDArray[Any]]:
    """Train all clients for two rounds; return what they sent and what they remember."""
    weights = clients.model.vector.cpu().numpy().copy()
    numbers, vectors = SENT[rule]
    rng = np.random.default_rng(1)
    arrays = [rng.normal(0, 0.01, len(weights)).astype(np.float32) for _ in range(vectors)]
    arrays += [np.ones(1, np.float32)] * ONES.get(rule, 0)
    remembers = {"last_accepted": 0} if rule not in FORGETFUL else {}
    config = FitConfig(
        round=1,
        local_steps=min(work.steps, 5),
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


def check(device: str, models: list[str]) -> list[dict[str, Any]]:
    """Compare the device with the CPU, for every rule and model and each way that can train it."""
    results = []
    for name in models:
        work = WORK[name]
        data = make_data(4, work.input_shape)
        for rule in RULES:
            expected = two_rounds(make_clients(data, work, "cpu", Way("loop"), 1), rule, work)
            for way in WAYS:
                if way.streams > 1 or not supports(name, way, device):
                    continue
                result = {"model": name, "rule": rule, "way": str(way)}
                try:
                    found = two_rounds(make_clients(data, work, device, way, 4), rule, work)
                except RuntimeError as error:  # the other ways are still to be checked
                    results.append(result | {"agrees": False, "error": str(error)})
                else:
                    results.append(result | compared(found, expected))
    return results


def compared(found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> dict[str, Any]:
    """Return whether arrays agree, and the largest difference."""
    pairs = [*zip(found, expected, strict=True)]
    agrees = all(a.shape == b.shape and np.allclose(a, b, RTOL, ATOL) for a, b in pairs)
    worst = max(float(np.abs(a - b).max(initial=0)) for a, b in pairs)
    return {"agrees": agrees, "difference": worst}


# Speed


def supports(name: str, way: Way, device: str) -> bool:
    """Return whether a way to compute gradients can train a model."""
    try:
        make_clients(make_data(2, WORK[name].input_shape), WORK[name], device, way, 1)
    except ValueError:
        return False
    return True


def clients_per_second(
    name: str, way: Way, count: int, size: int, device: str, seconds: float
) -> dict[str, Any]:
    """Train cohorts again and again; return the median speed, or why there is none."""
    work = WORK[name]
    result: dict[str, Any] = {"model": name, "way": str(way), "clients": count, "cohort": size}
    try:
        data = make_data(count, work.input_shape)
        workers = [make_clients(data, work, device, way, size) for _ in range(way.streams)]
        weights = workers[0].model.vector.cpu().numpy().copy()
        task = FitConfig(round=1, learning_rate=0.01, batch_size=work.batch_size, local_steps=work.steps)
        jobs = [Job(k, (), task, 1.0) for k in range(count)]
        rates, began = [], time.perf_counter()
        while len(rates) < 2 or time.perf_counter() - began < seconds:
            start = time.perf_counter()
            fit_in_streams(workers, Broadcast(weights), jobs)  # the CPU has the weights when it ends
            rates.append(count / (time.perf_counter() - start))
            if len(rates) == 1 and time.perf_counter() - began > 4 * seconds:
                break
    except (MemoryError, RuntimeError) as error:  # also PyTorch's, for want of memory
        return result | {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"}
    measured = rates[1:] or rates  # the first also loads kernels
    result |= {"clients_per_second": statistics.median(measured), "trials": len(measured)}
    if device != "cpu":
        result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    return result


def measure_all(device: str, models: list[str], counts: list[int], seconds: float) -> list[dict[str, Any]]:
    """Measure every way on every model; cohorts of all clients, of a tenth of them, or one by one."""
    results = []
    for name, way in itertools.product(models, WAYS):
        if supports(name, way, device):
            usual = way == Way(way.oracle)
            for count in counts if usual else counts[:2]:
                largest = -(-count // way.streams)
                sizes = [1] if way.oracle in ONE_BY_ONE else sorted({max(2, largest // 10), largest})
                for size in sizes if usual else sizes[-1:]:
                    result = clients_per_second(name, way, count, size, device, seconds)
                    results.append(result)
                    print(f"# {result}", file=sys.stderr, flush=True)
                    if "error" in result:
                        break
    return results


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default=",".join(WORK), help=f"of {','.join(WORK)} (default: all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement (default: 2)")
    parser.add_argument("--quick", action="store_true", help="ten clients, a moment each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    return parser.parse_args()


def main() -> None:
    """Check and measure; exit with 1 if a rule gives other numbers on the device."""
    arguments = parse()
    models = arguments.models.split(",")
    if unknown := sorted(set(models) - WORK.keys()):
        raise SystemExit(f"unknown model {unknown[0]!r}; known: {', '.join(WORK)}")
    about: dict[str, Any] = {**machine(), "device": arguments.device}
    if arguments.device != "cpu":
        about["gpu"] = torch.cuda.get_device_name()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    checked = check(arguments.device, [name for name in models if name != "resnet18"])
    wrong = [result for result in checked if not result["agrees"]]
    print(f"{len(checked) - len(wrong)} of {len(checked)} agree with the CPU to {RTOL:g}")
    for result in wrong:
        print(f"DIFFERS: {result}")
    counts, seconds = ([10], 0.01) if arguments.quick else ([10, 100, 1000], arguments.seconds)
    measured = measure_all(arguments.device, models, counts, seconds)
    rows = [
        [
            result["model"],
            result["way"],
            f"{result['clients']:,}",
            f"{result['cohort']:,}",
            f"{result['clients_per_second']:,.0f}" if "error" not in result else result["error"],
        ]
        for result in measured
    ]
    print("\n" + table(["model", "way", "clients", "in a cohort", "clients/s"], rows))
    print(f"\n{about.get('gpu', 'no GPU')}; {machine_line(about)}")
    write_json(arguments.json, machine=about, checked=checked, results=measured)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
