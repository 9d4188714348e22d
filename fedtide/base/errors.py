"""Errors of users, in one line, and whose code a defect is in."""

from __future__ import annotations

import inspect
import sysconfig
from collections.abc import Callable
from itertools import dropwhile
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

from fedtide import PACKAGES, ROOT
from fedtide.base.wording import plain

_OURS = (*(f"{ROOT / package}/" for package in PACKAGES), str(ROOT / "sim.py"))
_INSTALLED = {"site-packages", "dist-packages"}
_PYTHON = ("<", sysconfig.get_path("stdlib") + "/")


class SettingsError(ValueError):
    """Settings, or the files that they name, are invalid or do not fit together.

    The message says in one line what is wrong, where, and what to do. Any other exception, a plain
    `ValueError` too, is a defect: of this program, or of a part of the user's own.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class RunError(RuntimeError):
    """A run has failed, for example on a full disk; the message says why, and how to resume it."""


class PartError(Exception):
    """A part of the user's own has failed in a client; the message is what `told` has said there.

    `trace` is the traceback, whose last line is the message.
    """

    def __init__(self, trace: str) -> None:
        *lines, message = trace.splitlines()
        super().__init__(message)
        self.add_note("\n".join(lines))


class ResultError(TypeError):
    """What a function returns, or leaves behind, cannot be used: a defect of it, not of its caller.

    `function` may be a method or an object that is called, and is the subject of the `message`.
    """

    def __init__(self, function: Callable[..., Any], message: str) -> None:
        called = inspect.unwrap(function)
        called = called if hasattr(called, "__code__") else type(called).__call__
        code, name = getattr(called, "__code__", None), f"{called.__module__}.{called.__qualname__}"
        super().__init__(f"{name} {message}")
        self.places = [Place(name, code.co_filename, code.co_firstlineno)] if code else []


class Place(NamedTuple):
    """Where an error was raised."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"({Path(self.file).name}, line {self.line})"

    @property
    def is_installed(self) -> bool:
        """Whether that is in Python, in an installed package, or in no file; notebooks are `__main__`."""
        return is_installed(self.file) and not self.function.startswith("__main__.")


def change_in_place(what: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function that changes something in place; ResultError: it returns something instead."""
    if function(*arguments) is not None:
        raise ResultError(function, f"returns something; it has to change {what} in place and return nothing")


def is_ours(file: str) -> bool:
    """Whether a file of code is one of this program."""
    return file.startswith(_OURS)


def is_installed(file: str) -> bool:
    """Whether a file of code is one of Python or of an installed package, or none."""
    return file.startswith(_PYTHON) or not _INSTALLED.isdisjoint(Path(file).parts)


def told(error: BaseException) -> str:
    """Return a defect in one line: the part of the user's own that has failed, the error, and the place.

    Where no part of the user's own was called, it begins with the function of this program that has failed.
    """
    if isinstance(error, PartError):
        return str(error)
    places = own_places(error) or [place for place in _places(error) if is_ours(place.file)][-1:]
    said = plain(" ".join(described(error).split()), 400)
    named = said if isinstance(error, ResultError) else f"{places[0].function}: {said}"
    return f"{named.removesuffix(f' {places[-1]}')} {places[-1]}"  # of a SyntaxError


def described(error: BaseException) -> str:
    """Return the type and the text of an error, of any class, even one that fails to make its text."""
    if isinstance(error, SettingsError | ResultError):
        return str(error)
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:
        return f"{type(error).__name__}, which fails to make its own text"


def own_places(error: BaseException) -> list[Place]:
    """Return the functions of the user's own whose calls have led to an error, if a part of it has failed."""
    found = error.places if isinstance(error, ResultError) else _places(error)
    places = [place for place in found if not is_ours(place.file) and not place.is_installed]
    if isinstance(error, SyntaxError) and error.filename:
        places.append(Place(Path(error.filename).stem, error.filename, error.lineno or 1))
    return places or (own_places(error.__cause__) if error.__cause__ else [])


def why(error: Exception) -> str:
    """Return the reason that an error gives: the operating system's, without its number and its file."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def is_of(error: BaseException, package: str) -> bool:
    """Whether an error was raised in or through an installed package, and not by a part of the user's own."""
    return not own_places(error) and any(p.function.startswith(f"{package}.") for p in _places(error))


def _places(error: BaseException) -> list[Place]:
    """Return the calls that have led to an error, from the first one of this program on."""
    frames = walk_tb(error.__traceback__)
    places = [
        Place(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}", frame.f_code.co_filename, line)
        for frame, line in frames
    ]
    return [*dropwhile(lambda place: not is_ours(place.file), places)]
