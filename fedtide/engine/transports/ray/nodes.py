"""The nodes of a cluster, some of which may join later: what they have, and whether it is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedtide.engine.transports.base import EngineLost
from fedtide.ground.wording import ends

PACKAGES = ("flwr", "torch", "torchvision", "numpy", "numba", "scikit-learn")  # Ray checks Python and itself
PATIENCE = 30.0  # seconds in which nodes usually have unpacked the code and started a process


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
