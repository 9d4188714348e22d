"""The picture of README: who was online in each round, and the accuracy of three methods beside it.

python experiments/front.py [FILE.png]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import fedtide
from fedtide.federation import Federation

SETTINGS = {"trace": "bernoulli:p=0.3", "partition": "label", "num_rounds": 100}
METHODS = {"fedavg": "#7f7f7f", "mifa": "#1f77b4", "fedvarp": "#d95f02"}


def main(path: str = "docs/images/front.png") -> None:
    """Compare the methods, and draw."""
    table = fedtide.compare(strategy=[*METHODS], seed=0, **SETTINGS)
    trace = Federation.of(table.runs[0].cell.settings).trace
    rounds = range(1, SETTINGS["num_rounds"] + 1)
    online = np.array([trace.round(t).online for t in rounds]).T
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    left.imshow(online, aspect="auto", cmap="Blues", vmin=0, vmax=1.4, extent=(1, len(rounds), 20, 0))
    left.set(title="who is online", xlabel="round", ylabel="client", yticks=[0, 5, 10, 15, 20])
    for _, run in table.runs:
        method = run.settings.strategy
        accuracy = [record["accuracy"] for record in run.records]
        right.plot(range(len(accuracy)), accuracy, color=METHODS[method], label=method, linewidth=1.3)
    right.set(title="accuracy of the model", xlabel="round", ylim=(0, 1))
    right.legend(loc="lower right", frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
