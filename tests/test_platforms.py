"""What macOS and Windows lack is not needed by imports, the inline engine and checkpoints."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import importlib, os, signal, sys

sys.modules["fcntl"] = None  # an import fails, as on Windows
for name in ("posix_fallocate", "pread", "preadv", "pwrite", "pwritev", "memfd_create"):
    delattr(os, name)
del os.O_CLOEXEC, os.O_NONBLOCK
del signal.SIGHUP, signal.pthread_kill

import sim
from fedtide.engine.transports.ray.shared_rows import POSSIBLE, SharedRows
for name in ("comparison.runner", "engine.transports.ray.transport"):
    importlib.import_module("fedtide." + name)
_, rows = SharedRows().lend(300, 1000)
rows[:] = 2
assert not POSSIBLE
sys.exit(sim.main(sys.argv[1:]))
"""


def test_runs_without_what_other_systems_lack(tmp_path: Path) -> None:
    flags = ["--engine=inline", "--model=logistic", "--num-clients=4", "--local-steps=4", "--num-rounds=2"]
    flags += ["--strategy=mifa:table-memory=0", "--checkpoint-every=1", "--no-report", "--json"]
    command = [sys.executable, "-c", PROGRAM, *flags, f"--run-dir={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["client_fits"] > 0
    assert [*tmp_path.glob("*/checkpoint/states.sqlite")]
