"""A folder with modules of one's own."""

import importlib
import sys
from pathlib import Path


class Folder:
    """A folder to write modules into, and to forget them again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def write(self, name: str, content: str) -> None:
        """Write a file; a module that was imported from it before is forgotten."""
        (self.path / name).write_text(content, encoding="utf-8")
        self.forget()

    def forget(self) -> None:
        """Forget all modules that were imported from the folder."""
        for name, module in [*sys.modules.items()]:
            if str(getattr(module, "__file__", None) or "").startswith(str(self.path)):
                del sys.modules[name]
        importlib.invalidate_caches()


def of_the_page(name: str) -> str:
    """Return a file that docs/extending.md shows."""
    page = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
    return page.partition(f"```python\n# {name}\n")[2].partition("```")[0]


METHODS = of_the_page("my_methods.py")
"""A method with a rule of its own: `Momentum` and `Clipped`."""
