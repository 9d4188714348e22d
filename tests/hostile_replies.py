"""Clients that send anything: valid replies, and what can be made of them.

Every choice comes from a `random.Random`, of which hypothesis is the source. Of several choices the harmless
one comes first: a failure shrinks towards it.
"""

import io
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fakes import reply
from flwr.common import (
    Code,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)

from fedtide.base.contract import Rule, ternary

LONG = 10**6  # characters of the longest text
TEXTS = ["no", "", "line\nline\r\n\x1b[31mred", "\0", "\ud800", "9" * 5000, "x" * LONG, "größe \u202e"]
NUMBERS: list[Any] = [1, 0, -1, 2, True, False, 2.0, 2.5, -0.0, 1e308, float("nan"), float("inf"), 5e-324]
NUMBERS += [2**62, 10**12, 10**5000, -(10**400)]
ANYTHING: list[Any] = [*NUMBERS, *TEXTS, b"\xff", b"x" * LONG, [], [1, "a", None], {"a": 1}, None]
VALUES = [0.0, np.nan, np.inf, -np.inf, 1e30, -1e308, 5e-324, -1e-300, 1e3, -1e9, 9e17, 1e18, -1e17]
TYPES = ["<f4", "<f8", "<f2", ">f8", "<i8", "|b1", "<c16", "<U4", "|S3", "|u1", "g", "datetime64[s]"]
KEYS = ["steps", "round", "train-loss", "final-loss", "departing", "resync", "client-id", "seconds", "x\n"]
NAMES = ["7", "-1", "", "ghost", "\u0663", "²", "0x1", " 0", "9" * 30, "\ud800", "ñ" * LONG]

Spoil = Callable[[Random, FitRes, FitIns], None]


class Marker:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def honest(client: int, instruction: FitIns, rule: Rule, num_examples: int, rng: Random) -> FitRes:
    """What a client answers that did what it was asked for: also a farewell."""
    change = 0.3 * np.random.default_rng([client, int(instruction.config["round"])]).normal(size=9)
    told = {"round": instruction.config["round"], "train_loss": 0.5, "final_loss": 0.4}
    if rule.sends == "vector" or instruction.config.get("farewell"):
        return reply(instruction, change, num_examples, [change], **told)
    if rule.sends == "packed" and rng.choice([True, False]):
        size = rng.choice([1.0, 1.0, 1e3, 1e17])  # of the Fisher information
        extra = [size * abs(change), size * change][: rng.choice([2, 2, 0])]
        packed = ternary.pack(ternary.ternary(change, 3))
        return reply(instruction, change, num_examples, [packed, *extra], **told)
    sent: Any = instruction.parameters  # in memory: reading it from bytes would take most of the time
    start, layout = sent.vector + change, sent.layout
    return reply(instruction, change, num_examples, layout.split(start), **told)


def saved(array: Any, save: Callable[..., Any] = np.save) -> bytes:
    file = io.BytesIO()
    save(file, array)
    return file.getvalue()


def header(description: str, version: int = 1, data: int = 48) -> bytes:
    """An .npy file with this header."""
    size = struct.pack("<H" if version == 1 else "<I", len(description))
    return b"\x93NUMPY" + bytes([version, 0]) + size + description.encode("latin1") + bytes(data)


def claims(dtype: str, shape: str, data: int = 48) -> bytes:
    return header(f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}", data=data)


HEADERS = [
    *(claims("'<f8'", shape) for shape in ("(1000000000000,)", "(10**6, 10**6, 10**6)", "(-6,)", "((((1)))")),
    *(claims(dtype, "(2, 3)") for dtype in ("'|O'", "[('a', '<f8'), ('b', '|O')]", "'|V1000000000'")),
    *(header(text) for text in ("{'descr': '<f8', ", "(" * 9000, "-" * 9000 + "1", "{}" * 30000)),
    header("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }", version=3),
    *(b"\x93NUMPY\x02\x00" + b"\xff" * 4, b"\x93NUMPY\x09\x00", b"PK\x03\x04", b"", b"junk"),
]


def flipped(rng: Random, data: bytes) -> bytes:
    """Change some bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 8])):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def spoil_tensors(rng: Random, result: FitRes, instruction: FitIns, marker: Path) -> None:
    """Change the bytes of the arrays."""
    sent = result.parameters.tensors
    at = rng.randrange(len(sent))
    data, bomb = sent[at], np.full((2, 3), None)
    bomb[0, 0] = Marker(marker)
    more = [data, *map(saved, (np.zeros(9), np.zeros(0), np.zeros(3, "u1")))]
    pickles = [saved(bomb), pickle.dumps(Marker(marker)), saved(np.zeros(3), np.savez)]
    other: list[Any] = [None, "text", 3, [data], bytearray(data), rng.randbytes(20)]
    ways: list[Callable[[], list[Any]]] = [  # what stands in place of one tensor
        list,
        lambda: [data, rng.choice(more)],
        lambda: [data[: rng.randrange(len(data))]],
        lambda: [rng.choice(HEADERS)],
        lambda: [flipped(rng, data)],
        lambda: [rng.choice(pickles)],
        lambda: [data] * rng.choice([0, 2, 5, 100]),
        lambda: [rng.choice(other)],
    ]
    tensors = [*sent[:at], *rng.choice(ways)(), *sent[at + 1 :]]
    parameters: Any = rng.choice([Parameters(tensors, "numpy.ndarray"), Parameters(tensors, "no"), None])
    result.parameters = parameters


def plain(result: FitRes) -> list[Any]:
    """Return the arrays of a reply, unless they are spoilt: some would take for ever to convert."""
    arrays = parameters_to_ndarrays(result.parameters)
    if not all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in arrays):
        raise ValueError
    return [np.array(array) for array in arrays]


def spoil_arrays(rng: Random, result: FitRes, instruction: FitIns) -> None:
    """Change type, shape or order of an array."""
    arrays, dtype = plain(result), rng.choice(TYPES)
    at, every = rng.randrange(len(arrays)), rng.choice([False, True])
    shapes: list[Any] = [(), (0,), (9,), (1, 9), (3, 3), (9, 1, 1), (0, 4), (2, 3), (1,) * 32]
    ways: list[Callable[[int, Any], Any]] = [
        lambda i, array: array.astype(dtype) if every or i == at else array,
        lambda i, array: np.asfortranarray(array) if i == at else array,
        lambda i, array: np.zeros(rng.choice(shapes)) if i == at else array,
        lambda i, array: array.T if i == at else array,
        lambda i, array: arrays[i - at],
    ]
    change = rng.choice(ways)
    with np.errstate(all="ignore"):
        result.parameters = ndarrays_to_parameters([change(i, array) for i, array in enumerate(arrays)])


def spoil_values(rng: Random, result: FitRes, instruction: FitIns) -> None:
    """Change the numbers."""
    arrays = plain(result)
    array = rng.choice([a for a in arrays if a.size] or [np.zeros(1)])
    with np.errstate(all="ignore"):
        value = np.full((), rng.choice(VALUES)).astype(array.dtype)
        noise = np.random.default_rng(rng.randrange(99)).normal(scale=1000, size=array.shape)
        kind = rng.randrange(4)
        if kind == 0:
            array.flat[rng.randrange(array.size)] = value
        else:
            array[...] = [value, array + noise.astype(array.dtype), array * value][kind - 1]
    result.parameters = ndarrays_to_parameters(arrays)


def spoil_claims(rng: Random, result: FitRes, instruction: FitIns) -> None:
    """Change what the client says about its work."""
    told: list[Any] = [{}, {"departing": True}, {"resync": True}, None, [], "text"]
    steps: list[Any] = [1, 2, 3.0, 0, -1, 4, 1e9, *ANYTHING]
    ways: list[Callable[[], Any]] = [
        lambda: setattr(result, "num_examples", rng.choice([*NUMBERS, "10", None, [3]])),
        lambda: result.metrics.update(steps=rng.choice(steps)),
        lambda: result.metrics.update(round=rng.choice([0, 1, 2, 99, -1, *ANYTHING])),
        lambda: result.metrics.update({rng.choice(KEYS): rng.choice(ANYTHING)}),
        lambda: setattr(result, "metrics", rng.choice(told)),
        lambda: result.metrics.update({rng.choice(TEXTS): rng.choice(ANYTHING) for _ in range(3)}),
    ]
    rng.choice(ways)()


def spoil_status(rng: Random, result: FitRes, instruction: FitIns) -> None:
    """Say that the client failed."""
    codes: list[Any] = [Code.FIT_NOT_IMPLEMENTED, Code.GET_PARAMETERS_NOT_IMPLEMENTED, Code.OK]
    message: Any = rng.choice([*TEXTS, None])
    result.status = Status(rng.choice(codes), message)


def spoiled(rng: Random, result: FitRes, instruction: FitIns, marker: Path) -> FitRes:
    """Return a reply after some of these changes; often after none."""
    ways: list[Spoil] = [spoil_values, spoil_claims, spoil_arrays, spoil_status]
    ways.append(lambda *given: spoil_tensors(*given, marker))
    for _ in range(rng.choice([0, 1, 1, 2])):
        with suppress(Exception):  # what has been spoilt already cannot always be spoilt once more
            rng.choice(ways)(rng, result, instruction)
    return result


def evaluation(rng: Random) -> EvaluateRes:
    """Return an answer to an evaluation."""
    number: Any = rng.choice([0.5, *NUMBERS, "text", None])
    told = {rng.choice(["accuracy", "loss", *TEXTS]): rng.choice([0.5, *ANYTHING]) for _ in range(2)}
    examples: Any = rng.choice([10, *NUMBERS, "10", None])
    return EvaluateRes(Status(Code.OK, ""), number, examples, rng.choice([told, told, None]))  # type: ignore


def failures(rng: Random, name: str, result: FitRes) -> list[Any]:
    """Return failures of a round in the two forms in which Flower hands them over."""
    forms = [BaseException(), ValueError(rng.choice(TEXTS)), (name, result), KeyError(b"\xff")]
    return [rng.choice(forms) for _ in range(rng.choice([0, 0, 2]))]
