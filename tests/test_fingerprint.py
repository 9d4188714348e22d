"""Digits that stand for objects: two that differ in anything never have the same; unknown ones have none."""

import collections
import dataclasses
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import fedtide
from fedtide.base.fingerprint import fingerprint
from strategies.fedavg import FedAvg
from traces import Always

RATE: Any = 1
TABLE = {"rates": [1, 2]}


def reads_globals() -> Any:
    def inner() -> Any:
        return [x * RATE for x in TABLE["rates"]]

    return inner


def through_others() -> Any:
    return reads_globals()


class Base:
    def f(self) -> Any:
        return RATE


class Derived(Base):
    pass


class Slots:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    a: Any


class Leaves:
    """Leaves out what it has when it is pickled."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def __getstate__(self) -> Any:
        return {}


def local_class(width: int) -> type:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(width, 2)

    return Net


def cyclic(a: Any) -> Any:
    one = SimpleNamespace(a=a)
    one.itself, one.others = one, [one]
    return one


def nested(depth: int) -> Any:
    value: Any = depth
    for _ in range(5000):
        value = [value]
    return value


def module(scale: float) -> nn.Module:
    made = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(scale)
    return made


def wrapped(factor: float) -> Any:
    @functools.wraps(np.sum)
    def inner(x: Any) -> Any:
        return factor * np.sum(x)

    return inner


def with_rate(value: Any, make: Callable[[], Any]) -> str | None:
    """Return the digits of something while a global has another value."""
    global RATE
    before, RATE = RATE, value
    try:
        return fingerprint(make())
    finally:
        RATE = before


PAIRS: dict[str, Callable[[Any], Any]] = {
    "closure": lambda a: lambda: a,
    "default": lambda a: eval(f"lambda x={a}: x"),
    "keyword default": lambda a: eval(f"lambda *, x={a}: x"),
    "constant": lambda a: eval(f"lambda: {a}"),
    "nested constant": lambda a: eval(f"lambda: [(lambda: {a}) for _ in range(3)]"),
    "constant in a set": lambda a: eval(f"lambda x: x in {{'a', 'b', {a}}}"),
    "class in a closure": local_class,
    "function attribute": lambda a: [f := lambda: 0, setattr(f, "a", a)],
    "partial": lambda a: functools.partial(print, a),
    "partial of keywords": lambda a: functools.partial(dict, a=a),
    "bound method": lambda a: SimpleNamespace(a=a).__eq__,
    "method of an own class": lambda a: Data(a).__repr__,
    "slots": Slots,
    "dataclass with slots": Data,
    "cycle": cyclic,
    "deep": nested,
    "array": lambda a: np.array([0, a]),
    "type of an array": lambda a: np.zeros(3, [np.float32, np.float64][a - 1]),
    "array of objects": lambda a: np.array([{"a": a}, None], object),
    "masked array": lambda a: np.ma.masked_array([1, 2, 3], [a == 1, 0, 0]),
    "number of NumPy": np.float32,
    "generator": np.random.default_rng,
    "set": lambda a: {"a", "b", "c", a},
    "order of a dict": lambda a: dict.fromkeys(["ab", "ba"][a - 1]),
    "default dict": lambda a: collections.defaultdict([list, dict][a - 1]),
    "deque": lambda a: collections.deque([1, 2, 3], a + 3),
    "named tuple": lambda a: collections.namedtuple("Own", "a")(a),
    "frame": lambda a: pandas.DataFrame({"x": [1, a], "y": ["a", "b"]}),
    "name of a column": lambda a: pandas.DataFrame({f"x{a}": [1]}),
    "series": lambda a: pandas.Series([1.0, a], index=[3, 4]),
    "tensor": lambda a: torch.tensor([1, a]),
    "bfloat16": lambda a: torch.tensor([1.0, a], dtype=torch.bfloat16),
    "type of a tensor": lambda a: torch.zeros(2, dtype=[torch.float16, torch.bfloat16][a - 1]),
    "parameters of a model": module,
    "training mode": lambda a: module(1).train(a == 1),
    "hook of a model": lambda a: [m := module(1), m.register_forward_hook(lambda m, x, y: y * a)],
    "decorated": lambda a: torch.no_grad()(lambda: a),
    "wrapped": wrapped,
    "cached": lambda a: functools.cache(lambda: a),
    "pattern": lambda a: __import__("re").compile("x" * 300 + str(a)),
    "path": lambda a: Path(f"{a}"),
    "annotated": lambda a: [list[int], dict[str, int] | None][a - 1],
    "task": lambda a: fedtide.Task.from_arrays(np.eye(4), [0, 1, 1, a - 1], clients=[0, 0, 1, 1]),
    "strategy": lambda a: type("Own", (FedAvg,), {"f": lambda self: a}),
    "trace": lambda a: Always(a, 0),
}
UNKNOWN: dict[str, Callable[[], Any]] = {
    "lock": threading.Lock,
    "generator": lambda: (x for x in [1]),
    "leaves something out": lambda: Leaves(1),
    "weak reference": lambda: __import__("weakref").ref(Slots),
    "eval": lambda: lambda: eval("RATE"),
    "hook of a tensor": lambda: [t := torch.zeros(2, requires_grad=True), t.register_hook(lambda g: g)],
    "file": lambda: open(os.devnull),  # noqa: SIM115
}


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
def test_whatever_differs_has_other_digits(make: Callable[[Any], Any]) -> None:
    one, again, other = (fingerprint(make(a)) for a in (1, 1, 2))
    assert one is not None
    assert other not in (None, one)
    if make is not PAIRS["hook of a model"]:  # PyTorch numbers them
        assert again == one


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_unknown_has_none(make: Callable[[], Any]) -> None:
    assert fingerprint(make()) is None
    assert fingerprint({"a": [make()]}) is None


@pytest.mark.parametrize(
    "make", [reads_globals, lambda: reads_globals, lambda: through_others, lambda: Derived, Derived]
)
def test_globals_that_the_code_names_count(make: Callable[[], Any]) -> None:
    assert with_rate(1, make) == with_rate(1, make)
    assert with_rate(1, make) != with_rate(2, make)
    assert with_rate(1, make) != with_rate(np.arange(3), make)
    assert with_rate(threading.Lock(), make) is None


def test_modules_and_files_that_the_code_names_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("helping.py").write_text("import threading\nLOCK = threading.Lock()\nRATE = 1\nOTHER = 2\n")
    Path("data.csv").write_text("1")

    def use() -> Any:
        import helping

        return helping.RATE, open("data.csv")

    first = fingerprint(use)
    import helping

    helping.OTHER = 3  # which the code does not name
    assert fingerprint(use) == first is not None
    helping.RATE = 2
    second = fingerprint(use)
    Path("data.csv").write_text("2")
    assert len({first, second, fingerprint(use)} - {None}) == 3


HELPING = """
from os import environ
import importlib as loader
import deep.inner
class Small:
    rate = {}
"""
BY_NAME = (
    ("import helping", "helping.Small"),
    ("import helping", "helping.deep.inner.RATE, helping.Small.rate"),
    ("import helping", "[helping.Small for _ in range(2)], (lambda: helping.Small)()"),
    (
        "import helping",
        "os.path.join('a', 'b'), getattr(nn, 'ReLU')().eval(), helping.Small()",
    ),
    ("import helping as h, deep.inner", "deep.inner.RATE, h.Small"),
    ("import helping, deep.inner as d", "d.RATE, [*nn.ReLU().modules()], helping.Small()"),
    ("from helping import Small, deep", "Small(), deep.inner.RATE"),
    ("from deep import inner; from helping import Small as S", "S, inner.RATE"),
)
OTHERWISE = (
    ("import helping", "getattr(helping, 'Small')"),
    ("import helping", "vars(helping)['Small']"),
    ("import helping", "helping.__dict__['Small']"),
    ("import helping", "operator.attrgetter('Small')(helping)"),
    ("import helping", "(lambda m: m.Small)(helping)"),
    ("import helping", "[m.Small for m in [helping]]"),
    ("import helping", "(lambda: getattr(helping, 'Small'))()"),
    ("import helping", "getattr(helping.deep.inner, 'RATE')"),
    ("import helping as h", "getattr(h, 'Small')"),
    ("import deep.inner", "getattr(deep, 'inner').RATE"),
    ("import deep.inner as d", "getattr(d, 'RATE')"),
    ("from helping import deep", "getattr(deep.inner, 'RATE')"),
    ("import helping", "helping.loader.import_module('deep.inner')"),
    ("import helping", "reads.__globals__['Small']"),
    ("import importlib", "importlib.import_module('helping').Small"),
    ("from importlib import import_module as load", "load('helping').Small"),
    ("import pkgutil", "pkgutil.resolve_name('helping.Small')"),
    ("import sys", "sys.modules['helping'].Small"),
    ("import os", "__import__('helping').Small"),
    ("import os", "os.environ['X']"),
    ("import os", "os.getenv('X')"),
    ("import helping", "helping.environ['X']"),
    ("from os import environ", "environ['X']"),
)


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """Returns those of a function that takes something of the user's modules."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/__init__.py").touch()
    (tmp_path / "deep/inner.py").write_text("RATE = 1")

    def made(imports: str, reads: str, within: bool, rate: int = 1) -> str | None:
        (tmp_path / "helping.py").write_text(HELPING.format(rate))
        for name in ("helping", "deep", "deep.inner"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        content: dict[str, Any] = {}
        exec("import operator, os\nfrom torch import nn", content)
        code = (
            f"def reads():\n    {imports}\n    return {reads}"
            if within
            else f"{imports}\ndef reads():\n    return {reads}"
        )
        exec(code, content)
        return fingerprint(content["reads"])

    return made


@pytest.mark.parametrize(("imports", "reads"), BY_NAME)
@pytest.mark.parametrize("within", [True, False])
def test_what_code_takes_of_a_module_by_name_counts(
    imports: str, reads: str, within: bool, digits: Callable[..., str | None]
) -> None:
    """Whether it imports the module itself or not."""
    first, again, other = (digits(imports, reads, within, rate) for rate in (1, 1, 2))
    assert again == first is not None
    assert other not in (None, first)


@pytest.mark.parametrize(("imports", "reads"), OTHERWISE)
@pytest.mark.parametrize("within", [True, False])
def test_code_that_may_take_anything_of_a_module_is_unknown(
    imports: str, reads: str, within: bool, digits: Callable[..., str | None]
) -> None:
    assert digits(imports, reads, within) is None


def test_they_are_the_same_in_every_process(tmp_path: Path) -> None:
    """Also where a module comes from its compiled file; texts have other hashes there, sets another order."""
    names = (
        "closure,partial,set,constant in a set,frame,parameters of a model,strategy,task,class in a closure"
    )
    code = (
        "import test_fingerprint as t, fedtide.base.fingerprint as f; "
        f"print([f.fingerprint(t.PAIRS[name](1)) for name in {names!r}.split(',')])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    environment |= {"PYTHONPYCACHEPREFIX": str(tmp_path)}
    runs = [
        subprocess.check_output(
            [sys.executable, "-c", code], env={**environment, "PYTHONHASHSEED": str(seed)}
        )
        for seed in (1, 2)
    ]
    assert runs[0] == runs[1]
    assert b"None" not in runs[0]
