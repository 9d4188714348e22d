import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from flower import installation
from numpy.typing import NDArray
from own_parts import Folder

from fedtide.plan import Plan

# Flower sends no telemetry and installs no packages during tests.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
# Ray must not patch builtins.print, which a test of untrusted pickles names.
os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Flower's Ray workers (ours have it anyway) would get 3 % of a core next to another busy test.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Hundreds of processes would compile this project again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Threads of several test processes on the same cores wait for each other in every operation.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadlines: a busy machine is not a failure. CI draws the same examples every time.
FIXTURES = [hypothesis.HealthCheck.function_scoped_fixture]  # a folder that all examples of a test share
hypothesis.settings.register_profile("explore", deadline=None, suppress_health_check=FIXTURES)
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("explore"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "explore")

TESTS = Path(__file__).parent
LONGEST = ["flower", "test_deploy", "ray_cluster", "test_wheel", "shared_flower", "test_readme"]  # groups

# Settings of a run that takes a fraction of a second.
SMALL: dict[str, Any] = {
    "model": "logistic",
    "num_clients": 6,
    "num_rounds": 3,
    "local_steps": 4,
    "batch_size": 5,
    "engine": "inline",
    "client_gpus": 0.0,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="append", help="file of golden trajectories to check, not ours")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests together that share what takes long to make, and begin with the longest.

    Tests that begin processes of Flower run one after the other.
    """
    for item in items:
        used = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
        if shared := {"shared_flower", "ray_cluster"} & used.keys():
            item.add_marker(pytest.mark.xdist_group(min(shared)))
        elif any(made.scope == "module" for several in used.values() for made in several):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        elif "flower" in used:
            item.add_marker(pytest.mark.xdist_group("flower"))

    def begins(item: pytest.Item) -> tuple[int, bool]:
        groups = [mark.args[0] for mark in item.iter_markers("xdist_group")]
        longest = min((LONGEST.index(group) for group in groups if group in LONGEST), default=len(LONGEST))
        return longest, item.get_closest_marker("slow") is None

    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=begins)


MODULES: list[Path] = []  # the one whose tests this process runs


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the garbage collector leave alone what is imported by now: each run would scan all of it.

    So would Flower, which collects garbage for every array that it converts.
    """
    if item.path not in MODULES:
        MODULES[:] = [item.path]
        gc.collect()
        gc.freeze()


@dataclass
class Run:
    """A run without a run folder: its experiment, its server, and the records of its rounds."""

    experiment: Any
    server: Any
    history: Any
    records: list[dict[str, Any]]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The records of the training rounds, without round 0."""
        return self.records[1:]

    @property
    def weights(self) -> NDArray[Any]:
        """The final global weights, shape (M,)."""
        from flwr.common import parameters_to_ndarrays

        return np.concatenate([a.ravel() for a in parameters_to_ndarrays(self.server.parameters)])


@pytest.fixture(scope="session")
def simulate() -> Callable[..., Run]:
    """Return a function that runs the settings SMALL, as changed by keywords.

    `wrap` replaces the clients' data, `stock` makes a strategy of Flower's own, `trace` may be an object.
    """
    from fedtide.config import Settings
    from fedtide.engine.availability import TraceClientManager
    from fedtide.engine.event_clock import make_clock
    from fedtide.engine.experiment import prepare
    from fedtide.engine.run import virtual_transport
    from fedtide.engine.server import RoundServer

    def run(
        wrap: Callable[[Any], Any] = lambda data: data,
        stock: Callable[[Any], Any] | None = None,
        trace: Any = "pools:first=8",
        **changes: Any,
    ) -> Run:
        spec = trace if isinstance(trace, str) else "always"
        settings = Settings(**{**SMALL, "trace": spec, **changes})
        experiment = prepare(Plan.of(settings))
        trace = experiment.trace if isinstance(trace, str) else trace
        clock = make_clock(trace, settings.round_ends)
        experiment.plan.data = wrap(experiment.data)
        experiment = replace(experiment, trace=trace, clock=clock)
        transport = virtual_transport(experiment)
        records: list[dict[str, Any]] = []
        try:
            manager = TraceClientManager(clock.round, transport, settings.seed)
            strategy = stock(experiment) if stock else experiment.strategy
            server = RoundServer(strategy, manager, settings.evaluate_every, [records.append], clock)
            history, _ = server.fit(settings.num_rounds)
        finally:
            transport.close()
        return Run(experiment, server, history, records)

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a file and returns its path."""

    def make(content: str | bytes, name: str = "data") -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return make


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """An empty working directory for parts of one's own; afterwards what was imported is forgotten."""
    folder = Folder(tmp_path / "own")
    monkeypatch.chdir(folder.path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    folder.forget()


@pytest.fixture(autouse=True)
def whole_tracebacks() -> Iterator[None]:
    """Show all of a traceback: what `flwr run` calls cuts them, for its own process."""
    yield
    vars(sys).pop("tracebacklimit", None)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One Ray instance for all tests; its actors can import test modules."""
    import ray

    with pytest.MonkeyPatch.context() as environment:  # which the workers inherit
        environment.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent), str(TESTS)]))
        ray.init(
            "local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    yield
    ray.shutdown()


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment variables of a separate Flower installation; its processes are ended afterwards."""
    with installation(tmp_path / "flower-home") as env:
        yield env


@pytest.fixture(scope="session")
def shared_flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same for all tests that do simulations with `flwr run`: they share its SuperLink."""
    with installation(tmp_path_factory.mktemp("flower") / "home") as env:
        yield env


@pytest.fixture
def federation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Nodes behind Flower's own Grid, see grid_nodes.py, that are looked for more often than others."""
    from grid_nodes import Federation
    from message_grid import identify

    from fedtide.devices import grid

    for name, seconds in (("POLL", 0.01), ("LOOK", 0.05), ("GRACE", 0.2)):
        monkeypatch.setattr(grid, f"{name}_SECONDS", seconds)
    made = Federation()
    identify(monkeypatch, made.grid.run.run_id, made.grid.node.node_id)
    yield made
    made.close()
