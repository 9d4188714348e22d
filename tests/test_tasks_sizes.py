import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide.tasks import SIZES
from fedtide.tasks.sizes import apportion


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, *b"sizes"])


def test_apportion_rounds_by_largest_remainder():
    # Quotas 1.5, 3.75, 4.75: the two examples left go to the two largest remainders.
    assert apportion(10, np.array([6.0, 15.0, 19.0])).tolist() == [1, 4, 5]


def test_apportion_gives_each_at_least_one():
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
    np.testing.assert_array_equal(sizes, SIZES[name](num_clients, num_clients + extra, rng(seed)))


def test_equal_differs_by_at_most_one():
    assert np.ptp(SIZES["equal"](7, 60, rng())) == 1


def test_pareto_has_the_tail_of_its_index():
    # P(w > t) = t^-index: 2^-2 of the sizes exceed twice the smallest one, 4^-2 four times.
    sizes = SIZES["pareto"](20_000, 200_000_000, rng(), index=2.0)
    assert np.mean(sizes > 2 * sizes.min()) == pytest.approx(1 / 4, abs=0.01)
    assert np.mean(sizes > 4 * sizes.min()) == pytest.approx(1 / 16, abs=0.01)


def test_pareto_survives_extreme_indices():
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


def test_normal_refuses_sizes_beyond_the_data_set():
    with pytest.raises(ValueError, match=r"num-clients=100 .* need 6000 examples but there are 5000"):
        SIZES["normal"](100, 5000, rng(), mean=60.0, sd=0.0)


def test_more_clients_than_examples_are_refused():
    for sizes in SIZES.values():
        with pytest.raises(ValueError, match="11 clients for 10 examples"):
            sizes(11, 10, rng())
