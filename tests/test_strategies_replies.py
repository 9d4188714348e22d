"""Weights as flat vectors on the wire, and sums of replies."""

import numpy as np
import pytest
from fakes import collected
from flwr.common import FitIns, Parameters, ndarrays_to_parameters, parameters_to_ndarrays, serde

from strategies import FlatParameters, Layout
from strategies.core.parameters import count_bytes, read_parameters

ARRAYS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7, np.float32), np.array([8, 9], np.float32)]
EXTRA = np.array([1, 2, 3], np.uint8)


def flat(*extra: np.ndarray) -> FlatParameters:
    layout = Layout.of(ARRAYS)
    return FlatParameters(layout.flatten(ARRAYS), layout, extra)


def test_flat_parameters_through_flowers_messages() -> None:
    """What arrives after Flower has packed and unpacked the instruction is what was sent."""
    sent = flat(EXTRA)
    got = serde.fit_ins_from_proto(serde.fit_ins_to_proto(FitIns(sent, {}))).parameters
    assert type(got) is Parameters
    for array, expected in zip(parameters_to_ndarrays(got), [*ARRAYS, EXTRA], strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == expected.dtype
        assert array.shape == expected.shape
    vector, extra = read_parameters(got, sent.layout)
    np.testing.assert_array_equal(vector, sent.vector)
    np.testing.assert_array_equal(extra[0], EXTRA)


def test_flat_parameters_in_memory_are_not_copied() -> None:
    sent = flat(EXTRA)
    vector, extra = read_parameters(sent, sent.layout)
    assert vector is sent.vector
    assert extra[0] is EXTRA


def test_flat_parameters_of_another_model_are_refused() -> None:
    other = Layout.of([np.zeros((3, 2)), np.array(0.0), np.zeros(2)])
    with pytest.raises(ValueError, match=r"\(2, 3\).* where .*\(3, 2\).* are expected"):
        read_parameters(flat(), other)


def test_count_bytes() -> None:
    """9 numbers of 4 bytes and 3 of 1; Flower's own parameters count as they are serialised."""
    assert count_bytes(flat(EXTRA)) == 39
    plain = ndarrays_to_parameters(ARRAYS)
    assert count_bytes(plain) == sum(len(tensor) for tensor in plain.tensors)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [([], "at least one array"), ([np.zeros(2), np.zeros(2, np.int64)], "array 1 of the weights is int64")],
)
def test_layout_refuses(arrays: list[np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout.of(arrays)


@pytest.mark.parametrize("size", [1, 10, 1 << 21, (1 << 22) + 1], ids=["1", "10", "2-rows", "1-row"])
def test_weighted_sum_equals_the_naive_one(size: int) -> None:
    """Also where a single row is more than what is converted to float64 at a time."""
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((3, size), dtype=np.float32)
    origin = rng.standard_normal(size, dtype=np.float32)
    replies = collected(dict(enumerate(vectors)), origin)
    coefficients = np.array([0.5, -2.0, 1e-3])
    expected = np.zeros(size)
    for coefficient, vector in zip(coefficients, vectors, strict=True):
        expected += coefficient * (vector.astype(np.float64) - origin.astype(np.float64))
    np.testing.assert_allclose(replies.weighted_sum(coefficients), expected, rtol=1e-12, atol=1e-13)
    if size == 10:
        np.testing.assert_array_equal(replies.deltas, vectors.astype(np.float64) - origin)


def test_deltas_are_against_what_each_client_started_from() -> None:
    """The same numbers as with one origin, where all origins are equal but are not one object."""
    rng = np.random.default_rng(4)
    vectors = dict(enumerate(rng.standard_normal((3, 5000), dtype=np.float32)))
    origins = dict(enumerate(rng.standard_normal((3, 5000), dtype=np.float32)))
    expected = [vectors[k].astype(np.float64) - origins[k] for k in range(3)]
    np.testing.assert_array_equal(collected(vectors, origins).deltas, expected)
    same = {k: origins[0].copy() for k in range(3)}
    np.testing.assert_array_equal(collected(vectors, same).deltas, collected(vectors, origins[0]).deltas)
