"""Pickles of plain data: a few operations are understood, of which none imports or calls anything."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

_MOST_BYTES, _MOST_DIGITS = 16, 40  # of an integer
_INTEGERS = re.compile(rb"(?:J.{4})+", re.DOTALL)  # one after the other, as in a list of times
_PUT = rb"(?:q(.)|r(.{4}))"
_SCALAR_CALL = re.compile(rb"h(.)h(.)C\x08(.{8})%b\x86%bR%b" % (_PUT, _PUT, _PUT), re.DOTALL)


class _Mention:
    """What a pickle may mention but not contain."""


_SCALAR, _DTYPE, _FLOAT64, _CONTAINER = (_Mention() for _ in range(4))
_GLOBALS = {
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy._core.multiarray", "scalar"): _SCALAR,
    ("numpy", "dtype"): _DTYPE,
}
_LITTLE_ENDIAN = (3, "<", None, None, None, -1, -1, 0)  # the state of float64


class PlainPickle:
    """A pickle of dicts, lists, texts, numbers, True, False and None; numbers may be NumPy's float64.

    A pickle is a program for a machine with a stack. Whatever such data do not need is refused: importing,
    calling, changing objects, and putting a list into several places, with which a small file could describe
    something huge. NumPy writes a number as a call; that of a float64 is recognised from
    protocol 3 on.
    """

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks below the marks
        self.memo: dict[int, Any] = {}

    def value(self) -> Any:
        """Return the data; any exception means that this is something else."""
        content = self.content
        while (operation := content[self.at]) != ord("."):
            self.at += 1
            if (step := _STEPS.get(operation)) is None:
                raise ValueError(f"operation {operation:#04x} at byte {self.at - 1}")
            step(self)
        (value,) = self.stack
        return value

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        taken = self.content[self.at : self.at + count]
        if len(taken) < count:
            raise ValueError("it is torn")
        self.at += count
        return taken

    def line(self, most: int = 1 << 32) -> str:
        """Return the rest of a line, of at most so many bytes."""
        end = self.content.index(b"\n", self.at)
        if end - self.at > most:
            raise ValueError(f"a line of {end - self.at} bytes at byte {self.at}")
        return self.take(end + 1 - self.at)[:-1].decode("latin1")

    def marked(self) -> list[Any]:
        """Return what is above the last mark."""
        items, self.stack = self.stack, self.below.pop()
        return items

    def popped(self, count: int) -> tuple[Any, ...]:
        """Return the topmost items."""
        return tuple([self.stack.pop() for _ in range(count)][::-1])


_Step = Callable[[PlainPickle], Any]


def _push(read: _Step) -> _Step:
    def push(machine: PlainPickle) -> None:
        item = read(machine)  # which may replace the stack
        machine.stack.append(item)

    return push


def _number(form: str) -> _Step:
    packed = struct.Struct(form)

    def number(machine: PlainPickle) -> Any:
        (value,) = packed.unpack_from(machine.content, machine.at)
        machine.at += packed.size
        return value

    return number


def _bytes(size: str) -> Callable[[PlainPickle], bytes]:
    count = _number(size)
    return lambda machine: machine.take(count(machine))


def _text(size: str, encoding: str = "utf-8") -> _Step:
    content = _bytes(size)
    return _push(lambda machine: content(machine).decode(encoding, "surrogatepass"))


def _long(size: str) -> _Step:
    content = _bytes(size)

    def long(machine: PlainPickle) -> int:
        if len(digits := content(machine)) > _MOST_BYTES:
            raise ValueError(f"an integer of {len(digits)} bytes")
        return int.from_bytes(digits, "little", signed=True)

    return _push(long)


def _integer_line(machine: PlainPickle) -> int | bool:
    digits = machine.line(_MOST_DIGITS).removesuffix("L")
    return digits == "01" if digits in ("00", "01") else int(digits)


def _integers(machine: PlainPickle) -> None:
    if (run := _INTEGERS.match(machine.content, machine.at - 1)) is None:
        raise ValueError("it is torn")
    machine.at = run.end()
    machine.stack += struct.unpack("<" + "xi" * (len(run[0]) // 5), run[0])


# Remembered items


def _put(read: _Step) -> _Step:
    def put(machine: PlainPickle) -> None:
        item = machine.stack[-1]
        machine.memo[read(machine)] = _CONTAINER if isinstance(item, list | dict | tuple) else item

    return put


def _get(read: _Step) -> _Step:
    def get(machine: PlainPickle) -> None:
        if (item := machine.memo[read(machine)]) is _CONTAINER:
            raise ValueError("a list or dict is in several places")
        machine.stack.append(item)

    return get


_get_near = _get(_number("B"))


def _get_or_call(machine: PlainPickle) -> None:
    """Take the steps of a float64 at once, where they are in NumPy's order: files have a million of them."""
    call = _SCALAR_CALL.match(machine.content, machine.at - 1)
    if call is None or [machine.memo.get(call[k][0]) for k in (1, 2)] != [_SCALAR, _FLOAT64]:
        _get_near(machine)
        return
    machine.at = call.end()
    machine.stack += struct.unpack("<d", call[3])
    machine.memo[int.from_bytes(call[8] or call[9], "little")] = machine.stack[-1]


# Containers


def _mark(machine: PlainPickle) -> None:
    machine.below.append(machine.stack)
    machine.stack = []


def _append(machine: PlainPickle) -> None:
    (item,) = machine.popped(1)
    machine.stack[-1].append(item)


def _extend(machine: PlainPickle) -> None:
    items = machine.marked()
    machine.stack[-1].extend(items)


def _pairs(items: list[Any] | tuple[Any, ...]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _set(machine: PlainPickle) -> None:
    items = machine.popped(2)
    machine.stack[-1].update(_pairs(items))


def _update(machine: PlainPickle) -> None:
    items = machine.marked()
    machine.stack[-1].update(_pairs(items))


# What NumPy writes for a float64


def _global(machine: PlainPickle, module: str, name: str) -> None:
    if (module, name) not in _GLOBALS:
        raise ValueError(f"it contains {module}.{name}")
    machine.stack.append(_GLOBALS[module, name])


def _call(machine: PlainPickle) -> None:
    function, arguments = machine.popped(2)
    if function is _DTYPE and arguments[0] == "f8":
        machine.stack.append(_FLOAT64)
    elif function is _SCALAR and arguments[0] is _FLOAT64:
        machine.stack += struct.unpack("<d", arguments[1])
    else:
        raise ValueError("it contains a call")


def _change(machine: PlainPickle) -> None:
    changed, state = machine.popped(2)
    if changed is not _FLOAT64 or state != _LITTLE_ENDIAN:
        raise ValueError("it contains an object")
    machine.stack.append(changed)


_OPERATIONS: dict[bytes, _Step] = {
    b"\x80": lambda machine: machine.take(1),  # the version
    b"\x95": lambda machine: machine.take(8),  # the length of what follows
    b"N": _push(lambda machine: None),
    b"\x88": _push(lambda machine: True),
    b"\x89": _push(lambda machine: False),
    b"K": _push(_number("B")),
    b"M": _push(_number("<H")),
    b"J": _integers,
    b"\x8a": _long("B"),
    b"\x8b": _long("<I"),
    b"I": _push(_integer_line),
    b"L": _push(_integer_line),
    b"G": _push(_number(">d")),
    b"F": _push(lambda machine: float(machine.line(_MOST_DIGITS))),
    b"X": _text("<I"),
    b"\x8c": _text("B"),
    b"\x8d": _text("<Q"),
    b"U": _text("B", "latin1"),  # as Python 2 writes texts
    b"T": _text("<I", "latin1"),
    b"V": _push(lambda machine: machine.line().encode("latin1").decode("raw-unicode-escape")),
    b"C": _push(_bytes("B")),
    b"q": _put(_number("B")),
    b"r": _put(_number("<I")),
    b"p": _put(_integer_line),
    b"\x94": _put(lambda machine: len(machine.memo)),
    b"h": _get_or_call,
    b"j": _get(_number("<I")),
    b"g": _get(_integer_line),
    b"(": _mark,
    b"]": _push(lambda machine: []),
    b"l": _push(PlainPickle.marked),
    b"a": _append,
    b"e": _extend,
    b"}": _push(lambda machine: {}),
    b"d": _push(lambda machine: _pairs(machine.marked())),
    b"s": _set,
    b"u": _update,
    b")": _push(lambda machine: ()),
    b"t": _push(lambda machine: tuple(machine.marked())),
    b"\x85": _push(lambda machine: machine.popped(1)),
    b"\x86": _push(lambda machine: machine.popped(2)),
    b"\x87": _push(lambda machine: machine.popped(3)),
    b"c": lambda machine: _global(machine, machine.line(), machine.line()),
    b"\x93": lambda machine: _global(machine, *machine.popped(2)),
    b"R": _call,
    b"b": _change,
}
_STEPS = {operation[0]: step for operation, step in _OPERATIONS.items()}
