"""What a method changes about local SGD, as far as the server needs to know."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Rule(NamedTuple):
    """The client's part of a method: a name that both sides use, and what it implies for the messages.

    The client's side is the class of that name in `clients.rules.RULES`, or what a dotted name stands for. A
    method declares its rule in its own file; rules that several methods use are declared below.

    Attributes
    ----------
    name
        As it is sent in the task.
    scalars
        Names of the method's own scalars that the server sends.
    remembers
        Whether the client keeps a state between rounds. The task then names the last round in which the
        server accepted the client's reply, so that a lost reply changes nothing (see
        clients/memory/handshake.py).
    sends
        `weights`: the local weights, one array per tensor. `vector`: one vector of M numbers instead.
        `packed`: a ternary vector as bytes (see `fedtide.base.contract.ternary`), or weights.
    extra
        How many vectors of M numbers may follow: all of them or none.
    """

    name: str
    scalars: tuple[str, ...] = ()
    remembers: bool = False
    sends: Literal["weights", "vector", "packed"] = "weights"
    extra: int = 0


SGD = Rule("sgd")
"""y -= eta g(y): what any Flower client that trains its weights does."""

CORRECTED = Rule("corrected")
"""y -= eta (g(y) + d) with a direction d that the server sends to each client; none while it is zero."""
