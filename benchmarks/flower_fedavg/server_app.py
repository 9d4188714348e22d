"""Flower's own FedAvg as its quickstarts have it: logistic regression on digits, all nodes in each round."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    nodes, rounds = int(context.run_config["num-clients"]), int(context.run_config["num-rounds"])
    weights = [np.zeros((10, 64), np.float32), np.zeros(10, np.float32)]
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    strategy.start(grid, ArrayRecord(weights), num_rounds=rounds)
