"""Bytes of ternary vectors: what is no encoding is refused. Round trips are in test_strategies_ternary.py."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedtide.ground.contract.ternary import HEADER, pack, unpack

MAGNITUDES = st.floats(width=64) | st.floats(1e-300, 1e300)


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
