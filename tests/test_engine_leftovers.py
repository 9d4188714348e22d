"""What killed processes leave on this machine is removed; what living ones use is not."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flexfl.engine.transports.ray.leftovers import (
    CELL,
    ROWS,
    SESSION_LOCK,
    end_session,
    lock_session,
    remove_leftovers,
)

ROOT = Path(__file__).parents[1]
USER = """
import sys, numpy as np
from pathlib import Path
from flexfl.engine.transports.ray.leftovers import CELL, locked_folder, lock_session
from flexfl.engine.transports.ray.shared_rows import SharedRows

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
    sessions.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    for name in ("session_foreign", "session_2"):  # of others, and of a run that has ended in order
        (sessions / name).mkdir()
        make_old(sessions / name)
    with subprocess.Popen(
        [sys.executable, "-c", USER, str(sessions)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
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
    told = [line.partition(",")[0] for line in removed]
    assert told == ["folders of a comparison: 1", "session folders of Ray: 1"]
    assert not any(path.exists() for path in (rows, cell, session, sessions / "session_2"))
    assert (sessions / "session_foreign").exists()
    assert remove_leftovers(sessions) == []


def test_a_session_of_this_process_stays(tmp_path: Path) -> None:
    session = tmp_path / "session_1"
    session.mkdir()
    lock_session(session)
    make_old(session / SESSION_LOCK)
    assert remove_leftovers(tmp_path) == []
    assert session.exists()
