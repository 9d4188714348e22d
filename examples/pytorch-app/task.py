"""What server and clients share: the model, the data, and the test."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TEST_SIZE = 360


def make_model():
    """Make a small network for images of 8x8 pixels."""
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def load_data(part=None, parts=10):
    """Return batches of a client's digits, of two or three classes, or those of the test set."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    rows = order[:TEST_SIZE]
    if part is not None:
        rows = order[TEST_SIZE:]
        shards = np.array_split(rows[np.argsort(y[rows], kind="stable")], 2 * parts)
        rows = np.concatenate([shards[part], shards[part + parts]])
    images = torch.tensor(x[rows] / 16, dtype=torch.float32)
    return DataLoader(TensorDataset(images, torch.tensor(y[rows])), batch_size=16, shuffle=part is not None)


def test(model, batches):
    """Return the loss and the accuracy of a model."""
    model.eval()
    with torch.no_grad():
        found = [(model(x), y) for x, y in batches]
    outputs, labels = (torch.cat(several) for several in zip(*found, strict=True))
    loss = nn.functional.cross_entropy(outputs, labels)
    return float(loss), float((outputs.argmax(1) == labels).float().mean())
