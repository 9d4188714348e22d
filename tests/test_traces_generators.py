import numpy as np
import pytest

from traces import Always, Bernoulli


def test_always():
    for t in (1, 17):
        member, online, completion = Always(9, 0).round(t)
        assert member.all()
        assert online.all()
        assert (completion == 1).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
def test_bernoulli_frequency(p):
    n, rounds = 2000, 50
    online = np.array([Bernoulli(n, 5, p=p).round(t).online for t in range(1, rounds + 1)])
    sd = np.sqrt(p * (1 - p))
    assert abs(online.mean() - p) < 4 * sd / np.sqrt(n * rounds)
    # No client is favoured: their frequencies vary like those of independent draws.
    assert online.mean(axis=0).std() == pytest.approx(sd / np.sqrt(rounds), rel=0.1)


def test_bernoulli_rounds_are_independent():
    trace = Bernoulli(100_000, 5, p=0.5)
    both = trace.round(1).online & trace.round(2).online
    assert abs(both.mean() - 0.25) < 0.006


def test_bernoulli_online_means_complete():
    availability = Bernoulli(500, 5, p=0.4).round(3)
    assert np.array_equal(availability.completion, availability.online.astype(np.float32))


def test_bernoulli_extremes():
    assert not Bernoulli(500, 5, p=0).round(1).online.any()
    assert Bernoulli(500, 5, p=1).round(1).online.all()
