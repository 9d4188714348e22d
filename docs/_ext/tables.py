"""Tables made from the code: `{options} METHOD`, `{parts} SETTING` and `{settings}`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fedtide.base.allowed import REQUIRED, Option, options_of
from fedtide.base.docstrings import descriptions
from fedtide.config import Settings
from fedtide.plan import METHODS, REGISTRIES, own_options
from strategies import Options


class Table(SphinxDirective, ABC):
    """A table of Markdown; empty cells are left empty."""

    columns: ClassVar[tuple[str, ...]]

    @abstractmethod
    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return the cells."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        cells = [tuple(cell.replace("|", "\\|") for cell in row) for row in self.rows()]
        lines = [self.columns, ("---",) * len(self.columns), *cells]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return self.parse_text_to_nodes(text if cells else "This method has no options of its own.")


class OptionsTable(Table):
    """`{options} mimic`, or `{options} initial-model two-norm`; without options of its own it says so."""

    required_arguments, optional_arguments = 1, 1
    columns = ("option", "default", "allowed", "meaning")

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return a row for each option: of a method, those of its own."""
        if len(self.arguments) > 1:
            setting, name = self.arguments
            described = REGISTRIES[setting][name]
            options = options_of(described)
        else:
            strategy = METHODS[self.arguments[0]]
            described, general = strategy.options_type(), options_of(Options)
            options = {key: option for key, option in own_options(strategy).items() if key not in general}
        meaning = descriptions(described)
        for key, option in options.items():
            allowed = option.allowed.replace(" | ", ", ")
            yield f"`{key}`", _code(option.default), allowed, meaning.get(option.parameter, "")


class PartsTable(Table):
    """`{parts} trace`: the names that a setting accepts."""

    required_arguments = 1
    columns = ("name", "meaning", "options")

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return a row for each name."""
        for name, part in REGISTRIES[self.arguments[0]].items():
            paragraph = " ".join((part.__doc__ or "").partition("\n\n")[0].split())
            yield (
                f"`{name}`",
                paragraph,
                ", ".join(_with_default(option) for option in options_of(part).values()),
            )


class SettingsTable(Table):
    """`{settings}`: all settings, in their groups."""

    columns = ("setting", "default", "meaning")

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return a row for each setting."""
        for field in fields(Settings):
            yield f"`{field.name.replace('_', '-')}`", _code(field.default), field.metadata["help"]


def _with_default(option: Option) -> str:
    """Return an option as users write it, with its default if it has one."""
    default = "" if option.default is REQUIRED else _code(option.default).strip("`")
    return f"`{option.name}={default}`" if default else f"`{option.name}`"


def _code(value: object) -> str:
    """Return a value as users write it; nothing for one that is empty."""
    if value in ("", ()):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    for name, directive in (("options", OptionsTable), ("parts", PartsTable), ("settings", SettingsTable)):
        app.add_directive(name, directive)
    return {"parallel_read_safe": True}
