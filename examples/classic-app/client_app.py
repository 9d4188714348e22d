"""A plain Flower client in NumPy: nothing here is specific to fedtide but the metric `steps`."""

import numpy as np
from flwr.client import ClientApp, NumPyClient
from task import load_data, probabilities


class DigitsClient(NumPyClient):
    """Trains on its own images by mini-batch SGD, as far as it gets."""

    def __init__(self, number, x, y):
        self.number, self.x, self.y = number, x, y

    def fit(self, parameters, config):
        """Do local steps; the server's strategy says how many, and with which batches and rate."""
        weight, bias = (array.copy() for array in parameters)
        rng = np.random.default_rng([self.number, config["round"]])
        # A device that is interrupted: it finishes only part of its local steps, a random one here.
        steps = int(rng.integers(1, config["local-steps"], endpoint=True))
        for _ in range(steps):
            batch = rng.integers(len(self.y), size=config["batch-size"])
            error = probabilities((weight, bias), self.x[batch]) - np.eye(10, dtype=np.float32)[self.y[batch]]
            weight -= config["learning-rate"] * self.x[batch].T @ error / len(batch)
            bias -= config["learning-rate"] * error.mean(axis=0)
        return [weight, bias], len(self.y), {"steps": steps}


def client_fn(context):
    """Make the client of a node, which has one part of the images sorted by label: one or two digits."""
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    (x, y), _ = load_data()
    rows = np.array_split(np.argsort(y, kind="stable"), parts)[part]
    return DigitsClient(part, x[rows], y[rows]).to_client()


app = ClientApp(client_fn=client_fn)
