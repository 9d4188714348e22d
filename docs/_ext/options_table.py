"""The directive `{options} NAME`: a table of a method's own options, made from the code."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fedtide.engine.methods import METHODS, own_options
from fedtide.ground.allowed import options_of
from fedtide.ground.docstrings import descriptions
from strategies import Options

HEAD = "| option | default | allowed | meaning |\n|---|---|---|---|\n"


class OptionsTable(SphinxDirective):
    """`{options} mimic`; a method without options of its own says so."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        strategy = METHODS[self.arguments[0]]
        own = {key: o for key, o in own_options(strategy).items() if key not in options_of(Options)}
        meaning = descriptions(strategy.options_type())
        rows = [
            f"| `{key}` | `{option.default}` | {option.allowed.replace('|', ', ')} | "
            f"{meaning.get(option.parameter, '').replace('|', chr(92) + '|')} |\n"
            for key, option in own.items()
        ]
        text = HEAD + "".join(rows) if rows else "This method has no options of its own."
        return self.parse_text_to_nodes(text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("options", OptionsTable)
    return {"parallel_read_safe": True}
