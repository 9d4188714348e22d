"""Groups of clients that take turns."""

import numpy as np

from traces.patterns.periodic import Periodic


def test_five_groups_take_turns():
    trace = Periodic(250, 3)  # 5 groups, 20 rounds
    assert np.bincount(trace.group).tolist() == [50] * 5
    seen = np.array([trace.round(t).online for t in range(1, 101)])
    for members in (trace.group == g for g in range(5)):
        together = seen[:, members]
        assert (together == together[:, :1]).all()
        assert (np.convolve(together[:, 0], np.ones(20), "valid") == 4).all()  # in any 20 rounds in a row
    assert (seen.sum(axis=1) == 50).all()
    turns = trace.group[np.argmax(seen, axis=1)]
    changes = np.flatnonzero(np.diff(turns)) + 1
    assert changes[0] == 4 - trace.offset
    assert np.array_equal(np.diff(changes), np.full(len(changes) - 1, 4))
    assert turns[changes][:6].tolist() == [1, 2, 3, 4, 0, 1]
    assert turns[0] == 0


def test_clients_are_divided_by_index():
    assert Periodic(7, 0, groups=3, period=3).group.tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_offsets_are_uniform():
    offsets = [Periodic(5, seed, groups=2, period=8).offset for seed in range(2000)]
    count = np.bincount(offsets)
    assert len(count) == 4
    assert np.abs(count - 500).max() < 5 * np.sqrt(2000 * 3 / 16)


def test_one_group_is_always_online():
    assert Periodic(5, 0, groups=1, period=3).round(7).online.all()
