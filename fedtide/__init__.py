"""Federated learning where clients come and go: `run`, `compare` and `load`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedtide.base.packages import check_not_hidden

if TYPE_CHECKING:
    from fedtide.api.functions import compare, load, run
    from fedtide.base.errors import RunError, SettingsError
    from fedtide.comparison.comparison import Comparison
    from fedtide.engine.read_run import Run
    from fedtide.flower.strategy import MethodStrategy as strategy  # noqa: N813
    from fedtide.tasks.arrays import Task

__all__ = ["Comparison", "Run", "RunError", "SettingsError", "Task", "compare", "load", "run", "strategy"]


check_not_hidden()


def __getattr__(name: str) -> Any:
    """Import what is asked for: `import fedtide` alone takes no time."""
    if name == "Task":
        from fedtide.tasks.arrays import Task

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
