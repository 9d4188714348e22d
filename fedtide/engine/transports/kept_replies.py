"""Replies that are kept until they arrive, and in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.common import FitRes, Parameters
from numpy.typing import NDArray

from strategies import FlatParameters, Layout


def taken_apart(sent: Parameters) -> tuple[list[NDArray[Any]], dict[str, Any]]:
    """Return a client's parameters as arrays, and their form."""
    if isinstance(sent, FlatParameters):
        arrays = [sent.vector, *sent.extra]
        layout = {"shapes": sent.layout.shapes, "dtype": sent.layout.dtype.str}
        return arrays, {"arrays": len(arrays), **layout}
    tensors = [np.frombuffer(tensor, np.uint8) for tensor in sent.tensors]
    return tensors, {"arrays": len(tensors), "type": sent.tensor_type}


def put_together(arrays: list[NDArray[Any]], form: Mapping[str, Any]) -> Parameters:
    """Return the parameters that `taken_apart` was given."""
    if "shapes" in form:
        vector, *extra = arrays
        layout = Layout(tuple(map(tuple, form["shapes"])), np.dtype(form["dtype"]))
        return FlatParameters(vector, layout, extra)
    return Parameters([array.tobytes() for array in arrays], form["type"])


def kept(result: FitRes) -> FitRes:
    """Return a reply whose weights do not lie in memory that the transport reuses."""
    sent = result.parameters
    if not isinstance(sent, FlatParameters):
        return result
    return replace(result, parameters=FlatParameters(sent.vector.copy(), sent.layout, sent.extra))
