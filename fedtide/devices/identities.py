"""What nodes have said of themselves, kept from run to run: each is asked once for as long as it is up."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedtide.base.errors import why
from fedtide.base.files import parse_json, read_text, write_durably

FILE = "nodes.json"  # beside the run folders
MOST_BYTES = 2**26


class Identity(NamedTuple):
    """What a node has said of itself."""

    client: int
    one_object: bool  # whether it reads messages in one object (`fedtide.base.one_object`)
    seconds: float  # that its answer took


class Start(NamedTuple):
    """A node, by Flower's number, and when it came online: when it is started again, it is asked again."""

    node: int
    time: str


class Identities:
    """The identities of nodes in a file, as they told them to one app; another app has to ask again.

    A file that cannot be read counts as none, and one that cannot be written is a warning.
    """

    def __init__(self, folder: str | Path, app: str) -> None:
        self._file, self._app = Path(folder) / FILE, app
        self._known: Mapping[Start, Identity] = {}
        with suppress(OSError, ValueError, TypeError, KeyError):
            content = parse_json(read_text(self._file, MOST_BYTES))
            if content["app"] == app:
                self._known = dict(_checked(*node) for node in content["nodes"])

    def of(self, start: Start) -> Identity | None:
        """Return what a node has said since its start; None: it has to be asked."""
        return self._known.get(start)

    def keep(self, known: Mapping[Start, Identity]) -> None:
        """Write what is known now, unless the file has it."""
        if known == self._known:
            return
        self._known = known
        nodes = [[str(start.node), start.time, *said] for start, said in known.items()]  # JSON has no 64 bits
        content = {"app": self._app, "nodes": nodes}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self._file, json.dumps(content).encode(), self._file.with_name(f".{FILE}"))
        except OSError as error:
            warnings.warn(f"{self._file}: {why(error)}; the next run asks all nodes again", stacklevel=2)


def _checked(node: str, time: str, client: int, one_object: bool, seconds: float) -> tuple[Start, Identity]:
    """Return an entry of a file; ValueError or TypeError: it is none."""
    if not (type(client) is int and type(one_object) is bool and math.isfinite(seconds)):
        raise ValueError
    return Start(int(node), time), Identity(client, one_object, seconds)
