"""The client: five steps of SGD on its part of scikit-learn's digits, in NumPy."""

from functools import lru_cache

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from sklearn.datasets import load_digits

STEPS, BATCH, RATE = 5, 10, 0.3
app = ClientApp()


@lru_cache(maxsize=1)
def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the inputs, shape (1797, 64), and the classes, shape (1797,)."""
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y.astype(np.int64)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the weights after the local steps."""
    weight, bias = message.content.array_records["arrays"].to_numpy_ndarrays(keep_input=False)
    part, parts = int(context.node_config["partition-id"]), int(context.run_config["num-clients"])
    x, y = (values[part::parts] for values in digits())
    rng = np.random.default_rng(part)
    for _ in range(STEPS):
        rows = rng.integers(len(y), size=min(BATCH, len(y)))
        logits = x[rows] @ weight.T + bias
        error = np.exp(logits - logits.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(rows)), y[rows]] -= 1
        weight, bias = weight - RATE * error.T @ x[rows] / len(rows), bias - RATE * error.mean(axis=0)
    content = {"arrays": ArrayRecord([weight, bias]), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=message)
