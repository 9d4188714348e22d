"""Replies that are kept until they arrive, as parts of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.common import FitRes, Parameters
from numpy.typing import NDArray

from fedtide.ground.contract import REPORTED, metrics
from strategies import FlatParameters, Layout
from strategies.core.replies import OK, ReplyTable
from strategies.core.reply_vectors import ReplyVectors

UNKNOWN_NORM = -1.0  # of an update in a checkpoint of an earlier version


def taken_apart(reply: ReplyTable) -> tuple[list[NDArray[Any]], dict[str, Any]]:
    """Return the arrays of a table of one reply, and all else that it is made of."""
    result = reply.result(0)
    sent, form = result.parameters, {"num_examples": result.num_examples, "metrics": result.metrics}
    if isinstance(sent, FlatParameters):
        arrays = [sent.vector, *sent.extra]
        form |= {"shapes": sent.layout.shapes, "dtype": sent.layout.dtype.str}
    else:
        arrays = [np.frombuffer(tensor, np.uint8) for tensor in sent.tensors]
        form |= {"type": sent.tensor_type}
    form["update_norm"] = float(reply.reported["update_norm"][0])
    return arrays, form | {"arrays": len(arrays)}


def put_together(
    client: int, arrays: list[NDArray[Any]], form: Mapping[str, Any], layout: Layout
) -> ReplyTable:
    """Return the reply of a client that `taken_apart` was given; `layout` is that of weights and buffers."""
    reported, told = np.zeros(1, REPORTED), form["metrics"]
    reported["client"] = client
    if "type" in form:
        sent = Parameters([array.tobytes() for array in arrays], form["type"])
        result = FitRes(OK, sent, form["num_examples"], told)
        return ReplyTable(reported=reported, names=[str(client)], results=[result])
    reported["num_examples"], reported["resync"] = form["num_examples"], told.get(metrics.RESYNC, False)
    for key in (metrics.ROUND, metrics.STEPS, metrics.TRAIN_LOSS, metrics.FINAL_LOSS, metrics.RMS_LOSS):
        reported[key.replace("-", "_")] = told[key]
    reported["seconds"] = told.get(metrics.SECONDS, np.nan)
    reported["update_norm"] = form.get("update_norm", UNKNOWN_NORM)
    vector, *extra = arrays
    vectors = ReplyVectors([vector])
    return ReplyTable(reported=reported, vectors=vectors, layout=layout, extra=[extra] if extra else ())
