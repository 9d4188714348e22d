import pickle
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtide.tasks import PARTITIONS, SIZES, TASKS, PartitionedData
from fedtide.tasks.data import holdout_counts

EVERYONE = partial(np.arange, dtype=np.intp)
IID = PARTITIONS["iid"]
EQUAL = SIZES["equal"]


def numbered(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples whose inputs are their positions."""
    return np.arange(n, dtype=np.float32).reshape(n, 1, 1, 1), np.arange(n) % 3


def divide(parts, holdout=0.0, seed=0):
    n = sum(map(len, parts))
    return PartitionedData.divide(numbered(n), numbered(2), 3, [np.array(p) for p in parts], holdout, seed)


def test_a_client_has_its_part_of_the_data_set():
    data = divide([[4, 2], [0, 5, 3], [1]])
    assert data.sizes.tolist() == [2, 3, 1]
    assert data.input_shape == (1, 1, 1)
    x, y = data.examples(1, np.array([2, 0]))
    assert x.ravel().tolist() == [3, 0]
    assert y.tolist() == [0, 0]
    assert data.train_set(np.array([2, 0]))[0].ravel().tolist() == [1, 4, 2]
    assert len(data.train_set(np.array([], dtype=np.intp))[1]) == 0
    with pytest.raises(IndexError):
        data.examples(0, np.array([2]))


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any),
    st.sampled_from([0.0, 0.1, 0.29, 0.5, 0.99]),
    st.integers(0, 5),
)
def test_holdout_and_training_examples_make_up_each_part(counts, share, seed):
    order = np.random.default_rng(seed).permutation(sum(counts))
    parts = np.split(order, np.cumsum(counts)[:-1])
    data = divide(parts, share, seed)
    for k, part in enumerate(parts):
        train = data.train_set(np.array([k]))[0].ravel().tolist()
        held = data.holdout(np.array([k]))[0].ravel().tolist() if share else []
        assert sorted(train + held) == sorted(part.tolist())
        assert len(train) == data.sizes[k] >= min(len(part), 1)
        assert len(held) >= (share > 0 and len(part) >= 2)


def test_holdout_counts():
    totals = np.array([0, 1, 2, 10, 100])
    assert holdout_counts(totals, 0.29).tolist() == [0, 0, 1, 2, 29]
    assert holdout_counts(totals, 0.0).tolist() == [0, 0, 0, 0, 0]
    for share in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"share must be in \[0, 1\)"):
            holdout_counts(totals, share)
    parts = [np.arange(50), np.arange(50, 100)]
    held = [divide(parts, 0.2, seed).holdout(EVERYONE(2))[0].ravel().tolist() for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]


@pytest.mark.parametrize("task", ["digits", "synthetic"])
def test_examples_are_fresh_even_where_the_data_are_read_only(task):
    source = TASKS[task]()
    data = source.federate(10, IID if source.default_partition else None, EQUAL, 0.0, 0)
    frozen = []
    buffers = []
    pickled = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert len(pickled) < 5000
    data = pickle.loads(pickled, buffers=[bytes(b.raw()) for b in buffers])
    for _ in range(2):
        x, y = data.examples(3, np.array([5, 1]))
        assert x.flags.c_contiguous
        assert x.flags.writeable
        assert y.flags.writeable
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
        assert x.shape == (2, *data.input_shape)
        frozen.append(x.copy())
        x[:] = -1
    np.testing.assert_array_equal(*frozen)
    assert not data.test[0].flags.writeable
    with pytest.raises(ValueError, match="set a holdout share above 0"):
        data.holdout(EVERYONE(1))


def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from its file, and by it where that lies elsewhere."""
    module = import_module("fedtide.tasks.images")
    here = module.load_digits()
    monkeypatch.setattr(module, "DIGITS", Path("nowhere"))
    for found, expected in zip(here, module.load_digits(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_digits_are_split_by_class_and_not_by_the_seed():
    one, two = (TASKS["digits"]().federate(10, IID, EQUAL, 0.0, seed) for seed in (0, 1))
    x, y = one.train_set(EVERYONE(10))
    assert one.input_shape == (1, 8, 8)
    assert (x.min(), x.max()) == (0, 1)
    assert len(y) + len(one.test[1]) == 1797
    assert np.bincount(one.test[1]) / (np.bincount(y) + np.bincount(one.test[1])) == pytest.approx(
        0.2, abs=3e-3
    )
    np.testing.assert_array_equal(one.test[0], two.test[0])
    assert not np.array_equal(one.examples(0, EVERYONE(9))[0], two.examples(0, EVERYONE(9))[0])


def test_a_data_set_needs_a_partition():
    with pytest.raises(ValueError, match=r"task digits: .* name a partition such as dirichlet"):
        TASKS["digits"]().federate(10, None, EQUAL, 0.0, 0)


def inputs(client: int, num_clients: int = 3, seed: int = 7, count: int = 100, **options: Any) -> np.ndarray:
    """A synthetic client's first inputs."""
    data = TASKS["synthetic"](**options).federate(num_clients, None, EQUAL, 0.0, seed)
    return data.examples(client, EVERYONE(count))[0]


def test_a_synthetic_client_is_a_function_of_seed_and_number():
    np.testing.assert_array_equal(inputs(2), inputs(2, num_clients=2000))
    assert not np.array_equal(inputs(2), inputs(2, seed=8))
    assert not np.array_equal(inputs(2), inputs(1))
    assert not np.array_equal(inputs(0, iid=True), inputs(1, iid=True))
    one, two = (TASKS["synthetic"](iid=True).client_model(k, seed=0) for k in (0, 1))
    np.testing.assert_array_equal(one.W, two.W)
    np.testing.assert_array_equal(one.v, np.zeros(60))


def test_a_million_synthetic_clients_cost_only_their_sizes():
    data = TASKS["synthetic"]().federate(10**6, None, EQUAL, 0.1, 0)
    assert data.sizes.shape == (10**6,)
    assert len(data.test[1]) == 20 * 1000
    buffers = []
    pickled = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert len(pickled) + sum(b.raw().nbytes for b in buffers) < 25e6
    assert data.examples(999_999, EVERYONE(90))[0].shape == (90, 60)


def test_synthetic_examples_are_training_held_out_or_test_examples():
    whole, split = (TASKS["synthetic"]().federate(5, None, EQUAL, h, 1) for h in (0.0, 0.25))
    client = np.array([3])
    assert split.sizes[3] == 75
    joined = np.concatenate([split.train_set(client)[0], split.holdout(client)[0]])
    np.testing.assert_array_equal(joined, whole.train_set(client)[0])
    with pytest.raises(IndexError):
        split.examples(3, np.array([75]))
    data = TASKS["synthetic"](mean_size=2000).federate(1000, None, EQUAL, 0.0, 0)
    assert len(data.test[1]) == 100_000  # at most
    assert not np.array_equal(data.examples(0, EVERYONE(100))[0], data.test[0][:100])


def test_alpha_and_beta_are_variances():
    family = TASKS["synthetic"](alpha=4.0, beta=9.0)
    models = [family.client_model(k, seed=0) for k in range(2000)]
    u = np.array([model.W.mean() for model in models])
    B = np.array([model.v.mean() for model in models])
    # The mean of 600 (60) entries around u (B) adds 1/600 (1/60).
    assert u.var() == pytest.approx(4 + 1 / 600, rel=0.1)
    assert B.var() == pytest.approx(9 + 1 / 60, rel=0.1)
    assert np.mean([model.W.var() for model in models]) == pytest.approx(1, rel=0.02)
    assert np.corrcoef(u, [model.b.mean() for model in models])[0, 1] > 0.95
    assert abs(np.corrcoef(u, B)[0, 1]) < 0.1


def test_synthetic_inputs_and_labels_follow_the_client_model():
    task = TASKS["synthetic"](mean_size=20_000)
    data = task.federate(2, None, EQUAL, 0.0, 0)
    x, y = data.examples(1, EVERYONE(20_000))
    model = task.client_model(1, seed=0)
    np.testing.assert_allclose(x.mean(axis=0), model.v, atol=0.04)
    np.testing.assert_allclose(x.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.06)
    assert np.mean(y == np.argmax(x @ model.W + model.b, axis=1)) > 0.999
