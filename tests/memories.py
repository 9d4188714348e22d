"""Arbitrary memories of clients, and a comparison of two."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clients.memory.handshake import Memory

ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STATES = st.dictionaries(NAMES, ARRAYS, max_size=4)
MEMORIES = st.builds(Memory, STATES, st.integers(0, 10**9), st.none() | STATES, st.integers(0, 10**9))


def assert_same_memory(got: Memory, expected: Memory) -> None:
    assert (got.tag, got.pending_tag) == (expected.tag, expected.pending_tag)
    assert_same(got.committed, expected.committed)
    assert_same(got.pending, expected.pending)


def assert_same(got: Any, expected: Any) -> None:
    assert (got is None) == (expected is None)
    for key in expected or {}:
        assert got[key].dtype == expected[key].dtype
        assert got[key].shape == expected[key].shape
        assert got[key].tobytes() == expected[key].tobytes()
    assert list(got or {}) == list(expected or {})
