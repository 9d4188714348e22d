"""Everything that fedtide imports from unstable modules of Flower.

If Flower moves or removes one of these, this is the only file to change.
"""

from flwr.compat.common.recorddict_compat import (
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    getpropertiesins_to_recorddict,
    recorddict_to_evaluateres,
    recorddict_to_fitres,
    recorddict_to_getpropertiesres,
)
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType

__all__ = [
    "GridClientProxy",
    "evaluateins_to_recorddict",
    "fitins_to_recorddict",
    "getpropertiesins_to_recorddict",
    "is_simulated",
    "node_proxy",
    "recorddict_to_evaluateres",
    "recorddict_to_fitres",
    "recorddict_to_getpropertiesres",
]


def is_simulated(grid: Grid) -> bool:
    """Whether the nodes of a Grid are those of Flower's Simulation Runtime."""
    return bool(grid.run.primary_task_type == TaskType.SIMULATION)


def node_proxy(grid: Grid, node: int, client: str) -> GridClientProxy:
    """Return a proxy of the client that a node speaks for."""
    proxy = GridClientProxy(node, grid, grid.run.run_id)
    proxy.cid = client
    return proxy
