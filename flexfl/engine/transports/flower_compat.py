"""The one place that imports from Flower what is no stable re-export.

If Flower drops one of these, this is the file to change.
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

__all__ = [
    "GridClientProxy",
    "evaluateins_to_recorddict",
    "fitins_to_recorddict",
    "getpropertiesins_to_recorddict",
    "recorddict_to_evaluateres",
    "recorddict_to_fitres",
    "recorddict_to_getpropertiesres",
]
