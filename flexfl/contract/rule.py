"""What a method changes about local SGD, as far as the server has to know it."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Rule(NamedTuple):
    """The client's part of a method: a name that both sides know, and what it implies for the messages.

    The client's side is the class of the same name in `clients.rules.RULES`. A method declares its rule in
    its own file; those that several methods use stand below.

    Attributes
    ----------
    name
        As it is sent in the task.
    scalars
        Names of the scalars that the server has to send.
    remembers
        Whether the client keeps a state between rounds. The task then says which of the client's replies was
        accepted last, so that a lost reply changes nothing (see clients/memory/handshake.py).
    sends
        `weights`: the local weights, one array per tensor. `vector`: one vector of M numbers in their place.
        `packed`: a ternary vector as bytes (see `flexfl.contract.ternary`), or weights.
    extra
        How many vectors of M numbers may follow: all of them or none.
    """

    name: str
    scalars: tuple[str, ...] = ()
    remembers: bool = False
    sends: Literal["weights", "vector", "packed"] = "weights"
    extra: int = 0


SGD = Rule("sgd")
"""y -= eta g(y): any Flower client that trains its weights does this."""

CORRECTED = Rule("corrected")
"""y -= eta (g(y) + d) with a direction d that the server sends to each client; none while it is zero."""
