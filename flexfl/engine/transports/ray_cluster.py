"""Starts Ray on this machine, or connects to a cluster that is running."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import ray

ROOT = str(Path(__file__).parents[3])
NO_CODE = ["/runs", "/data", "/.git", "/.venv", "/tests", "/experiments", "/docs"]  # for other machines


def knock(address: str) -> None:
    """See whether anything answers at HOST:PORT; Ray itself would try for minutes.

    Raises
    ------
    OSError, ValueError
        Nothing answers; this is no address.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ValueError("expected HOST:PORT or auto")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def start_ray(num_workers: int, address: str = "") -> None:
    """Start Ray on this machine, quietly, with room for `num_workers` actors (0: one a CPU core).

    With an address, connect to the cluster that runs there; its machines get this project's code.

    Raises
    ------
    ValueError
        There is no cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's next default; else it warns
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        code = {"working_dir": ROOT, "excludes": NO_CODE}
        try:
            if address != "auto":
                knock(address)
            ray.init(address, runtime_env=code, **quiet)
        except (OSError, ValueError) as error:
            raise ValueError(f"ray-address {address}: {error}") from None
        return
    paths = [ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    ray.init(
        num_cpus=max(num_workers, os.cpu_count() or 1) if num_workers else None,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
        **quiet,
    )
