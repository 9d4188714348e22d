"""The boards of a fleet by name, in a file beside Flower's config.toml: client, node and key of each."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedtide.base.errors import SettingsError, why
from fedtide.base.files import parse_toml, read_text, write_durably
from fedtide.base.wording import plain

FILE = "fleet.toml"
MOST_BYTES = 2**24
_KEY = re.compile(r"(ecdsa-sha2-nistp\d+) ([A-Za-z0-9+/=]+)(?: .*?(?:client-id=(\d+))?)?\s*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


class Board(NamedTuple):
    """A board: the client that it is, if that is known, Flower's number of its node, and its public key."""

    client: int | None
    node: int
    key: str  # as OpenSSH writes it, without a comment

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint, as `ssh-keygen -l` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.key.split()[1])).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def check_name(name: str) -> None:
    """Raise SettingsError for a name that would not be one everywhere."""
    if not _NAME.fullmatch(name):
        allowed = "letters, digits, dots, hyphens and underscores, at most 63"
        raise SettingsError(f"board {plain(name, 70)!r}: a name has {allowed}")


def read_key(path: str) -> tuple[str, int | None]:
    """Read a public key, and the client that its comment names; SettingsError: it is none."""
    try:
        text = read_text(path, 10_000)
    except (OSError, ValueError) as error:
        raise SettingsError(f"key {path}: {why(error)}") from None
    if (found := _KEY.fullmatch(text)) is not None:
        kind, key, client = found.groups()
        with suppress(ValueError, UnsupportedAlgorithm):
            load_ssh_public_key(f"{kind} {key}".encode())
            return f"{kind} {key}", None if client is None else int(client)
    raise SettingsError(f"key {path}: it is not a public key that deploy/key.sh makes (FILE.pub)")


class Boards:
    """The boards of one SuperLink, by name; the file has those of others as well.

    Parameters
    ----------
    superlink
        Its name in Flower's config.toml.
    path
        The file, by default that in Flower's own folder; one that is not there has none.
    """

    def __init__(self, superlink: str, path: Path | None = None) -> None:
        self.superlink = superlink
        self.path = path or Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / FILE

    def read(self) -> dict[str, Board]:
        """Return the boards; SettingsError: the file is damaged."""
        boards, content = {}, self._content().get(self.superlink, {})
        if not isinstance(content, dict):
            raise SettingsError(f"{self.path}: {self.superlink} is not a table of boards")
        for name, told in content.items():
            try:
                client = told.get("client-id")
                board = Board(None if client is None else int(client), int(told["node-id"]), str(told["key"]))
                assert board.fingerprint
            except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError):
                raise SettingsError(f"{self.path}: [{self.superlink}.{name}] is not a board") from None
            boards[name] = board
        return boards

    def write(self, boards: Mapping[str, Board]) -> None:
        """Write the boards of this SuperLink, durably; OSError: that is impossible."""
        own = {
            name: ({} if board.client is None else {"client-id": board.client})
            | {"node-id": str(board.node), "key": board.key}  # the number has 64 bits, without a sign
            for name, board in sorted(boards.items())
        }
        content = {**self._content(), self.superlink: own}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = f"# Written by `fedtide fleet`.\n\n{tomli_w.dumps(content)}"
        write_durably(self.path, text.encode(), self.path.with_name(f".{FILE}"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else change the file meanwhile."""
        import fcntl  # not on Windows, where no fleet is administered

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(f".{FILE}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _content(self) -> dict[str, Any]:
        try:
            return parse_toml(read_text(self.path, MOST_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise SettingsError(f"{self.path}: {error}") from None
