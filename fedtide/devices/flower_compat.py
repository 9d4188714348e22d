"""Everything that fedtide imports from unstable modules of Flower.

If Flower moves or removes one of these, this is the only file to change.
"""

import re

from flwr.app import Error
from flwr.common.constant import ErrorCode as ErrorCode
from flwr.compat.common import recorddict_compat as recorddict_compat
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import RunNotRunningException
from httpx import HTTPError as HTTPError  # of the calls of its Grid
from httpx import HTTPStatusError as HTTPStatusError

RUN_IS_OVER = (ObjectPushError, RunNotRunningException)  # from a call of the Grid while the run is stopped

_RAISED = re.compile(r"<class '(?:.*\.)?(\w+)'>:<'(.*)'>", re.DOTALL)  # an exception in a ClientApp


def is_simulated(grid: Grid) -> bool:
    """Whether the nodes of a Grid are those of Flower's Simulation Runtime."""
    return bool(grid.run.primary_task_type == TaskType.SIMULATION)


def node_proxy(grid: Grid, node: int, client: str) -> GridClientProxy:
    """Return a proxy of the client that a node speaks for."""
    proxy = GridClientProxy(node, grid, grid.run.run_id)
    proxy.cid = client
    return proxy


def reason_of(error: Error) -> str:
    """Return why a message has no answer; an exception as `described` in fedtide/base/errors.py has it."""
    if not (raised := _RAISED.fullmatch(error.reason or "failed")):
        return error.reason or "failed"
    kind, text = raised.groups()
    return text if kind == "SettingsError" else f"{kind}: {text}".removesuffix(": ")
