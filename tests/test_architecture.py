"""Which part may import which (pyproject.toml), what must not be loaded, and in which order."""

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


WAITING = """
import sys

ours, importing, waiting = ("clients", "fedtide", "strategies", "traces"), set(), []

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ours:
            return
        frame, parent = sys._getframe(), name.rpartition(".")[0]
        while frame := frame.f_back:
            if frame.f_code.co_name == "_find_and_load":
                other = frame.f_locals["name"]  # whose lock this thread holds
                if other == parent:
                    importing.add(parent)
                elif other.startswith(f"{name}."):
                    waiting.append((other, name))

sys.meta_path.insert(0, Watch())
"""


@pytest.mark.parametrize("name", ["strategy", "Task", "Run", "Comparison", "run"])
@pytest.mark.parametrize("module", ["strategies", "fedtide.client", "fedtide.testing", "clients.rules"])
def test_threads_can_import_what_an_app_imports(module: str, name: str) -> None:
    """A package that imports its modules comes before them.

    Flower imports a server and a client in two threads of one process. Whoever imports such a module first
    holds its lock and waits for the package, whose thread waits for the module: `_DeadlockError`.
    """
    asked = f"import {module}, fedtide; fedtide.{name}"
    code = f"{WAITING}\n{asked}; print(*(pair for pair in waiting if pair[1] in importing))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
