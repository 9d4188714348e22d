"""Who belongs to a fleet: boards are registered by name, get another key, and are unregistered."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedtide.base.errors import SettingsError
from fedtide.fleet.boards import Board, Boards, check_name, read_key
from fedtide.fleet.superlink import GONE, Node, SuperLink, key_bytes

Say = Callable[[str], object]


def register(superlink: SuperLink, file: Boards, keys: Mapping[str, str], replace: bool, say: Say) -> None:
    """Register boards by name with the files of their public keys; what is as it should be stays.

    A second key for a name is refused, unless it is to `replace` the first, which then is no longer valid.
    """
    boards, known = file.read(), superlink.nodes()
    nodes = [node for node in known if node.state != GONE]
    for name, path in keys.items():
        check_name(name)
        key, client = read_key(path)
        if _node_of(key, known) and not _node_of(key, nodes):
            raise SettingsError(
                f"{name}: its key was unregistered, and Flower never takes it again: make another one with "
                "deploy/key.sh --replace on the board"
            )
        _check(name, key, client, boards, nodes, replace)
        node = _node_of(key, nodes)
        number = superlink.register(name, key) if node is None else node.number
        if client is None and name in boards:
            client = boards[name].client
        board = boards[name] = Board(client, number, key)
        file.write(boards)
        told = "registered" if node is None else "is registered already"
        who = "" if board.client is None else f", client {board.client}"
        say(f"{name} {told}{who}: node {number}, {board.fingerprint}")
        for other in nodes:
            if other.name == name and other.number != number:
                superlink.unregister(other.number)
                say(f"{name}: node {other.number} with the earlier key is unregistered")


def unregister(superlink: SuperLink, file: Boards, names: list[str], say: Say) -> None:
    """Unregister boards by name, all nodes of the name: they are not admitted any more."""
    boards, nodes = file.read(), [node for node in superlink.nodes() if node.state != GONE]
    for name in names:
        known = {node.number for node in nodes if node.name == name}
        if not known and name not in boards:
            raise SettingsError(f"board {name!r} is not registered; `fedtide fleet` lists those that are")
    for name in names:
        for node in nodes:
            if node.name == name:
                superlink.unregister(node.number)
                say(f"{name}: node {node.number} is unregistered")
        boards.pop(name, None)
        file.write(boards)


def _check(
    name: str, key: str, client: int | None, boards: Mapping[str, Board], nodes: list[Node], replace: bool
) -> None:
    """Raise SettingsError where registering a key would make two boards of one, or one of two."""
    node = _node_of(key, nodes)
    if node is not None and node.name != name:
        raise SettingsError(
            f"{name}: its key is that of {node.name or node.number} (a copied SD card?): make another one "
            "with deploy/key.sh --replace on the board"
        )
    others = [other for other in nodes if other.name == name and other is not node]
    if others and not replace:
        raise SettingsError(
            f"{name} is registered with another key, as node {others[0].number}: give --replace if that is "
            "no longer to be valid, or give this board another name"
        )
    for other, board in boards.items():
        if client is not None and board.client == client and other != name:
            raise SettingsError(
                f"{name} is client {client}, and so is {other}: install it with another client-id, or "
                f"`fedtide fleet unregister {other}` first"
            )


def _node_of(key: str, nodes: list[Node]) -> Node | None:
    wanted = key_bytes(key)
    return next((node for node in nodes if node.key == wanted), None)
