"""Ternary vectors: server and client make the same of a vector, and what is packed can be unpacked."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import clients.rules.ternary
import fedtide.ground.contract.ternary

TIES = st.sampled_from(fedtide.ground.contract.ternary.TIES)
SPARSITY = st.floats(0.01, 1)
VECTORS = hnp.arrays(  # with many equal entries and zeros
    np.float64,
    st.integers(1, 40),
    elements=st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0]) | st.floats(-9, 9, width=32),
)


@given(VECTORS, SPARSITY, TIES)
def test_ternary_of_server_and_client_is_the_same(vector: np.ndarray, sparsity: float, ties: str) -> None:
    k = fedtide.ground.contract.ternary.kept(len(vector), sparsity)
    got = fedtide.ground.contract.ternary.ternary(vector, k, ties)
    two = torch.from_numpy(np.stack([vector, vector[::-1]]))  # any leading axes
    np.testing.assert_allclose(clients.rules.ternary.ternary(two, k, ties)[0].numpy(), got, rtol=1e-12)
    assert len(np.unique(np.abs(got[got != 0]))) <= 1
    if ties == "exact":
        assert np.count_nonzero(got) == min(k, np.count_nonzero(vector))
        np.testing.assert_allclose(
            np.abs(got).sum() * k, np.count_nonzero(got) * np.sort(np.abs(vector))[-k:].sum()
        )


@given(VECTORS, SPARSITY, TIES)
def test_packed_is_unpacked(vector: np.ndarray, sparsity: float, ties: str) -> None:
    k = fedtide.ground.contract.ternary.kept(len(vector), sparsity)
    sent = clients.rules.ternary.ternary(torch.from_numpy(vector), k, ties)
    packed = clients.rules.ternary.pack(sent).numpy()
    assert packed.dtype == np.uint8
    assert len(packed) == 8 + -(-len(vector) // 8) + -(-np.count_nonzero(sent.numpy()) // 8)
    np.testing.assert_array_equal(fedtide.ground.contract.ternary.unpack(packed, len(vector)), sent.numpy())


def test_share_of_entries() -> None:
    shares = (0.29, 0.3, 0.295, 1.0, 0.001)
    assert [fedtide.ground.contract.ternary.kept(100, q) for q in shares] == [29, 30, 29, 100, 1]
    assert [fedtide.ground.contract.ternary.kept(100, q, "ceil") for q in shares] == [29, 30, 30, 100, 1]
