"""What docstrings in NumPy style say about options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_SECTIONS = re.compile(
    r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", re.MULTILINE | re.DOTALL
)
_ENTRY = re.compile(r"^(\w[\w, ]*?)(?: :[^\n]*)?\n((?: +\S[^\n]*(?:\n+|\Z))+)", re.MULTILINE)


def descriptions(factory: Callable[..., Any]) -> dict[str, str]:
    """Return what the docstring of a factory, and those of its bases, say of each parameter, on one line."""
    found: dict[str, str] = {}
    for owner in inspect.getmro(factory) if isinstance(factory, type) else [factory]:
        for section in _SECTIONS.findall(inspect.cleandoc(owner.__doc__ or "")):
            for names, text in _ENTRY.findall(section):
                for name in names.split(","):
                    found.setdefault(name.strip(), " ".join(text.split()))
    return found
