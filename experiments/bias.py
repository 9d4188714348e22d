"""Whose updates count, and whose data are predicted well, under participation that depends on the labels.

    python experiments/bias.py --write experiments/bias.png

Each dot of the upper row is a client: its share of everything that was applied to the weights, as a multiple
of its share of the data, over its rate of participation (fedtide/engine/update_shares.py). The lower
row has the accuracy on the clients' own held-out examples, mean of twenty clients with neighbouring rates and
of three seeds. Settings: those of newer-methods-digits.toml, with independent rounds and the constant rate.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from matplotlib import pyplot
from numpy.typing import NDArray

from clients.simulated.evaluation import part_scores
from fedtide.config import Settings
from fedtide.config.grid import cells
from fedtide.engine.run import simulate
from fedtide.engine.update_shares import update_shares
from fedtide.plan import Plan

METHODS = ("fedavg", "fedau", "f3ast", "mifa", "fedvarp", "mimic", "fedawe")
SEEDS = (0, 1, 2)
GROUPS = 5


def settings_of(strategy: str, seed: int) -> Settings:
    """Return the settings of a run."""
    file = Path(__file__).with_name("newer-methods-digits.toml")
    found = cells(tomllib.loads(file.read_text(encoding="utf-8")), str(file))
    first = next(c.settings for c in found if c.settings.trace.endswith("bernoulli"))
    return replace(first, lr_schedule="constant", strategy=strategy, seed=seed, evaluate_clients=500)


def accuracies(settings: Settings) -> NDArray[np.float64]:
    """Train; return the accuracy on each client's own held-out examples, NaN for a client without."""
    experiment, *_ = simulate(Plan.of(settings))
    holdouts = [experiment.data.holdout(np.array([client])) for client in range(settings.num_clients)]
    return part_scores(experiment.evaluator.model, holdouts).means


def main() -> None:
    """Compute both rows, print a table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE.png", help="where to draw the picture")
    arguments = parser.parse_args()
    figure, axes = pyplot.subplots(
        2, len(METHODS), figsize=(2.1 * len(METHODS), 4.2), sharex=True, sharey="row"
    )
    columns = (
        "rarest half: multiple of its share of the data | least | most | accuracy of the rarest fifth, %"
    )
    print(f"| strategy | {columns} |\n|---|---|---|---|---|")
    for method, (above, below) in zip(METHODS, axes.T, strict=True):
        ratios, rates, scores = [], [], []
        for seed in SEEDS:
            settings = settings_of(method, seed)
            plan = Plan.of(settings)
            trace, sizes = plan.trace, plan.data.sizes
            rates.append(trace.participation(1))
            ratios.append(update_shares(plan, sizes, trace) * sizes.sum() / sizes)
            with tempfile.TemporaryDirectory() as folder:
                scores.append(accuracies(replace(settings, run_dir=folder)))
        order = [np.argsort(p, kind="stable") for p in rates]
        ratio, rate, score = (
            np.mean([values[by] for values, by in zip(column, order, strict=True)], axis=0)
            for column in (ratios, rates, [np.nan_to_num(s, nan=float(np.nanmean(s))) for s in scores])
        )
        grouped = 100 * score.reshape(GROUPS, -1).mean(axis=1)
        numbers = (ratio[: len(ratio) // 2].mean(), ratio.min(), ratio.max())
        print(f"| {method} | {' | '.join(f'{x:.2f}' for x in numbers)} | {grouped[0]:.0f} |")
        above.scatter(
            np.concatenate(rates), np.concatenate(ratios), s=4, color="tab:blue", alpha=0.5, linewidths=0
        )
        above.axhline(1, color="black", linewidth=0.8)
        above.set_title(method, fontsize=9)
        below.plot(
            rate.reshape(GROUPS, -1).mean(axis=1), grouped, marker="o", markersize=3, color="tab:orange"
        )
        below.set_xscale("log")
        below.set_xticks([0.02, 0.1, 0.5], ["0.02", "0.1", "0.5"])
        below.minorticks_off()
    above.set_yscale("log")
    above.set_yticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
    above.minorticks_off()
    axes[0, 0].set_ylabel("share of the updates /\nshare of the data")
    axes[1, 0].set_ylabel("accuracy on own\nexamples, %")
    figure.supxlabel("rate of participation", fontsize=10)
    figure.tight_layout()
    if arguments.write:
        figure.savefig(arguments.write, dpi=110)


if __name__ == "__main__":
    main()
