"""Ternary vectors: server and client make the same of a vector, and only what they pack is unpacked."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clients.rules import elastic as at_clients
from fedtide.base.contract.ternary import HEADER, TIES, kept, pack, ternary, unpack

MAGNITUDES = st.floats(width=64) | st.floats(1e-300, 1e300)

VECTORS = hnp.arrays(  # with many equal entries and zeros
    np.float64,
    st.integers(1, 40),
    elements=st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0]) | st.floats(-9, 9, width=32),
)


def encoded(magnitude: float, bits: bytes) -> bytes:
    return np.array([magnitude], "<f8").tobytes() + bits


@st.composite
def almost_right(draw: st.DrawFn) -> tuple[bytes, int]:
    """An encoding with a flipped bit, and its size: random bytes seldom get as far as the signs."""
    entries = draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=40))
    packed = pack(draw(st.floats(1e-300, 1e300)) * np.array(entries))
    packed[draw(st.integers(0, len(packed) - 1))] ^= 1 << draw(st.integers(0, 7))
    return packed.tobytes(), len(entries)


RANDOM = st.binary(max_size=24) | st.builds(encoded, MAGNITUDES, st.binary(max_size=16))


@settings(max_examples=200)
@given(st.tuples(RANDOM, st.integers(0, 40)) | almost_right())
@example((encoded(-0.0, b"\0"), 3))
@example((encoded(-0.0, b"\x80\x80"), 3))
def test_any_bytes_are_refused_or_pack_to_the_same(case: tuple[bytes, int]) -> None:
    packed, size = case
    try:
        vector = unpack(np.frombuffer(packed, np.uint8), size)
    except ValueError:
        return
    assert vector.shape == (size,)
    assert pack(vector).tobytes() == packed


@pytest.mark.parametrize(
    ("magnitude", "bits", "reason"),
    [
        (0.5, b"\x80\x81", "padded with zeros"),  # one positive entry, and a sign bit of no entry
        (0.5, b"\x81\x80", "padded with zeros"),  # a bit of a ninth entry
        (0.5, b"\x00", "magnitude 0.5 and 0 entries"),
        (0.0, b"\x80\x80", "magnitude 0.0 and 1 entries"),
        (-0.0, b"\x00", "magnitude -0.0"),
    ],
)
def test_every_vector_has_one_encoding(magnitude: float, bits: bytes, reason: str) -> None:
    packed = np.frombuffer(encoded(magnitude, bits), np.uint8)
    assert len(packed) == HEADER + len(bits)
    with pytest.raises(ValueError, match=reason):
        unpack(packed, 7)


@given(VECTORS, st.floats(0.01, 1), st.sampled_from(TIES))
def test_ternary_of_server_and_client_is_the_same(vector: np.ndarray, sparsity: float, ties: str) -> None:
    k = kept(len(vector), sparsity)
    got = ternary(vector, k, ties)
    two = torch.from_numpy(np.stack([vector, vector[::-1]]))  # any leading axes
    np.testing.assert_allclose(at_clients.ternary(two, k, ties)[0].numpy(), got, rtol=1e-12)
    assert len(np.unique(np.abs(got[got != 0]))) <= 1
    if ties == "exact":
        assert np.count_nonzero(got) == min(k, np.count_nonzero(vector))
        np.testing.assert_allclose(
            np.abs(got).sum() * k, np.count_nonzero(got) * np.sort(np.abs(vector))[-k:].sum()
        )


@given(VECTORS, st.floats(0.01, 1), st.sampled_from(TIES))
def test_packed_is_unpacked(vector: np.ndarray, sparsity: float, ties: str) -> None:
    k = kept(len(vector), sparsity)
    sent = at_clients.ternary(torch.from_numpy(vector), k, ties)
    packed = at_clients.pack(sent).numpy()
    assert packed.dtype == np.uint8
    assert len(packed) == 8 + -(-len(vector) // 8) + -(-np.count_nonzero(sent.numpy()) // 8)
    np.testing.assert_array_equal(unpack(packed, len(vector)), sent.numpy())


def test_share_of_entries() -> None:
    shares = (0.29, 0.3, 0.295, 1.0, 0.001)
    assert [kept(100, q) for q in shares] == [29, 30, 29, 100, 1]
    assert [kept(100, q, "ceil") for q in shares] == [29, 30, 30, 100, 1]
