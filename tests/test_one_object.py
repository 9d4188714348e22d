"""Messages in one object: the same content, for client apps that say that they read it."""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, ClientApp
from flwr.common import FitIns, FitRes, GetPropertiesIns, GetPropertiesRes
from grid_nodes import OK, Federation, ask, trained, transport
from hypothesis import given
from hypothesis import strategies as st

from fedtide.base.one_object import MOST_BYTES, NAME, one_object, packed, unpacked

SCALARS = st.one_of(
    *(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(), st.binary())
)


@given(st.dictionaries(st.text(), SCALARS), st.lists(st.integers(0, 4), max_size=3))
def test_what_is_packed_comes_back(scalars: dict[str, Any], shape: list[int]) -> None:
    arrays = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape), np.zeros(3)]
    content = RecordDict({"a": ArrayRecord(arrays), "c": ConfigRecord(scalars), "m": MetricRecord({"n": 3})})
    assert [*packed(content)] == [NAME]
    assert unpacked(packed(content)) == content
    assert unpacked(content) is content


def test_large_messages_stay_as_they_are() -> None:
    content = RecordDict({"a": ArrayRecord([np.zeros(MOST_BYTES, np.uint8)])})
    assert packed(content) is content


@given(st.one_of(st.binary(), st.integers(-9, 9)))
def test_what_is_damaged_is_a_value_error(data: Any) -> None:
    content = RecordDict({NAME: ConfigRecord({NAME: data} if data else {})})
    try:
        assert isinstance(unpacked(content), RecordDict)
    except ValueError as error:
        assert "in one object" in str(error)  # noqa: PT017


class Board(Client):
    def __init__(self, context: Context) -> None:
        self.told = context.node_config

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        return GetPropertiesRes(OK, {"client-id": self.told["client-id"]})

    def fit(self, ins: FitIns) -> FitRes:
        return trained(ins, steps=3)


def test_client_apps_that_read_one_object_are_sent_it(federation: Federation) -> None:
    """The others are not, and both return the same, also where a mod comes between."""
    seen: dict[int, set[str]] = {0: set(), 1: set()}

    def note(message: Message, context: Context, call_next: Any) -> Message:
        seen[int(context.node_config["client-id"])].update(message.content)
        reply = call_next(message, context)
        seen[int(context.node_config["client-id"])].update(reply.content)
        return reply

    def between(message: Message, context: Context, call_next: Any) -> Message:
        assert NAME not in message.content
        return call_next(message, context)

    for client, mods in enumerate(([note, one_object, between], [note, between])):
        federation.node(client, ClientApp(client_fn=Board, mods=mods))
    results, failed = ask(transport(federation, 2), 1, 0, 1)
    assert not failed
    assert results[0].parameters == results[1].parameters
    assert results[0].metrics["steps"] == results[1].metrics["steps"] == 3
    fit = {"fitins.parameters", "fitins.config", "fitres.parameters", "fitres.metrics"}
    assert (NAME in seen[0], seen[0] & fit) == (True, set())
    assert (NAME in seen[1], seen[1] & fit) == (False, fit)
