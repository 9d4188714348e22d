"""Memory shared with workers: rows in use are not overwritten, and what killed processes leave is removed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedtide.engine.transports.ray.leftovers import (
    CELL,
    ROWS,
    SESSION_LOCK,
    end_session,
    lock_session,
    remove_leftovers,
)
from fedtide.engine.transports.ray.shared_rows import AttachedRows, SharedRows

ROOT = Path(__file__).parents[1]
FLOAT = np.dtype(np.float32)


@pytest.fixture
def shared() -> Iterator[SharedRows]:
    made = SharedRows()
    yield made
    made.close()


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


def test_a_worker_writes_to_its_part_and_switches_to_new_memory(shared: SharedRows) -> None:
    worker = AttachedRows()
    for size in (3, 3000, 300_000):
        lease, rows = shared.lend(6, size, FLOAT)
        rows[:] = 0
        part = worker.open(lease.part(1, 3).part(1, 2))
        assert (part.shape, part.dtype) == ((2, size), FLOAT)
        part[:] = [[1], [2]]
        np.testing.assert_array_equal(rows[:, -1], [0, 0, 1, 2, 0, 0])
        del rows, part
    assert len(worker._maps) == 1
    lease, rows = shared.lend(2, 2, FLOAT)
    rows[:] = 3
    shared.close()
    assert not os.path.exists(lease.path)
    np.testing.assert_array_equal(rows, 3)  # views outlive the files


def test_memory_that_a_failed_worker_may_write_to_is_not_lent_again(shared: SharedRows) -> None:
    lease, rows = shared.lend(4, 3, FLOAT)
    shared.retire()
    opened = AttachedRows().open(lease)  # others may do so until the next loan
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


USER = """
import sys, numpy as np
from pathlib import Path
from fedtide.engine.transports.ray.leftovers import CELL, locked_folder, lock_session
from fedtide.engine.transports.ray.shared_rows import SharedRows

lease, rows = SharedRows().lend(2, 2, np.dtype(np.float32))
session = Path(sys.argv[1]) / "session_1"
session.mkdir()
lock_session(session)
with locked_folder(CELL) as folder:
    Path(folder, "run").mkdir()
    print(lease.path, folder, session, flush=True)
    sys.stdin.read()
"""


def make_old(path: Path) -> None:
    before = time.time() - 3600
    os.utime(path, (before, before))


def test_only_what_killed_processes_have_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, sessions = tmp_path / "tmp", tmp_path / "ray"
    temporary.mkdir()
    for name in ("session_foreign", "session_2", "session_3"):  # of others, ended in order, of this process
        (sessions / name).mkdir(parents=True)
        make_old(sessions / name)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    lock_session(sessions / "session_3")
    make_old(sessions / "session_3" / SESSION_LOCK)
    call, env = [sys.executable, "-c", USER, str(sessions)], {**os.environ, "TMPDIR": str(temporary)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(call, cwd=ROOT, env=env, text=True, **pipes) as process:
        rows, cell, session = map(Path, process.stdout.readline().split())
        made = [rows, cell, session / SESSION_LOCK]
        assert (rows.name.startswith(ROWS), cell.name.startswith(CELL)) == (True, True)
        for path in made:
            make_old(path)
        remove_leftovers(sessions)
        assert all(path.exists() for path in made)  # their process is running
        process.kill()
        process.wait()
    end_session(sessions / "session_2")
    make_old(sessions / "session_2" / SESSION_LOCK)
    memory, *removed = remove_leftovers(sessions)
    assert memory.startswith("files of shared memory: ")  # other runs may have left some as well
    assert [line.partition(",")[0] for line in removed] == [
        "folders of a comparison: 1",
        "session folders of Ray: 1",
    ]
    assert not any(path.exists() for path in (rows, cell, session))
    assert {path.name for path in sessions.iterdir()} == {"session_foreign", "session_3"}
    assert remove_leftovers(sessions) == []
