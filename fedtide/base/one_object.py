"""Small messages as one object, for federations of many devices.

Flower sends each record of a message, each array and its bytes as objects of their own, and every object is a
request to the SuperLink: eight for the task of a logistic regression, ten for its reply. Here it is three
whatever the model: the message, its content, and one record with all of it.

A client app that has `one_object` as its first mod says so when it is asked who it is, and is then sent small
messages in this form; all others get Flower's own.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import MessageTypeLegacy
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from google.protobuf.message import DecodeError

NAME = "one-object"  # of the record, of its only entry, and of what a node says that reads it
PROPERTIES = "getpropertiesres.properties"  # where Flower puts what a node says of itself
MOST_BYTES = 2**18  # of arrays; Flower fetches the objects of larger messages side by side


def packed(content: RecordDict) -> RecordDict:
    """Return a small content as one record, others as they are."""
    arrays = (array for record in content.array_records.values() for array in record.values())
    if sum(len(array.data) for array in arrays) > MOST_BYTES:
        return content
    return RecordDict({NAME: ConfigRecord({NAME: recorddict_to_proto(content).SerializeToString()})})


def unpacked(content: RecordDict) -> RecordDict:
    """Return the content in a record made by `packed`, others as they are; ValueError: it is damaged."""
    if NAME not in content.config_records:
        return content
    data = content.config_records[NAME].get(NAME)
    try:
        return recorddict_from_proto(RecordDictProto.FromString(data))
    except (DecodeError, TypeError) as error:
        raise ValueError(f"a message in one object that cannot be read: {error}") from None


def one_object(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Have a client app take tasks in one object and reply likewise: a mod of Flower's, the first of all."""
    in_one = message.has_content() and NAME in message.content.config_records
    if in_one:
        message.content = unpacked(message.content)
    reply = call_next(message, context)
    if not reply.has_content():
        return reply
    if in_one:
        reply.content = packed(reply.content)
    elif message.metadata.message_type == MessageTypeLegacy.GET_PROPERTIES:
        reply.content.config_records[PROPERTIES][NAME] = True
    return reply
