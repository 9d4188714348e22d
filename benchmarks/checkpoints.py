"""What a checkpoint costs: its seconds, the bytes that it writes, and its share of a run's time.

python benchmarks/checkpoints.py --data-dir data                  # MNIST; a quarter of an hour
python benchmarks/checkpoints.py --data-dir data --num-rounds 20
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from flexfl.config import Settings
from flexfl.engine.checkpoints.folder import CheckpointFolder
from flexfl.engine.run import simulate

CASES = {  # strategy and model: about 100,000 and 1,000,000 weights
    "mimic, M = 100,000": ("mimic", "mlp:hidden=126"),
    "fedlaavg, M = 1,000,000": ("fedlaavg", "mlp:hidden=1258"),
}
COMMON: dict[str, Any] = {
    "task": "mnist",
    "num_clients": 1000,
    "clients_per_round": 100,
    "trace": "bernoulli:p=0.9",
    "engine": "inline",
    "client_gpus": 0.0,
    "evaluate_every": 20,
    "learning_rate": 0.05,
}


class Measured(CheckpointFolder):
    """Notes what each checkpoint took."""

    log: list[tuple[float, int, int]] = []  # noqa: RUF012 - seconds, bytes of the state, bytes of all vectors

    def save(self, server_round: int, state: Any) -> None:
        start = time.perf_counter()
        super().save(server_round, state)
        newest = max(self.path.glob("round-*"))
        rows = (self.path / "rows.bin").stat().st_size
        self.log.append((time.perf_counter() - start, newest.stat().st_size, rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data", help="where MNIST lies, or is downloaded to")
    parser.add_argument("--num-rounds", type=int, default=60)
    parser.add_argument("--every", type=int, default=0, help="as --checkpoint-every: 0 is by time")
    arguments = parser.parse_args()
    import flexfl.engine.checkpoints.checkpointing as module

    module.CheckpointFolder = Measured  # type: ignore[misc]
    print(
        f"{'':26}{'rounds':>7}{'run s':>8}{'saved':>7}{'first s':>9}{'median s':>10}{'state MB':>10}{'rows MB':>9}{'share':>8}"
    )
    for name, (strategy, model) in CASES.items():
        Measured.log = []
        with tempfile.TemporaryDirectory() as folder:
            settings = Settings(
                strategy=strategy,
                model=model,
                num_rounds=arguments.num_rounds,
                data_dir=arguments.data_dir,
                checkpoint_every=arguments.every,
                **COMMON,
            )
            start = time.perf_counter()
            simulate(settings, Path(folder) / "run")
            seconds = time.perf_counter() - start
        cost = np.array([entry[0] for entry in Measured.log])
        _, state, rows = Measured.log[-1]
        print(
            f"{name:26}{arguments.num_rounds:7}{seconds:8.1f}{len(cost):7}{cost[0]:9.2f}{np.median(cost):10.2f}"
            f"{state / 1e6:10.1f}{rows / 1e6:9.0f}{cost.sum() / seconds:8.1%}"
        )


if __name__ == "__main__":
    main()
