"""Flower's instructions and results as the records that its messages carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, GetPropertiesIns
from flwr.server.client_proxy import ClientProxy

from fedtide.devices.flower_compat import (
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    getpropertiesins_to_recorddict,
    recorddict_to_evaluateres,
    recorddict_to_fitres,
    recorddict_to_getpropertiesres,
)
from fedtide.ground.contract import Scalar, metrics

UNREADABLE = (ValueError, KeyError, TypeError, IndexError)
WHO_ARE_YOU = getpropertiesins_to_recorddict(GetPropertiesIns({}))


def message(
    content: RecordDict, node: int, kind: str, server_round: int, ttl: float | None = None
) -> Message:
    """Return a message to a node; after `ttl` seconds, 12 hours by default, Flower refuses an answer."""
    return Message(content, dst_node_id=node, message_type=kind, group_id=str(server_round), ttl=ttl)


def packed(instructions: Sequence[tuple[ClientProxy, FitIns | EvaluateIns]]) -> dict[str, RecordDict]:
    """Pack instructions by the client's name; one that clients share is packed only once."""
    distinct = {id(instruction): instruction for _, instruction in instructions}
    contents = {key: _pack(instruction) for key, instruction in distinct.items()}
    return {proxy.cid: contents[id(instruction)] for proxy, instruction in instructions}


def _pack(instruction: FitIns | EvaluateIns) -> RecordDict:
    if isinstance(instruction, FitIns):
        return fitins_to_recorddict(instruction, keep_input=True)
    return evaluateins_to_recorddict(instruction, keep_input=True)


def with_scalars(content: RecordDict, scalars: Mapping[str, Any]) -> RecordDict:
    """Return an instruction with further scalars beside its own; the arrays are the same objects."""
    return RecordDict(
        {
            key: ConfigRecord({**scalars, **record}) if isinstance(record, ConfigRecord) else record
            for key, record in content.items()
        }
    )


def unpacked(content: RecordDict, kind: str) -> FitRes | EvaluateRes | str:
    """Return the result in a reply; the reason if it has none, or says that the client failed."""
    result: FitRes | EvaluateRes
    try:
        if kind == MessageType.TRAIN:
            result = recorddict_to_fitres(content, keep_input=False)
        else:
            result = recorddict_to_evaluateres(content)
    except UNREADABLE as reason:
        return str(reason)
    if result.status.code != Code.OK:
        return result.status.message or result.status.code.name
    return result


def claimed_client(content: RecordDict) -> Scalar | None:
    """Return the index of the client that a node says it is; None if it does not say."""
    try:
        return recorddict_to_getpropertiesres(content).properties.get(metrics.CLIENT_ID)
    except UNREADABLE:
        return None
