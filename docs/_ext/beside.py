"""The pages of experiments/, beside what makes their tables, become pages `experiments/NAME` of the site."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

PAGES = Path(__file__).parents[2] / "experiments"


def _add(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Add the pages to what Sphinx has found in its source folder, where links to their files find them."""
    for path in sorted(PAGES.glob("*.md")):
        name = f"experiments/{path.stem}"
        env.project.docnames.add(name)
        env.project._docname_to_path[name] = path
        env.project._path_to_docname[path] = name
        docnames.append(name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the pages."""
    app.connect("env-before-read-docs", _add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
