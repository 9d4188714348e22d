"""Scripts of this project, run in this process as if each had one of its own."""

import io
import runpy
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[1]


@dataclass
class Done:
    """How a script ended, and what it printed."""

    code: int
    out: str
    err: str


def run(script: str, *arguments: str | Path) -> Done:
    """Run a script, given by its path in the repository, from the repository's root."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    command, path = [script, *map(str, arguments)], [str((ROOT / script).parent), *sys.path]
    with (
        chdir(ROOT),
        patch.object(sys, "argv", command),
        patch.object(sys, "path", path),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
    return Done(code, out.getvalue(), err.getvalue())
