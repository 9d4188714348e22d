"""A Flower client in NumPy that follows every method."""

import numpy as np
from flwr.clientapp import ClientApp
from task import gradients, load_data

import fedtide.client

app = ClientApp()


@app.train()
def train(message, context):
    """Train on the node's own digits, as far as the node gets."""
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    rng = np.random.default_rng()
    planned = context.run_config["local-steps"]
    task = fedtide.client.Task(message, context)
    for _ in range(rng.integers(1, planned, endpoint=True)):  # a node that is interrupted at random
        batch = rng.integers(len(y), size=16)
        gradient, _ = gradients(task.arrays, x[batch], y[batch])
        task.step(gradient, task.learning_rate)
    return task.reply(len(y), planned_steps=planned)
