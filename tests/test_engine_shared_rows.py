"""Memory shared with workers: rows in use are not overwritten, and no file is left behind."""

import os
from pathlib import Path

import numpy as np
import pytest

from flexfl.engine.transports.ray.shared_rows import AttachedRows, SharedRows

FLOAT = np.dtype(np.float32)


@pytest.fixture
def shared() -> SharedRows:
    made = SharedRows()
    yield made
    made.close()


def test_the_driver_reads_what_a_worker_writes(shared: SharedRows) -> None:
    lease, rows = shared.lend(6, 5, FLOAT)
    rows[:] = 0
    worker = AttachedRows()
    part = worker.open(lease.part(1, 3).part(1, 2))
    assert (part.shape, part.dtype) == ((2, 5), FLOAT)
    part[:] = [[1], [2]]
    np.testing.assert_array_equal(rows[:, 0], [0, 0, 1, 2, 0, 0])


def test_memory_is_lent_again_once_all_views_are_deleted(shared: SharedRows) -> None:
    lease, rows = shared.lend(4, 3, FLOAT)
    rows[:] = 1
    kept = rows[2]  # as a strategy may keep a reply
    del rows
    other, more = shared.lend(4, 3, FLOAT)
    assert other.path != lease.path
    more[:] = 2
    np.testing.assert_array_equal(kept, 1)
    del kept
    assert shared.lend(2, 6, FLOAT)[0].path == lease.path
    del more
    larger, _ = shared.lend(400, 300, FLOAT)
    assert larger.path not in (lease.path, other.path)
    assert not os.path.exists(lease.path)  # too small for the new loan


def test_a_worker_switches_to_new_memory(shared: SharedRows) -> None:
    worker = AttachedRows()
    for size in (3, 3000, 300_000):
        lease, rows = shared.lend(2, size, FLOAT)
        worker.open(lease)[:] = size
        np.testing.assert_array_equal(rows, size)
        del rows
    assert len(worker._maps) == 1


def test_views_outlive_the_files() -> None:
    shared = SharedRows()
    lease, rows = shared.lend(2, 2, FLOAT)
    rows[:] = 3
    shared.close()
    assert not os.path.exists(lease.path)
    np.testing.assert_array_equal(rows, 3)


def test_memory_that_a_failed_worker_may_write_to_is_not_lent_again(shared: SharedRows) -> None:
    lease, rows = shared.lend(4, 3, FLOAT)
    shared.retire()
    opened = AttachedRows().open(lease)  # others may do so until the next loan
    rows[:] = 1
    del rows
    other, more = shared.lend(4, 3, FLOAT)
    more[:] = 2
    opened[:] = 3
    np.testing.assert_array_equal(more, 2)
    assert other.path != lease.path
    assert not os.path.exists(lease.path)


def test_if_shared_memory_is_full_a_temporary_file_is_used(
    shared: SharedRows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reserve = os.posix_fallocate

    def full(descriptor: int, offset: int, size: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/shm"):
            raise OSError(28, "No space left on device")
        reserve(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lease, rows = shared.lend(2, 2, FLOAT)
    assert Path(lease.path).parent == tmp_path
    AttachedRows().open(lease)[:] = 4
    np.testing.assert_array_equal(rows, 4)
