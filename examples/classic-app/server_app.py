"""Flower's classic server, with a strategy of fedtide."""

import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from task import load_data, probabilities

import strategies


def evaluate(server_round, weights, config):
    """Test the model at the server."""
    _, (x, y) = load_data()
    p = probabilities(weights, x)
    loss = -np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean()
    return float(loss), {"accuracy": float((p.argmax(axis=1) == y).mean())}


def server_fn(context):
    """Make what Flower's server runs."""
    config = context.run_config
    strategy = strategies.make(
        config["strategy"],
        ndarrays_to_parameters([np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]),
        evaluate_fn=evaluate,
        clients_per_round=config["clients-per-round"],
        local_steps=config["local-steps"],
        batch_size=config["batch-size"],
        learning_rate=config["learning-rate"],
        num_rounds=config["num-rounds"],
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=config["num-rounds"]))


app = ServerApp(server_fn=server_fn)
