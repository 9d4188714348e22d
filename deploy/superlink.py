"""Flower's SuperLink behind a guard, whose requests pass only those layers that do something with them.

    ADMINS="127.0.0.0/8 192.168.1.7" MOST_MB=256 python deploy/superlink.py [flower-superlink's options]

ADMINS are the addresses and networks that may use all of it, such as the Control API, which starts runs: code
on the server and on every device. All others reach what devices need alone. No request may bring more than
MOST_MB megabytes, of which Flower would keep several copies. Unset, neither is limited.

A request of a device or of a ServerApp passes eight layers of middleware; four of them, of a ServerApp's six,
look at its path and pass it on, which takes a third of the SuperLink's time. Here such requests go around
these, and garbage is collected less often, which takes a ninth. A Flower without these layers is started as
it is, one that has no place for the guard not at all.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import entry_points
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"
TOO_LARGE = "the request is larger than this SuperLink's MOST_MB"

Network = IPv4Network | IPv6Network
Receive, Send = Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]


class Guard:
    """A layer that refuses requests by their address or their size.

    Parameters
    ----------
    app
        What it guards.
    admins
        The networks from which more than the paths of devices can be reached; empty: all.
    most
        Bytes of a request at most.
    """

    def __init__(self, app: Any, admins: Sequence[Network], most: float) -> None:
        self.app, self.admins, self.most = app, admins, most

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif self.admins and not scope["path"].startswith(FLEET) and not self._is_admin(scope["client"][0]):
            await refuse(send, 403, f"{scope['client'][0]} is not one of this SuperLink's ADMINS")
        elif int(dict(scope["headers"]).get(b"content-length", b"0")) > self.most:
            await refuse(send, 413, TOO_LARGE)
        else:
            await self._bounded(scope, receive, send)

    def _is_admin(self, text: str) -> bool:
        address = ip_address(text)
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.admins)

    async def _bounded(self, scope: Any, receive: Receive, send: Send) -> None:
        """Pass a request on whose length may not be known: one that becomes too large ends there."""
        came = 0

        async def received() -> Any:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            return message if came <= self.most else {"type": "http.disconnect"}

        async def answered(message: Any) -> None:
            if came <= self.most:
                await send(message)

        try:
            await self.app(scope, received, answered)
        except Exception:  # Flower's, as its reader has gone
            if came <= self.most:
                raise
        if came > self.most:
            await refuse(send, 413, TOO_LARGE)


async def refuse(send: Send, status: int, reason: str) -> None:
    """Answer a request with a status and a line."""
    body = f"{reason}\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def put_guard(admins: Sequence[Network], most: float) -> None:
    """Put the guard before all layers of Flower's."""
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    inner = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(Guard, admins=admins, most=most), *inner())


def go_around(layer: Any, *paths: str) -> None:
    """Let requests whose path begins like one of these go around a layer."""
    through = layer.__call__

    async def call(self: Any, scope: Any, receive: Any, send: Any) -> None:
        around = scope["type"] == "http" and scope["path"].startswith(paths)
        await (self.app(scope, receive, send) if around else through(self, scope, receive, send))

    layer.__call__ = call


def main() -> int:
    """Run Flower's SuperLink."""
    try:
        admins = [ip_network(text, strict=False) for text in os.environ.get("ADMINS", "").split()]
        most = float(os.environ.get("MOST_MB") or "inf") * 1e6
        if not most > 0:
            raise ValueError(f"{os.environ['MOST_MB']} is not a positive number")
        os.environ["FORWARDED_ALLOW_IPS"] = ""  # an address counts, not what a request says of it
        if admins or most < float("inf"):
            put_guard(admins, most)
    except (ImportError, AttributeError, ValueError) as error:
        print(f"deploy/superlink.py: ADMINS or MOST_MB: {error}", file=sys.stderr)
        return 2
    try:
        from flwr.superlink.routers.control import middlewares as control
        from flwr.superlink.routers.fleet.middlewares import FleetEventLogMiddleware
        from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware

        for name in ("Authentication", "License", "EventLog", "SensitiveResponse"):
            go_around(getattr(control, f"Control{name}Middleware"), FLEET, RUNTIME)
        for layer in (FleetEventLogMiddleware, NodeAuthMiddleware):
            go_around(layer, RUNTIME)
    except (ImportError, AttributeError) as error:
        print(f"as Flower starts it: {error}", file=sys.stderr)
    gc.set_threshold(100_000, 20, 50)
    (command,) = entry_points(group="console_scripts", name="flower-superlink")
    sys.argv[0] = "flower-superlink"
    return int(command.load()() or 0)


if __name__ == "__main__":
    sys.exit(main())
