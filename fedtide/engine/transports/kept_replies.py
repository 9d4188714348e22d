"""Replies that are kept until they arrive, and in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.common import FitRes, Parameters
from numpy.typing import NDArray

from fedtide.engine.transports.virtual_proxy import OK
from strategies import FlatParameters, Layout


def taken_apart(reply: FitRes) -> tuple[list[NDArray[Any]], dict[str, Any]]:
    """Return the arrays of a reply, and all else that it is made of."""
    sent, form = reply.parameters, {"num_examples": reply.num_examples, "metrics": reply.metrics}
    if isinstance(sent, FlatParameters):
        arrays = [sent.vector, *sent.extra]
        form |= {"shapes": sent.layout.shapes, "dtype": sent.layout.dtype.str}
    else:
        arrays = [np.frombuffer(tensor, np.uint8) for tensor in sent.tensors]
        form |= {"type": sent.tensor_type}
    return arrays, form | {"arrays": len(arrays)}


def put_together(arrays: list[NDArray[Any]], form: Mapping[str, Any]) -> FitRes:
    """Return the reply that `taken_apart` was given."""
    if "shapes" in form:
        vector, *extra = arrays
        layout = Layout(tuple(map(tuple, form["shapes"])), np.dtype(form["dtype"]))
        sent: Parameters = FlatParameters(vector, layout, extra)
    else:
        sent = Parameters([array.tobytes() for array in arrays], form["type"])
    return FitRes(OK, sent, form["num_examples"], form["metrics"])


def kept(result: FitRes) -> FitRes:
    """Return a reply whose weights do not lie in memory that the transport reuses."""
    sent = result.parameters
    if not isinstance(sent, FlatParameters):
        return result
    return replace(result, parameters=FlatParameters(sent.vector.copy(), sent.layout, sent.extra))
