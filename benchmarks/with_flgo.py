"""FLGo's own FedAvg, one client after the other, with its simulator of clients that are always there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import flgo
import torch
from flgo.algorithm import fedavg
from flgo.benchmark.partition import IIDPartitioner
from flgo.benchmark.toolkits.cv import classification
from flgo.experiment.logger import BasicLogger
from torch.utils.data import TensorDataset

from benchmarks.measure import Clock, Job
from benchmarks.workloads import Shards, build_model


class Subset(classification.FromDatasetPipe.TaskDataset):  # type: ignore[misc]
    """FLGo's examples of a client, with what PyTorch requires of them since 2.4."""

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return [self[row] for row in rows]


class TaskGenerator(classification.FromDatasetGenerator):  # type: ignore[misc]
    """Gives clients their examples; its module is where FLGo looks for a benchmark."""

    __module__ = "shards.core"


def benchmark_of(examples: TensorDataset) -> ModuleType:
    """Return a benchmark of these examples, which FLGo imports by its name."""
    benchmark, core = ModuleType("shards"), ModuleType("shards.core")
    benchmark.__file__ = __file__
    core.TaskGenerator = lambda: TaskGenerator("shards", examples, test_data=examples)
    classification.FromDatasetPipe.TaskDataset = Subset
    core.TaskPipe = lambda path: classification.FromDatasetPipe(path, examples, test_data=examples)
    core.TaskCalculator = classification.GeneralCalculator
    sys.modules |= {"shards": benchmark, "shards.core": core}
    return benchmark


def run(job: Job, clock: Clock) -> None:
    """Average the local weights of K random clients, round after round."""
    torch.set_num_threads(1)
    shards, count = Shards(job["shards"]), job["num_clients"]
    task = str(Path(job["scratch"], "task"))
    flgo.gen_task_by_(benchmark_of(TensorDataset(shards.x, shards.y)), IIDPartitioner(count), task)

    class Rounds(BasicLogger):
        """Records the end of each round, and stops the training after enough rounds."""

        def check_if_log(self, *arguments: Any) -> bool:
            clock.tick()
            return False

        def early_stop(self) -> bool:
            return clock.enough

    options = {
        "num_rounds": 10**9,
        "proportion": (job["clients_per_round"] + 0.5) / count,  # it rounds N times this down
        "num_steps": job["local_steps"],
        "batch_size": job["batch_size"],
        "learning_rate": job["learning_rate"],
        "train_holdout": 0.0,
        "eval_interval": -1,
        "no_log_console": True,
        "no_tqdm": True,
    }
    model = flgo.convert_model(lambda: build_model(job))
    flgo.init(task, fedavg, options, model, Rounds).run()
