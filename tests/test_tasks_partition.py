"""How many examples each client has, and which."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide.tasks import PARTITIONS, SIZES
from fedtide.tasks.sizes import apportion

ORDERS = ("random", "sorted")
OTHERS = [name for name in PARTITIONS if name.startswith("flwr-")]  # of Flower's library
DRAWN = [name for name in PARTITIONS if name not in ("indices", *OTHERS)]  # not read from a file
MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, *b"partition"])


# Sizes


def test_apportion_by_hand():
    """By largest remainder, and at least one each."""
    # Quotas 1.5, 3.75, 4.75: the two examples left go to the two largest remainders.
    assert apportion(10, np.array([6.0, 15.0, 19.0])).tolist() == [1, 4, 5]
    assert apportion(10, np.array([1e-12, 0.0, 1.0, 3.0])).tolist() == [1, 1, 2, 6]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=30), st.integers(0, 500))
def test_apportion_is_exact(weights, extra):
    weights[0] = 1.0
    counts = apportion(len(weights) + extra, np.array(weights))
    assert counts.sum() == len(weights) + extra
    assert counts.min() >= 1
    assert np.all(np.diff(counts[np.argsort(weights, kind="stable")]) >= -1)


@given(st.sampled_from(["equal", "pareto"]), st.integers(1, 200), st.integers(0, 1000), st.integers(0, 9))
def test_equal_and_pareto_cover_all_examples(name, num_clients, extra, seed):
    sizes = SIZES[name](num_clients, num_clients + extra, rng(seed))
    assert sizes.shape == (num_clients,)
    assert sizes.dtype == np.int64
    assert sizes.sum() == num_clients + extra
    assert sizes.min() >= 1
    assert name != "equal" or np.ptp(sizes) <= 1
    np.testing.assert_array_equal(sizes, SIZES[name](num_clients, num_clients + extra, rng(seed)))


def test_pareto_has_the_tail_of_its_index():
    # P(w > t) = t^-index: 2^-2 of the sizes exceed twice the smallest one, 4^-2 four times.
    sizes = SIZES["pareto"](20_000, 200_000_000, rng(), index=2.0)
    assert np.mean(sizes > 2 * sizes.min()) == pytest.approx(1 / 4, abs=0.01)
    assert np.mean(sizes > 4 * sizes.min()) == pytest.approx(1 / 16, abs=0.01)
    for index in (1e-6, 1e-3, 1e6):
        assert SIZES["pareto"](100, 10_000, rng(), index=index).sum() == 10_000


def test_another_seed_gives_other_sizes():
    for name in ("pareto", "normal"):
        assert not np.array_equal(SIZES[name](50, 6000, rng(0)), SIZES[name](50, 6000, rng(1)))


def test_normal_has_its_mean_and_deviation():
    sizes = SIZES["normal"](10_000, 10**6, rng(), mean=60.0, sd=10.0)
    assert sizes.mean() == pytest.approx(60, abs=0.5)
    assert sizes.std() == pytest.approx(10, abs=0.3)


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_normal_fits_a_data_set_of_its_expected_total(seed):
    # FedLaAvg on MNIST: 1000 clients with on average 60 of the 60,000 images.
    sizes = SIZES["normal"](1000, 60_000, rng(seed), mean=60.0, sd=10.0)
    assert 58_000 < sizes.sum() <= 60_000
    assert sizes.min() >= 1


def test_sizes_beyond_the_data_set_are_refused():
    with pytest.raises(ValueError, match=r"num-clients=100 .* need 6000 examples but there are 5000"):
        SIZES["normal"](100, 5000, rng(), mean=60.0, sd=0.0)
    for sizes in SIZES.values():
        with pytest.raises(ValueError, match="11 clients for 10 examples"):
            sizes(11, 10, rng())


# Partitions


def labels_of(*counts: int) -> np.ndarray:
    """Labels of a data set with these many examples of each class, shuffled."""
    return np.random.default_rng(5).permutation(np.repeat(np.arange(len(counts)), counts))


def histogram(labels: np.ndarray, part: np.ndarray) -> np.ndarray:
    return np.bincount(labels[part], minlength=labels.max() + 1)


def assert_disjoint(labels, partition):
    rows = np.concatenate(partition)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(labels)


def divided(name, labels, sizes, seed=0):
    """Return a partition of all examples, always the same, and whether another seed gives another one."""
    partition, again, other = (PARTITIONS[name](labels, sizes, rng(s)) for s in (seed, seed, seed + 1))
    assert len(partition) == len(sizes)
    assert_disjoint(labels, partition)
    assert sum(map(len, partition)) == len(labels)
    assert min(map(len, partition)) >= 1
    assert [part.tolist() for part in partition] == [part.tolist() for part in again]
    return partition, any(set(a) != set(b) for a, b in zip(partition, other, strict=True))


@settings(max_examples=60)
@given(
    st.sampled_from(DRAWN),
    st.sampled_from(["equal", "pareto"]),
    st.lists(st.integers(30, 60), min_size=2, max_size=6),
    st.integers(6, 30),
    st.integers(0, 9),
)
def test_partitions_are_disjoint_exhaustive_and_reproducible(name, distribution, counts, num_clients, seed):
    labels = labels_of(*counts)
    sizes = SIZES[distribution](num_clients, len(labels), rng(seed))
    partition, _ = divided(name, labels, sizes, seed)
    if name in ("iid", "dirichlet", "similarity"):
        assert [len(part) for part in partition] == sizes.tolist()
    else:
        held = {"classes": 2, "label": 1}[name]
        assert all(np.count_nonzero(histogram(labels, part)) == held for part in partition)


def test_another_seed_gives_another_partition():
    for name in DRAWN:
        assert divided(name, labels_of(50, 50, 50), np.full(15, 10))[1]


def test_iid_clients_have_the_class_proportions_of_the_data_set():
    labels = labels_of(2000, 6000)
    shares = [np.mean(labels[part]) for part in PARTITIONS["iid"](labels, np.full(4, 2000), rng())]
    assert shares == pytest.approx([0.75] * 4, abs=0.04)


def test_sorted_clients_hold_labels_by_their_number():
    # FedLaAvg's code: client k of N holds digit floor(10 k / N).
    labels = labels_of(*[60] * 10)
    for num_clients in (10, 25, 40):
        partition = PARTITIONS["label"](
            labels, SIZES["equal"](num_clients, 600, rng()), rng(), order="sorted"
        )
        held = [np.unique(labels[part]).tolist() for part in partition]
        assert held == [[10 * k // num_clients] for k in range(num_clients)]
        assert_disjoint(labels, partition)


@settings(max_examples=100)
@given(st.integers(2, 8), st.integers(1, 8), st.integers(1, 30), st.integers(0, 9), st.sampled_from(ORDERS))
def test_classes_has_exactly_m_and_spreads_the_shards(num_classes, m, num_clients, seed, order):
    m = min(m, num_classes)
    num_clients = max(num_clients, -(-num_classes // m))
    labels = labels_of(*[40] * num_classes)
    sizes = SIZES["equal"](num_clients, len(labels), rng(seed))
    partition = PARTITIONS["classes"](labels, sizes, rng(seed), m=m, order=order)
    table = np.array([histogram(labels, part) for part in partition])
    assert (np.count_nonzero(table, axis=1) == m).all()
    assert np.ptp(np.count_nonzero(table, axis=0)) <= 1
    assert (table.sum(axis=0) == 40).all()


def test_holders_share_a_class_in_proportion_to_their_sizes():
    labels = labels_of(40)
    partition = PARTITIONS["label"](labels, np.array([1, 9, 30]), rng())
    assert [len(part) for part in partition] == [1, 9, 30]
    # Two classes of 10 examples: holders of sizes a and b get 10 a / (a + b) and 10 b / (a + b) of a class.
    labels, sizes = labels_of(10, 10), np.array([2, 2, 8, 8])
    partition = PARTITIONS["label"](labels, sizes, rng(3))
    for c in range(2):
        holders = [k for k in range(4) if labels[partition[k][0]] == c]
        expected = 10 * sizes[holders] / sizes[holders].sum()
        assert [len(partition[k]) for k in holders] == expected.tolist()


def test_absolute_sizes_are_halved_between_two_classes():
    labels = labels_of(100, 100, 100)
    partition = PARTITIONS["classes"](labels, np.array([11, 20, 7, 1, 8, 2]), rng(), m=2)
    shards = [sorted(n for n in histogram(labels, part) if n) for part in partition]
    assert shards == [[5, 6], [10, 10], [3, 4], [1, 1], [4, 4], [1, 1]]


def test_shards_of_a_class_with_too_few_examples_are_scaled_down():
    # FedLaAvg 6.1: N / 10 clients per digit, Normal(6e4 / N, (1e4 / N)^2) sizes; digit 5 has 5,421 images.
    seed, labels = 0, np.repeat(np.arange(10), MNIST_COUNTS)
    sizes = SIZES["normal"](1000, 60_000, rng(seed), mean=60.0, sd=10.0)
    partition = PARTITIONS["label"](labels, sizes, rng(seed))
    digit = np.array([labels[part[0]] for part in partition])
    got = np.array([len(part) for part in partition])
    assert np.bincount(digit).tolist() == [100] * 10
    assert (got[digit == 1] == sizes[digit == 1]).all()
    assert got[digit == 5].sum() == 5421
    scale = 5421 / sizes[digit == 5].sum()
    assert np.abs(got[digit == 5] - scale * sizes[digit == 5]).max() <= 1


def test_similarity_mixes_a_uniform_share_with_slices_of_one_class():
    labels = labels_of(*[1000] * 10)
    parts = PARTITIONS["similarity"](labels, np.full(50, 200), rng(), share=0.05, order="sorted")
    table = np.array([histogram(labels, part) for part in parts])
    largest = table.argmax(axis=1)
    assert (np.diff(largest) >= 0).all()  # sorted by client
    assert np.bincount(largest, minlength=10).min() >= 4
    others = table.sum(axis=1) - np.sort(table, axis=1)[:, -2:].sum(axis=1)  # a slice has two classes at most
    assert others.max() <= 10  # 5 % of 200
    assert others.mean() == pytest.approx(10 * 0.8, abs=1.5)
    shuffled = PARTITIONS["similarity"](labels, np.full(50, 200), rng(), share=0.05)
    assert (np.diff([histogram(labels, part).argmax() for part in shuffled]) < 0).any()


def test_similarity_reaches_from_sorted_to_uniform():
    labels, sizes = labels_of(400, 400, 400), np.full(6, 200)
    similarity = PARTITIONS["similarity"]
    for part in similarity(labels, sizes, rng(), share=0.0):
        assert histogram(labels, part).max() == 200
    for part in similarity(labels, sizes, rng(), share=1.0):
        assert histogram(labels, part).max() < 100


def test_dirichlet_proportions_have_the_variance_of_the_distribution():
    # q_c ~ Beta(alpha p, alpha (1 - p)) has variance p (1 - p) / (alpha + 1).
    labels = labels_of(200_000, 200_000)
    parts = PARTITIONS["dirichlet"](labels, np.full(1000, 100), rng(), alpha=3.0)
    shares = np.array([np.mean(labels[part]) for part in parts])
    sampling = 0.25 * 0.75 / 100
    assert shares.var() == pytest.approx(0.25 / 4 + sampling, rel=0.15)


def test_dirichlet_gives_alpha_to_each_client_or_to_each_class():
    dirichlet = PARTITIONS["dirichlet"]
    balanced, sizes = labels_of(*[100] * 10), np.full(40, 25)
    total = dirichlet(balanced, sizes, rng(), alpha=1.0)
    for one, two in zip(total, dirichlet(balanced, sizes, rng(), alpha=0.1, each="class"), strict=True):
        np.testing.assert_array_equal(one, two)
    # q ~ Beta(alpha, alpha) has mean 1/2 and variance 1 / (8 alpha + 4), however often the classes occur.
    labels = labels_of(100_000, 300_000)
    parts = dirichlet(labels, np.full(1000, 50), rng(), alpha=2.0, each="class")
    shares = np.array([np.mean(labels[part]) for part in parts])
    assert shares.mean() == pytest.approx(0.5, abs=0.03)
    assert shares.var() == pytest.approx(1 / 20 + 0.25 / 50, rel=0.15)


@pytest.mark.parametrize("alpha", [1e-9, 1e-3, 1e9])
def test_dirichlet_is_exact_at_extreme_alphas(alpha):
    labels = labels_of(3, 100, 7, 60)
    partition = PARTITIONS["dirichlet"](labels, np.full(17, 10), rng(), alpha=alpha)
    assert_disjoint(labels, partition)
    assert {len(part) for part in partition} == {10}


@pytest.mark.parametrize(
    ("name", "options", "counts", "sizes", "says"),
    [
        ("classes", {"m": 0}, (5, 5), [5, 5], "m must be between 1 and the data's 2 classes, not 0"),
        ("classes", {"m": 3}, (5, 5), [5, 5], "m must be between 1 and the data's 2 classes, not 3"),
        ("classes", {"m": 2}, (9, 9, 9, 9, 9), [5, 5], "num-clients=2; use at least 3"),
        ("label", {}, (52, 2), [9] * 6, "3 clients must hold class 1, which has only 2 examples"),
    ],
)
def test_what_is_impossible_is_refused(name, options, counts, sizes, says):
    with pytest.raises(ValueError, match=says):
        PARTITIONS[name](labels_of(*counts), np.array(sizes), rng(), **options)


@pytest.mark.parametrize("name", OTHERS)
def test_partitions_of_flwr_datasets(name):
    pytest.importorskip("flwr_datasets")
    labels, sizes = labels_of(60, 50, 40, 30), np.full(6, 30)
    partition, drawn = divided(name, labels, sizes)
    if name in ("flwr-pathological", "flwr-shard"):
        most = {"flwr-pathological": 2, "flwr-shard": 4}[name]
        assert max(np.count_nonzero(histogram(labels, part)) for part in partition) <= most
    assert drawn == (name in ("flwr-dirichlet", "flwr-pathological", "flwr-shard"))
    with pytest.raises(ValueError, match="leave --sizes out"):
        PARTITIONS[name](labels, np.arange(6) + 27, rng())


def test_partitions_of_flwr_datasets_that_are_impossible(monkeypatch):
    pytest.importorskip("flwr_datasets")
    labels = labels_of(20, 20)
    with pytest.raises(ValueError, match="partition flwr-pathological: "):
        PARTITIONS["flwr-pathological"](labels, np.full(4, 10), rng(), classes=3)
    with pytest.raises(ValueError, match="partition flwr-shard: too few examples for 30 clients"):
        PARTITIONS["flwr-shard"](labels, SIZES["equal"](30, 40, rng()), rng())
    monkeypatch.setitem(__import__("sys").modules, "flwr_datasets", None)
    with pytest.raises(ValueError, match=r"flwr-datasets is not installed; pip install flwr-datasets"):
        PARTITIONS["flwr-linear"](labels, np.full(4, 10), rng())
