"""Starts Ray on this machine, or connects to a cluster, whose nodes have to have the same packages."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray._private.services import get_ray_address_from_environment
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedtide import check_not_hidden
from fedtide.base.dotted import modules_here
from fedtide.base.errors import SettingsError
from fedtide.base.wording import ends
from fedtide.engine.transports.base import EngineLost
from fedtide.engine.transports.ray.leftovers import end_session, lock_session, remove_leftovers

ROOT = str(Path(__file__).parents[4])  # the folder that workers import this project from
# What is sent of it to other machines; the last two have the version, of a checkout and of an installation.
SENT = ("clients", "fedtide", "strategies", "traces", "pyproject.toml", "fedtide-*.dist-info")
PACKAGES = ("flwr", "torch", "torchvision", "numpy", "numba", "scikit-learn")  # Ray checks Python and itself
PATIENCE = 30.0  # seconds in which nodes usually have unpacked the code and started a process


def check_address(address: str) -> None:
    """Raise an error if nothing listens at HOST:PORT; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise SettingsError("expected HOST:PORT or auto")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


class Nodes:
    """The nodes that have cores, each of which is asked once for the versions of its packages.

    They have to be those of this machine: bits would depend on who trains where.
    """

    def __init__(self) -> None:
        self._read = _reader()
        self._here = self._read()
        self._addresses: dict[str, str] = {}  # of those that have been asked, by ID
        self._asked: dict[Any, str] = {}  # IDs of those that have not answered yet, by Ray's reference
        self.resources: Mapping[str, float] = {}
        self.check(PATIENCE)

    def check(self, patience: float = 0.0) -> None:
        """Look who is there, and compare the answers that come in time, the others in a later call.

        EngineLost: a node has other packages, or cannot start a process.
        """
        there = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        self.resources = sum((Counter(node["Resources"]) for node in there), Counter())
        for node in there:
            if (name := node["NodeID"]) not in self._addresses:
                self._addresses[name] = node["NodeManagerAddress"]
                on_it = NodeAffinitySchedulingStrategy(name, soft=False)
                asked = ray.remote(num_cpus=0, scheduling_strategy=on_it)(self._read).remote()
                self._asked[asked] = name
        if self._asked:
            answers, _ = ray.wait([*self._asked], num_returns=len(self._asked), timeout=patience)
            for answer in answers:
                self._compare(self._addresses[self._asked.pop(answer)], answer)

    def _compare(self, address: str, answer: Any) -> None:
        try:
            found = ray.get(answer)
        except RayError as error:
            raise EngineLost(f"node {address} cannot start a process: {ends(error)}") from error
        for name, here in self._here.items():
            if (has := found.get(name)) != here:
                has = f"{name} {has}" if has else f"no {name}"
                same = "install the same on all machines"
                raise EngineLost(f"node {address} has {has}, this machine {name} {here}: {same}")


def _reader() -> Callable[[], Mapping[str, str]]:
    """Return a function that reads the versions of the packages, without what follows a plus (+cpu).

    Being a local one, Ray sends it as it is: a node without Flower could not import it from this module.
    """

    def read() -> Mapping[str, str]:
        found = {}
        for name in PACKAGES:
            with suppress(PackageNotFoundError):
                found[name] = version(name).partition("+")[0]
        return found

    return read


class RunningRay(NamedTuple):
    """A Ray that `start_ray` has started, or connected to."""

    leftovers: list[str]  # of killed processes, now removed
    session: Path | None = None  # folder of Ray's logs and spilled objects, unless on a cluster
    nodes: Nodes | None = None  # of a cluster

    def stop(self) -> None:
        ray.shutdown()
        if self.session:
            end_session(self.session)


def start_ray(num_workers: int, address: str = "") -> RunningRay:
    """Start Ray on this machine, quietly, with room for `num_workers` actors (0: one per CPU core).

    With an address, connect to the cluster there instead, and send it this project's code. What has been
    imported from the working directory can be imported by workers, too. Leftovers of killed processes on this
    machine are removed. ValueError: there is no cluster at the address; EngineLost: Ray does not start.
    """
    own = [path for path in modules_here() if path.parent != Path(ROOT)]
    if address:
        with code() as folder:
            sent: dict[str, Any] = {"working_dir": folder, "excludes": ["__pycache__"]}
            sent |= {"py_modules": [*map(str, own)]} if own else {}
            _connect(address, runtime_env=sent)
        try:
            nodes = Nodes()
        except EngineLost as error:
            ray.shutdown()
            raise SettingsError(f"ray-address {address}: {error}") from None
        return RunningRay(remove_leftovers(), nodes=nodes)
    _check_imports()
    # Ray's default, 15, leaves workers 3 % of a core next to any other process that is busy.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray would keep the events of 100,000 tasks, for a dashboard that is not started: 7 MiB per 1,000 rounds.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    try:
        with _importable(ROOT, {str(path.parent) for path in own}):
            started = ray.init(
                "local",  # otherwise Ray joins a cluster that happens to run on this machine
                num_cpus=max(num_workers, os.cpu_count() or 1) if num_workers else None,
                include_dashboard=False,
                **_quiet(),
            )
    except Exception as error:  # Ray raises that, too
        raise EngineLost(f"Ray does not start: {ends(error)}") from error
    _silence()
    session = Path(started.address_info["session_dir"])
    lock_session(session)
    return RunningRay(remove_leftovers(session.parent), session)


def imports() -> dict[str, Any]:
    """Return the runtime environment of workers on a Ray that somebody else has started.

    They import this project, and what has been imported from the working directory, from where this process
    does, which is where other machines need it, too.
    """
    _check_imports()
    there = ray.get_runtime_context().runtime_env.get("env_vars", {}).get("PYTHONPATH")
    own = {str(path.parent): None for path in modules_here()}
    paths = [ROOT, there or "${PYTHONPATH}", *own]  # Ray puts in what its processes have
    return {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}


def _check_imports() -> None:
    """Refuse a working directory, where workers look first, that hides a package of this project."""
    try:
        check_not_hidden(os.getcwd())
    except ImportError as error:
        raise SettingsError(f"{error}, or take --engine inline (in a comparison --num-workers 1)") from None


def has_gpus(address: str) -> bool:
    """Return whether a cluster has GPUs, after connecting for a moment. ValueError: there is no cluster."""
    connected = ray.is_initialized()
    if not connected:
        _connect(address)
    try:
        return bool(ray.cluster_resources().get("GPU"))
    finally:
        if not connected:
            ray.shutdown()


def _connect(address: str, **options: Any) -> None:
    """Connect to a cluster; ValueError: that is not possible, or its Python or Ray differs from ours."""
    try:
        if address == "auto":
            address = get_ray_address_from_environment(address, None)
        check_address(address)
        ray.init(address, **options, **_quiet())
        _silence()
    except (OSError, RuntimeError, ValueError, RayError) as error:
        ray.shutdown()
        raise SettingsError(f"ray-address {address}: {ends(error)}; or take --engine inline") from None


def _quiet() -> dict[str, Any]:
    """Return options of `ray.init`, after setting variables, that let Ray print nothing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's next default; unset, it warns
    return {"log_to_driver": False, "logging_level": logging.ERROR}


@contextmanager
def code() -> Iterator[str]:
    """Make a folder with what workers on other machines need of this project, as links."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (path for name in SENT for path in Path(ROOT).glob(name)):
            Path(folder, path.name).symlink_to(path)
        yield folder


@contextmanager
def _importable(first: str, last: Collection[str]) -> Iterator[None]:
    """Let the processes that are started meanwhile import from some folders, before and after PYTHONPATH's.

    Ray's workers inherit it. A runtime environment would do the same, but the workers that Ray starts ahead
    have none, and could not be used.
    """
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([first, *filter(None, [before]), *last])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _silence() -> None:
    """Keep Ray from printing a page about each dead worker to standard output, whatever `log_to_driver` is.

    The round's record has a line about it, and Ray's logs have the rest.
    """
    with suppress(ImportError):
        from ray._private import worker

        worker.print_to_stdstream = lambda *lines, **options: None
