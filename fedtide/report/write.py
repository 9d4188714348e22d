"""Writes a page: with Plotly inside, or with a link to it, so that many pages share one file."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from fedtide.base.files import replacing
from fedtide.report.page import Page, render


def write_page(page: Page, file: Path, shared: Path | None = None) -> Path:
    """Write a page atomically, and return its path; OSError: that is impossible.

    `shared` is the folder of Plotly, which is written once, and which the page links to; None: it is inside.
    """
    text = render(page, "" if shared is None else _link(file, _library_in(shared)))
    with replacing(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return file


def _library_in(folder: Path) -> Path:
    """Return the file of Plotly in a folder; pages that a later version makes link to another one."""
    from plotly.offline import get_plotlyjs, get_plotlyjs_version  # not needed before

    file = folder / f"plotly-{get_plotlyjs_version()}.min.js"
    if not file.exists():
        with replacing(file, file.with_name(f".{file.name}.{os.getpid()}")) as temporary:
            temporary.write_text(get_plotlyjs(), encoding="utf-8")
    return file


def _link(page: Path, file: Path) -> str:
    return quote(os.path.relpath(file, page.parent).replace(os.sep, "/"))
