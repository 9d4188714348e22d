"""Waiting for a condition, however busy the machine is."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 600.0  # seconds: what has not happened by then never will


def wait_until(condition: Callable[[], Any], process: Any = None) -> Any:
    """Return the first true value of a condition; a process that it depends on must not end before."""
    until = time.monotonic() + PATIENCE
    while not (value := condition()):
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the process has ended: {process.communicate()}")
        assert time.monotonic() < until, "the condition never held"
        time.sleep(0.05)
    return value
