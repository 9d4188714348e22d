"""Hashes of the user's own code and data, by the content of files."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedtide.base.errors import SettingsError, is_installed, is_ours

SETTLED = 2 * 10**9  # nanoseconds after a change in which another one may leave all times as they are

_digests: dict[tuple[Any, ...], str] = {}


def code_hash(part: str, found: Any) -> str:
    """Return a hash of all files of the user's own that define a class or function, and that these import.

    `part` names it, for messages. SettingsError: its code has changed since it was imported.
    """
    module = sys.modules.get(found.__module__)
    digits = content_hash(*(_own_files(found.__module__) or [_source(found)]))
    about = getattr(module, "__spec__", None)  # another one after a reload
    if about is not None and vars(about).setdefault("_sources", digits) != digits:
        raise SettingsError(
            f"{part}: its code has changed since it was imported; restart Python, or reload it"
        )
    return digits


def _source(part: Any) -> Path:
    """Return the file that defines a part."""
    try:
        return Path(inspect.getsourcefile(inspect.unwrap(part)) or "")
    except TypeError:
        return Path()


def _own_files(module: str) -> list[Path]:
    """Return the files of the user's own that a module is from, and that it imports, of packages all."""
    found: dict[str, list[Path]] = {}
    waiting = [module.partition(".")[0]]
    while waiting:
        if (name := waiting.pop()) not in found:
            found[name] = [*_files_of(name)]
            waiting += [other for file in found[name] for other in _imports(file, _digest(file))]
    return sorted(file for files in found.values() for file in files)


def _files_of(name: str) -> Iterator[Path]:
    """Yield the files of a module or package, by its first name, that is neither ours nor installed."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # as of __main__
        return
    if spec is None:
        return
    for place in map(
        os.fspath, spec.submodule_search_locations or [spec.origin or ""]
    ):  # a Path, of transformers
        if os.path.exists(place) and not (is_ours(place) or is_ours(f"{place}/") or is_installed(place)):
            yield from Path(place).rglob("*.py") if os.path.isdir(place) else [Path(place)]


@lru_cache(maxsize=1000)
def _imports(file: Path, digest: str) -> frozenset[str]:
    """Return the first names of the modules that a file with this content imports, wherever in it."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # it is compiled
        return frozenset()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return frozenset(name.partition(".")[0] for name in names if name)


def content_hash(*paths: Path) -> str:
    """Return the first digits of the SHA-256 of a file, or of several, those in folders and below them."""
    try:
        digests = [(name, _digest(file)) for path in paths for name, file in _below(path)]
    except OSError:
        return "unknown"
    if len(digests) == 1:
        return digests[0][1][:16]
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:16]


def _below(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files in a folder and below it, in order, with their names there; or the file itself."""
    if not path.is_dir():
        yield path.name, path
        return
    met = {os.path.realpath(path)}  # links may lead in a circle
    for place, folders, files in os.walk(path, followlinks=True):
        for name in sorted(folders):
            if (real := os.path.realpath(os.path.join(place, name))) in met:
                folders.remove(name)
            met.add(real)
        folders.sort()
        for file in (Path(place, name) for name in sorted(files)):
            yield str(file.relative_to(path)), file


def _digest(file: Path) -> str:
    """Return the SHA-256 of a file, which is read once while nothing says that it has changed."""
    about = file.stat()
    key = (file, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    if key in _digests:
        return _digests[key]
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if time.time_ns() - about.st_ctime_ns > SETTLED:
        _digests[key] = digest
    return digest
