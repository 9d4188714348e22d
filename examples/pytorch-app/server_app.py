"""A Flower server; one line names the method."""

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import ServerApp
from task import load_data, make_model, test

import fedtide

app = ServerApp()


def evaluate(server_round, arrays):
    """Test the model at the server."""
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, load_data())
    return MetricRecord({"loss": loss, "accuracy": accuracy})


@app.main()
def main(grid, context):
    """Train with the method that the run config names."""
    config = context.run_config
    strategy = fedtide.strategy(config["strategy"], fraction_train=config["fraction-train"])
    strategy.start(
        grid,
        ArrayRecord(make_model().state_dict()),
        config["num-rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        evaluate_fn=evaluate,
    )
