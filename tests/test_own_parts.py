"""Parts by dotted name: what is imported from where, and what is wrong with it."""

import importlib
import json
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from own_parts import METHODS, Folder, of_the_page

import sim
from clients.rules import rule_named
from fedtide.base.allowed import options_of
from fedtide.base.errors import SettingsError
from fedtide.base.specs import find
from fedtide.config import Settings
from fedtide.engine.experiment import prepare
from fedtide.engine.read_run import find_runs
from fedtide.federation import Federation
from fedtide.plan import Plan
from strategies import make

SMALL = ["--client-gpus=0", "--model=logistic", "--num-clients=4", "--num-rounds=3", "--local-steps=4"]
SMALL += ["--trace=bernoulli:p=0.7", "--cohort-size=4"]
PARTS = """
import os
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from torch import nn
from strategies import FlexibleStrategy, Options
from strategies.parts.server_optimizers import ServerOptimizer
from strategies.mimic import MimiC
from fedtide.base.contract import Rule
from traces import Trace

NUMBER = 3

def twice(learning_rate, server_round, sft, local_steps):
    return 2 * learning_rate

def factor(*, by=2.0):
    return lambda rate, *_: by * rate

def nothing(*positional, **options):
    return None

def needs(num_clients, seed, *, p: float):
    return p

class NoRound(Trace):
    pass

class Duck:
    def __init__(self, num_clients, seed, *, start: int = 9, names: "list[str] | None" = None):
        pass

class NoUpdate(FlexibleStrategy):
    options: Options

class Undecorated(FlexibleStrategy):
    class Own(Options):
        beta: float = 1.0
    options: Own
    def update(self, replies):
        pass

class Unknown(FlexibleStrategy):
    options: "Nonesuch"
    def update(self, replies):
        pass

class NoRule(FlexibleStrategy):
    options: Options
    rule = Rule("parts.Duck")
    def update(self, replies):
        pass

class Half(ServerOptimizer):
    def __init__(self, weights, *, share: float = 0.5):
        self.share = share
    def step(self, update, server_round, lag):
        return self.share * update

class Mine(MimiC):
    pass

def sizes(num_clients, num_examples, rng, *, how: str = "right"):
    return {
        "right": [2] * num_clients,
        "short": [2],
        "halves": np.full(num_clients, 0.5),
        "empty": [0] * num_clients,
        "many": [num_examples] * num_clients,
    }[how]

def positions(labels, sizes, rng, *, how: str = "right"):
    return {
        "right": [[k, k + 10] for k in range(len(sizes))],
        "few": [[1]],
        "twice": [[k, 7] for k in range(len(sizes))],
        "outside": [[k, -1] for k in range(len(sizes))],
        "real": [[0.5]] * len(sizes),
    }[how]

class Narrow(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.head = nn.Linear(3, num_classes)
    def forward(self, x):
        return self.head(x.flatten(1))

def lazy(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

class Former(MimiC):
    def on_departure(self, client, keep):
        pass

class Bare:
    pass

def duck(num_clients, seed, *, start: int = 9, names: "list[str] | None" = None):
    return Duck(num_clients, seed)

kill = partial(os.kill, 0)
kept = cache(factor)
tenfold = partial(factor, by=10.0)
"""


@pytest.fixture
def parts(own: Folder) -> Folder:
    own.write("parts.py", PARTS)
    own.write("broken.py", "\n\nimport numpy\nnumpy.nonesuch\n")
    own.write("leaves.py", "raise SystemExit(7)\n")
    own.write("syntax.py", "def f(:\n")
    own.write("lacking.py", "import nonesuch_library\n")
    return own


# Flag and name, and the key words of the line that says what is wrong.
WRONG = """
strategy parts.Former | on_departure is called no more; define members_changed
trace nonesuch.Office | there is no module 'nonesuch', neither in {here} nor
trace parts.inner.Office | there is no module 'parts.inner'
trace parts.Office | parts.py has no 'Office'; it defines twice, factor,
trace parts.NUMBER | is of type int; it must be a class or a function
trace parts.NoRound | is abstract: its class does not define round
trace parts.Duck | trace parts.Duck is a class that is not derived from traces.Trace
model parts.Duck | is a class that is not derived from torch.nn.Module
task parts.Bare | has no method federate: see fedtide.tasks.TaskSource
select parts.Duck | is a class that is not derived from strategies.Selection
server-opt parts.Duck | is a class that is not derived from strategies.Layer
lr-schedule parts.Duck | is a class that is not derived from collections.abc.Callable
partition parts.Bare | is a class that is not derived from collections.abc.Sequence
trace parts.duck | gives a Duck, not a Trace: derive it from traces.Trace and define `round`
trace parts.duck:end=9 | has no option 'end'; known: start
trace parts.duck:start=x | start is 'x'; it must be a whole number
trace parts.factor | has to be called as parts.factor(num_clients, seed, *, options): too
trace parts.needs | needs the option p: write parts.needs:p=...
trace always+parts.duck | trace parts.duck gives a Duck
trace parts. | unknown trace 'parts.'; known: always
model parts.nothing | gives a NoneType, not a Module: derive it from torch
task parts.nothing | gives a NoneType without default_partition
task parts.twice | missing a required argument: 'learning_rate'
lr-schedule parts.nothing | gives a NoneType, not a callable (learning_rate, server_round, s
lr-schedule parts.twice | parts.twice(*, options): missing a required argument
server-opt parts.nothing | gives a NoneType, not a Layer: derive it from ServerOptimizer
strategy parts.Duck | flwr.server.strategy.Strategy: derive it from one
strategy parts.NoUpdate | is abstract: its class does not define update
strategy parts.Undecorated | decorate it with @dataclass(frozen=True, kw
strategy parts.Unknown | the annotation of `options` cannot be read: name 'Nonesuch'
strategy parts.NoRule | rule parts.Duck is not derived from clients.rules.SGD
strategy parts.Mine:memory=client | derived from MimiC; for memory=client derive it from Mimi
strategy flwr.serverapp.strategy.FedAvg | for Flower's Message API: name one of flwr.server
sizes parts.sizes:how=short | gives shape (1,), not (4,)
sizes parts.sizes:how=halves | something else than whole numbers in one dimension
sizes parts.sizes:how=empty | gives 0 to 0, together 0; each must be positive, of 1438 in all
sizes parts.sizes:how=many | gives 1438 to 1438, together 5752
partition parts.positions:how=few | has 1 parts for 4 clients
partition parts.positions:how=twice | both have row 7; an example belongs to one
partition parts.positions:how=outside | client 0 has row -1, but the training
partition parts.positions:how=real | something else than whole numbers
model parts.lazy | model parts.lazy: it has lazy layers, .*; call it once, on zeros of shape (1, *input_shape)
model parts.Narrow | the model does not fit the task with .*mat1 and mat2 .* (parts.py, line 88)
trace os.kill | is of type builtin_function_or_method; it must be a class or a function, written in
task os.abort | is of type builtin_function_or_method; it must be a class or a function
strategy os.kill | is of type builtin_function_or_method
model parts.kill | is of type partial; it must be a class or a function
task tempfile.TemporaryDirectory | has no method federate
lr-schedule tempfile.TemporaryDirectory | is a class that is not derived from
cohort parts.Duck | cohort is 'parts.Duck'; choose one of auto
"""


DEFECTS = """
import numpy as np
from torch import nn

from clients.rules import SGD
from fedtide.base.contract import Rule
from strategies.fedavg import FedAvg
from traces import Always

class Method(FedAvg):
    def update(self, replies):
        if self.round == 2:
            divided(0)
        super().update(replies)

def divided(by):
    return 1 / by

class Shape(FedAvg):
    def setup(self):
        self.weights = np.add(self.weights, np.zeros(3))

class Lost(Always):
    def round(self, t):
        return super().round([t][t > 1])

class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.body = nn.Flatten()
        self.head = nn.Linear(64, classes)

class Steps(SGD):
    def step(self, *_):
        raise ValueError("no step")

class InClients(FedAvg):
    rule = Rule("defects.Steps")

def trace(num_clients, seed, *, p: float = 2.0):
    raise ValueError(f"p is {p}")

def task():
    return {}["no key"]

def schedule():
    return lambda rate, server_round, *_: rate / (server_round - 2)

def partition(labels, sizes, rng):
    return labels[10**9]

class Writes(FedAvg):
    def update(self, replies):
        open("nowhere/at/all", "wb")
"""
RESULTS = """
import numpy as np

from clients.rules import SGD
from fedtide.base.contract import Rule
from strategies import Selection
from strategies.fedavg import FedAvg
from traces import Always, RoundAvailability

class Returns(FedAvg):
    def update(self, replies):
        return self.weights + replies.weighted_sum(replies.mean_coefficients("n"))

class Shorter(FedAvg):
    def update(self, replies):
        self.weights = self.weights[:-1]

class Listed(FedAvg):
    def update(self, replies):
        self.weights = [None, *self.weights[1:]]

class Steps(SGD):
    def step(self, y, gradient, rate):
        return y - rate * gradient(y)

class InClients(FedAvg):
    rule = Rule("results.Steps")

class Beyond(FedAvg):
    def select(self, available):
        return [0, 99]

class Nobody(FedAvg):
    def select(self, available):
        return None

class All(Selection):
    def choose(self, eligible, count, server_round, rng):
        return eligible

class Twice(Selection):
    def choose(self, eligible, count, server_round, rng):
        return [0, 0]

class Some(Selection):
    def choose(self, eligible, count, server_round, rng):
        return {3, 1}

class Nothing(Always):
    def round(self, t):
        return None

class Short(Always):
    def round(self, t):
        return RoundAvailability(np.ones(4, bool), np.ones(3, bool), np.ones(4))

class Halves(Always):
    def round(self, t):
        return RoundAvailability(np.ones(4, bool), np.full(4, 0.5), np.ones(4))

class Twofold(Always):
    def round(self, t):
        return RoundAvailability(np.ones(4, bool), np.ones(4, bool), np.full(4, 2))

class Lists(Always):
    def round(self, t):
        return [True] * 4, [1] * 4, [1.0] * 4

def schedule():
    return lambda *_: None
"""
# A setting, and what the last line says after the name of the program.
OF_DEFECTS = """
strategy=defects.Method | defects.Method.update: ZeroDivisionError: division by zero (defects.py, line 17)
strategy=defects.Shape | defects.Shape.setup: ValueError: operands .* (defects.py, line 21)
strategy=defects.InClients | defects.Steps.step: ValueError: no step (defects.py, line 35)
trace=defects.Lost | defects.Lost.round: IndexError: list index out of range (defects.py, line 25)
trace=defects.trace | defects.trace: ValueError: p is 2.0 (defects.py, line 41)
model=defects.Net | defects.Net.__init__: NameError: name 'classes' is not defined (defects.py, line 31)
task=defects.task | defects.task: KeyError: 'no key' (defects.py, line 44)
lr-schedule=defects.schedule | defects.schedule.<locals>.<lambda>: ZeroDivisionError: .* (defects.py, line 47)
strategy=defects.Writes | defects.Writes.update: FileNotFoundError: .* (defects.py, line 54)
partition=defects.partition | defects.partition: IndexError: .* (defects.py, line 50)
strategy=results.Returns | results.Returns.update returns something; it has to change self.weights in .*
strategy=results.Shorter | .*.update leaves float64 of shape (649,) as self.weights, not 650 .*
strategy=results.Listed | .*.update leaves object of shape (650,) as .*
strategy=results.InClients | results.Steps.step returns something; it has to change y in place and return .*
strategy=results.Beyond | results.Beyond.select chooses client 99 more than once, or while it .*
strategy=results.Nobody | results.Nobody.select returns something else than indices of clients .*
select=results.All --clients-per-round=2 | results.All.choose chooses 4 clients of at most 2 .*
select=results.Twice --clients-per-round=2 | results.Twice.choose chooses client 0 more than once, or .*
trace=results.Nothing | results.Nothing.round returns something else than a RoundAvailability (res.*
trace=always+results.Short | results.Short.round gives online of shape (3,), not (4,) .*
trace=results.Halves | results.Halves.round gives member or online that is not True or False .*
trace=results.Twofold | results.Twofold.round gives a completion outside 0..1 .*
lr-schedule=results.schedule | results.schedule.<locals>.<lambda> gives None, not a learning rate .*
trace=broken.Office | broken.<module>: AttributeError: .*nonesuch.* (broken.py, line 4)
trace=leaves.Office | importing leaves ends the program: SystemExit: 7 (leaves.py, line 1)
trace=syntax.Office | syntax: SyntaxError: invalid syntax (syntax.py, line 1)
trace=lacking.Office | lacking.<module>: ModuleNotFoundError: .*nonesuch_library.* (lacking.py, line 1)
"""


@pytest.mark.parametrize("line", OF_DEFECTS.strip().splitlines(), ids=lambda line: line.partition(" | ")[0])
def test_a_defect_keeps_its_traceback_and_is_told_in_one_line(parts: Folder, line: str, capsys: Any) -> None:
    """Exit code 1: while a part is prepared, in a round, and in clients, of which none has ever trained."""
    parts.write("defects.py", DEFECTS)
    parts.write("results.py", RESULTS)
    named, _, says = line.partition(" | ")
    flags = ["--client-gpus=0", "--model=logistic", "--num-clients=4", "--num-rounds=3", "--trace=always"]
    with pytest.raises(SystemExit, match="1"):
        sim.main([*flags, "--engine=inline", *f"--{named}".split()])
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert re.search(": " + ".*".join(map(re.escape, says.split(".*"))) + "$", last)
    for summary in parts.path.glob("runs/*/summary.json"):  # the run had begun
        assert last.endswith(json.loads(summary.read_text())["failed"])


def test_lists_sets_and_tuples_do_where_their_meaning_is_plain(parts: Folder, simulate: Any) -> None:
    parts.write("results.py", RESULTS)
    chosen = {"trace": "results.Lists", "select": "results.Some", "clients_per_round": 2, "num_clients": 4}
    assert simulate(**chosen).records[1]["active"] == [1, 3]


@pytest.mark.slow
def test_a_defect_on_ray_and_in_the_cells_of_a_comparison(parts: Folder) -> None:
    """The other cells are finished; in a worker it is the traceback of the client."""
    parts.write("defects.py", DEFECTS)
    call = [sys.executable, sim.__file__, *SMALL, "--num-workers=2", "--json", "--no-report"]
    several = ["--strategy", "defects.Method", "defects.Shape", "fedavg", "--seed", "0", "1"]
    done = subprocess.run([*call, *several], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    failed = json.loads(done.stdout.splitlines()[-1])["failed"]
    assert {key: reason.partition(":")[0] for key, reason in failed.items()} == {
        f"defects.{name} seed {seed}": f"defects.{name}.{where}"
        for name, where in (("Method", "update"), ("Shape", "setup"))
        for seed in (0, 1)
    }
    assert done.stderr.count("Traceback (most recent call last):") == 2  # once for each defect
    single = ["--engine=ray", "--strategy=defects.InClients"]
    done = subprocess.run([*call, *single], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert 'defects.py", line 35, in step' in done.stderr
    assert done.stderr.endswith("error: defects.Steps.step: ValueError: no step (defects.py, line 35)\n")


@pytest.mark.parametrize("line", WRONG.strip().splitlines(), ids=lambda line: line.partition(" | ")[0])
def test_what_is_wrong_is_said_in_one_line(parts: Folder, line: str, capsys: Any) -> None:
    named, _, says = line.partition(" | ")
    with pytest.raises(SystemExit, match="2"):
        sim.main([*SMALL, "--engine=inline", *f"--{named}".split()])
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    for text in says.format(here=parts.path).split(".*"):
        assert text in shown
    assert not (parts.path / "runs").exists()


def test_a_comparison_checks_all_names_before_it_runs(parts: Folder, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        sim.main([*SMALL, "--task", "digits", "parts.Digits"])
    assert "has no 'Digits'" in capsys.readouterr().err
    assert not (parts.path / "runs").exists()


def test_parts_of_ones_own(parts: Folder) -> None:
    """Their options are the keyword-only parameters of simple types; without annotation, of the default's."""
    duck, factor = find("trace", {}, "parts.duck"), find("lr-schedule", {}, "parts.factor")
    assert {key: option.kind for key, option in options_of(duck).items()} == {"start": int}
    assert {key: option.kind for key, option in options_of(factor).items()} == {"by": float}
    named = {"lr_schedule": "parts.factor:by=3", "server_opt": "parts.Half:share=0.1"}
    settings = Settings(partition="parts.positions", sizes="parts.sizes", num_clients=4, **named)
    assert Federation.of(settings).data.sizes.tolist() == [2, 2, 2, 2]
    options = Plan.of(settings).options
    assert options.lr_schedule(0.5, 1, 0, 10) == 1.5
    (layer,) = options.layers
    for name, rate in (("kept", 2.0), ("tenfold", 10.0)):
        assert Plan.of(Settings(lr_schedule=f"parts.{name}")).options.lr_schedule(1.0, 1, 0, 10) == rate
    np.testing.assert_allclose(layer(np.zeros(2)).apply(np.zeros(2), np.ones(2), 1, 0), 0.1)


def test_the_environment_goes_after_the_working_directory_and_that_after_the_program(own: Folder) -> None:
    """A module called like one of Python's own; and one that the folder of sim.py has as well."""
    own.write("this.py", "def zen(*, beauty: float = 1.0):\n    return 'mine'\n")
    own.write("sim.py", "main = dict\n")
    assert find("task", {}, "this.zen")() == "mine"
    assert find("strategy", {}, "sim.main") is sim.main


HIDING = {"clients.py": "", "strategies/__init__.py": "", "traces/__init__.py": "class Office: pass"}


@pytest.mark.parametrize("file", HIDING)
def test_who_hides_a_package_of_ours_or_is_hidden_by_it_is_told(own: Folder, file: str, capsys: Any) -> None:
    """A folder without __init__.py hides nothing."""
    (path := own.path / file).parent.mkdir(exist_ok=True)
    name, hiding = file.partition("/")[0].removesuffix(".py"), own.path / file.partition("/")[0]
    call = [sys.executable, "-m", "fedtide", "--list", "--trace", "always"]
    if path.parent != own.path:
        assert subprocess.run(call, capture_output=True, check=False).returncode == 0
    path.write_text(HIDING[file])
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"ImportError: {hiding} hides the package {name!r} of fedtide: rename it")
    with pytest.raises(SystemExit, match="2"):  # sim.py is beside ours
        sim.main([*SMALL, f"--trace={name}.Office"])
    assert f"as {name} is a package of fedtide: rename {hiding}" in capsys.readouterr().err


def test_who_hides_a_package_of_ours_from_workers_is_told(own: Folder, capsys: Any) -> None:
    """Ray's workers look into the working directory first."""
    own.write("clients.py", "")
    for several in (["--engine=ray"], ["--seed", "0", "1"]):
        with pytest.raises(SystemExit, match="2"):
            sim.main([*SMALL, "--num-workers=2", *several])
        line = f"{own.path / 'clients.py'} hides the package 'clients' of fedtide: rename it, or take "
        assert line in capsys.readouterr().err


def test_list_shows_what_is_named(own: Folder, capsys: Any) -> None:
    own.write("my_methods.py", METHODS)
    named = ["--strategy", "my_methods.Momentum:beta=0.1", "fedavg", "--trace", "always+phones"]
    assert sim.main(["--list", *named]) == 0
    shown = capsys.readouterr().out
    names = [line.strip() for line in shown.splitlines() if line.startswith("  ") and line[2] != " "]
    assert names == ["my_methods.Momentum", "fedavg", "always", "phones"]
    assert "Momentum at the server" in shown
    assert "beta=0.9  from 0 to 1" in shown
    assert sim.main(["--list", "--strategy", "flwr.server.strategy.FedProx"]) == 0
    assert "proximal-mu=" in capsys.readouterr().out


def test_a_method_with_a_rule_of_its_own(own: Folder, simulate: Any) -> None:
    """Without momentum and with a limit that no gradient reaches it is FedAvg."""
    own.write("my_methods.py", METHODS)
    plain = simulate(strategy="fedavg")
    same = simulate(strategy="my_methods.Momentum:beta=0,clip=1000")
    np.testing.assert_allclose(same.weights, plain.weights, rtol=1e-5, atol=1e-7)
    start = plain.experiment.initial.vector
    short = simulate(strategy="my_methods.Momentum:beta=0,clip=0.001", num_rounds=1, trace="always")
    moved = np.linalg.norm(short.weights - start)
    assert 0 < moved <= 4 * 0.2 * 0.001 * 1.001  # local steps, rate, limit
    momentum = simulate(strategy="my_methods.Momentum:beta=0.5,clip=1000", trace="always", num_rounds=2)
    first, second = (simulate(strategy="fedavg", trace="always", num_rounds=t).weights for t in (1, 2))
    assert np.abs(momentum.weights - second).max() > 0.1 * np.abs(second - first).max()


def test_make_takes_the_class_of_a_method(own: Folder) -> None:
    own.write("my_methods.py", METHODS)
    strategy = find("strategy", {}, "my_methods.Momentum")
    initial = prepare(
        Plan.of(Settings(num_clients=4, engine="inline", model="logistic", cohort_size=4))
    ).initial
    assert make(strategy, initial, beta=0.25).options.beta == 0.25
    with pytest.raises(ValueError, match=r"Momentum has no option 'gamma'; known: .*beta"):
        make(strategy, initial, gamma=1)
    assert rule_named("my_methods.Clipped") is sys.modules["my_methods"].Clipped


def test_a_run_knows_the_code_that_it_ran(own: Folder, capsys: Any) -> None:
    """A comparison trains anew what has been changed since; to list run folders imports nothing."""
    own.write("my_methods.py", METHODS)
    command = [*SMALL, "--run-dir=runs", "--num-workers=1", "--strategy", "my_methods.Momentum", "fedavg"]
    times = []
    for change in ("", "", "# another comment\n"):
        own.write("my_methods.py", METHODS + change)
        assert sim.main(command) == 0
        cells = sorted((own.path / "runs" / "cells").iterdir())
        times.append([cell.stat().st_mtime_ns for cell in cells])
    (fedavg, mine), same, (kept, anew) = times
    assert same == [fedavg, mine]
    assert (kept, anew > mine) == (fedavg, True)
    names = [*Plan.of(Settings(strategy="my_methods.Momentum")).sources]
    assert names == ["my_methods.Clipped", "my_methods.Momentum"]
    own.write("my_methods.py", "raise SystemExit")
    assert len(find_runs(own.path / "runs" / "cells")) == 2


FILES = {
    "log.csv": {"trace": "watch.office"},  # its default
    "office.csv": {"trace": "always+watch.office:log=office.csv"},
    "watch.py": {"trace": "watch.office"},
    "reading.py": {"trace": "watch.office"},
    "kit/__init__.py": {"trace": "watch.office"},
    "kit/inner/lines.py": {"trace": "watch.office"},
    "vectors.txt": {"task": "sentiment140:glove=vectors.txt"},
    "rows.json": {"partition": "indices:file=rows.json"},
    "data/train/rows.arrow": {"task": "hf:data,label=digit"},
    "there/rows.arrow": {"task": "hf:linked"},
    "logs/a+b/1.csv": {"trace": "recorded:file=logs/a+b+bernoulli:p=0.5"},
    "table/rows.bin": {"strategy": "mifa", "option": ("table-folder=table",)},
}


@pytest.mark.parametrize("name", FILES)
def test_every_file_that_a_run_depends_on_is_recognised_by_its_content(own: Folder, name: str) -> None:
    """Of code also what it imports, wherever in it; size and time of a file say nothing."""
    (own.path / "linked").symlink_to("there")
    for file in FILES:
        (own.path / file).parent.mkdir(parents=True, exist_ok=True)
        own.write(file, "# 1")
    office = "def office(num_clients, seed, *, log: str = 'log.csv'): ..."
    own.write("watch.py", f"import time, reading\n{office}\n# 1")
    own.write("reading.py", "def lines():\n    from kit.inner import lines\n# 1")
    settings = Settings(**FILES[name])
    before, times = Plan.of(settings).sources, (own.path / name).stat()
    assert before == Plan.of(settings).sources
    text = (own.path / name).read_text()
    own.write(name, f"{text[:-1]}2")
    os.utime(own.path / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = Plan.of(settings).sources
    assert after.keys() == before.keys()
    assert after != before
    own.write(name, text)
    assert Plan.of(settings).sources == before


def test_code_that_has_changed_since_it_was_imported_is_refused(own: Folder) -> None:
    own.write("parts.py", PARTS)
    settings = Settings(lr_schedule="parts.factor")
    Plan.of(settings).sources
    (own.path / "parts.py").write_text(PARTS.replace("by=2.0", "by=3.0"))
    with pytest.raises(SettingsError, match=r"parts\.factor: its code has changed since it was imported"):
        Plan.of(settings).sources
    importlib.reload(sys.modules["parts"])
    assert Plan.of(settings).sources


@pytest.mark.slow
def test_the_workers_of_a_comparison_find_what_the_driver_found(own: Folder) -> None:
    """The method, its rule and a model from the working directory of a process of its own."""
    own.write("my_methods.py", METHODS)
    own.write("my_model.py", of_the_page("my_model.py"))
    named = [*SMALL, "--strategy=my_methods.Momentum", "--model=my_model.Net:width=8"]
    assert sim.main([*named, "--engine=inline", "--run-dir=inline"]) == 0
    call = [sys.executable, sim.__file__, *named, "--run-dir=runs", "--json", "--seed", "0", "1"]
    done = subprocess.run([*call, "--num-workers=2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["failed"] == {}
    alone, compared = (
        json.loads(next(own.path.glob(f"{folder}/summary.json")).read_text())
        for folder in ("inline/*", "runs/cells/*seed0*")
    )
    assert compared["weights_sha256"] == alone["weights_sha256"]
