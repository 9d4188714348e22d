"""Memory shared with workers: rows in use are not overwritten, and what killed processes leave is removed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedtide.engine.transports.ray import shared_rows
from fedtide.engine.transports.ray.leftovers import (
    CELL,
    SESSION_LOCK,
    end_session,
    lock_session,
    remove_leftovers,
)
from fedtide.engine.transports.ray.shared_rows import AttachedRows, SharedRows

ROOT = Path(__file__).parents[1]
linux = pytest.mark.skipif(not shared_rows.POSSIBLE, reason="of Linux")


@pytest.fixture(params=[np.inf, 0], ids=["in RAM", "on the disk"])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SharedRows:
    monkeypatch.setattr(shared_rows, "replies_limit", lambda: request.param)
    return SharedRows()


@linux
def test_memory_is_lent_again_once_all_views_are_deleted(shared: SharedRows) -> None:
    lease, rows = shared.lend(4, 3)
    rows[:] = 1
    kept = rows[2]  # as a strategy may keep a reply
    del rows
    other, more = shared.lend(4, 3)
    assert other.number != lease.number
    more[:] = 2
    np.testing.assert_array_equal(kept, 1)
    del more
    assert shared.lend(2, 6)[0].number == other.number
    larger, rows = shared.lend(400, 300)
    assert larger.number != other.number
    rows[:] = 3
    shared.close()
    np.testing.assert_array_equal(rows, 3)  # views outlive the file
    np.testing.assert_array_equal(kept, 1)


@linux
def test_a_worker_writes_to_its_part_of_what_is_lent_now(shared: SharedRows) -> None:
    worker = AttachedRows()
    for size in (3, 300_000, 3000):
        lease, rows = shared.lend(6, size)
        rows[:] = 0
        part = worker.open(lease.part(1, 3).part(1, 2))
        assert (part.shape, part.dtype) == ((2, size), np.float32)
        part[:] = [[1], [2]]
        np.testing.assert_array_equal(rows[:, -1], [0, 0, 1, 2, 0, 0])
        del rows


@linux
def test_memory_that_a_failed_worker_may_write_to_is_not_lent_again(shared: SharedRows) -> None:
    lease, rows = shared.lend(4, 3)
    opened = AttachedRows().open(lease)
    shared.retire()
    del rows
    other, more = shared.lend(4, 3)
    more[:] = 2
    opened[:] = 3
    np.testing.assert_array_equal(more, 2)
    assert other.number != lease.number


USER = """
import sys
from pathlib import Path
from fedtide.engine.transports.ray.leftovers import CELL, locked_folder, lock_session

session = Path(sys.argv[1]) / "session_1"
session.mkdir()
lock_session(session)
with locked_folder(CELL) as folder:
    Path(folder, "run").mkdir()
    print(folder, session, flush=True)
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
        cell, session = map(Path, process.stdout.readline().split())
        made = [cell, session / SESSION_LOCK]
        assert cell.name.startswith(CELL)
        for path in made:
            make_old(path)
        remove_leftovers(sessions)
        assert all(path.exists() for path in made)  # their process is running
        process.kill()
        process.wait()
    end_session(sessions / "session_2")
    make_old(sessions / "session_2" / SESSION_LOCK)
    assert [line.partition(",")[0] for line in remove_leftovers(sessions)] == [
        "folders of a comparison: 1",
        "session folders of Ray: 1",
    ]
    assert not any(path.exists() for path in (cell, session))
    assert {path.name for path in sessions.iterdir()} == {"session_foreign", "session_3"}
    assert remove_leftovers(sessions) == []
