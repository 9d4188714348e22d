"""Federated learning where clients come and go: `run`, `compare` and `load`."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtide.api.functions import compare, load, run
    from fedtide.base.errors import RunError, SettingsError
    from fedtide.comparison.comparison import Comparison
    from fedtide.engine.read_run import Run
    from fedtide.flower.strategy import MethodStrategy as strategy  # noqa: N813
    from fedtide.tasks import Task

__all__ = ["Comparison", "Run", "RunError", "SettingsError", "Task", "compare", "load", "run", "strategy"]

ROOT = Path(__file__).parents[1]
PACKAGES = ("clients", "fedtide", "strategies", "traces")


def check_not_hidden(folder: str | None = None) -> None:
    """Raise ImportError if a package or module of the user's own would be imported in place of ours.

    `folder` is where it would be, or None for wherever this process imports from. A folder without
    `__init__.py` hides nothing.
    """
    for name in PACKAGES:
        spec = PathFinder.find_spec(name, [folder] if folder else None)
        if spec and spec.origin and Path(spec.origin) != ROOT / name / "__init__.py":
            path = Path(spec.origin)
            hiding = path.parent if path.name == "__init__.py" else path
            raise ImportError(f"{hiding} hides the package {name!r} of fedtide: rename it")


check_not_hidden()  # here, before any of them is imported


def __getattr__(name: str) -> Any:
    """Import what is asked for: `import fedtide` alone takes no time."""
    if name == "Task":
        from fedtide.tasks import Task

        return Task
    if name in ("RunError", "SettingsError"):
        from fedtide.base import errors

        return getattr(errors, name)
    if name == "Run":
        from fedtide.engine.read_run import Run

        return Run
    if name == "Comparison":
        from fedtide.comparison.comparison import Comparison

        return Comparison
    if name == "strategy":
        from fedtide.flower.strategy import MethodStrategy as strategy  # noqa: N813

        return strategy
    if name in __all__:
        from fedtide.api import functions

        return getattr(functions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
