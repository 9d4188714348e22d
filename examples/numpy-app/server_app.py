"""A Flower server; one line names the method."""

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import ServerApp
from task import gradients, initial_weights, load_data

import fedtide

app = ServerApp()


def evaluate(server_round, arrays):
    """Test the model at the server."""
    _, accuracy = gradients({key: array.numpy() for key, array in arrays.items()}, *load_data())
    return MetricRecord({"accuracy": accuracy})


@app.main()
def main(grid, context):
    """Train with the method that the run config names."""
    config = context.run_config
    strategy = fedtide.strategy(
        config["strategy"], fraction_train=config["fraction-train"], fraction_evaluate=0.0
    )
    strategy.start(
        grid,
        ArrayRecord({key: Array(array) for key, array in initial_weights().items()}),
        config["num-rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        evaluate_fn=evaluate,
    )
