"""What server and clients share: the data, and the model, softmax regression."""

import numpy as np
from sklearn.datasets import load_digits

TEST_SIZE = 360


def load_data():
    """Return the 8x8 images, shape (n, 64), and labels of the training set and of the test set."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = (x[order] / 16).astype(np.float32), y[order]
    return (x[TEST_SIZE:], y[TEST_SIZE:]), (x[:TEST_SIZE], y[:TEST_SIZE])


def probabilities(weights, x):
    """Return the probability of each class, shape (n, 10)."""
    weight, bias = weights
    logits = x @ weight + bias
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)
