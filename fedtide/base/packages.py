"""The packages of this program, and whether something of the user's own has the name of one."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
