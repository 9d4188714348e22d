"""Which part may import which (pyproject.toml), and what a strategy or a driver must not load."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("importlinter")  # of requirements-dev.txt


def test_imports_go_downwards() -> None:
    lint = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("modules", ["strategies, traces", "fedtide.cli.rehearsal"])
def test_neither_a_strategy_nor_the_driver_of_a_comparison_loads_torch(modules: str) -> None:
    code = f"import sys, {modules}; print(*{{'torch', 'ray', 'sklearn'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
