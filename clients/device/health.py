"""How a board is: what `--report` adds to each of its replies, as far as the system tells."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from fedtide.base.contract import Scalar, metrics

SYS, PROC = Path("/sys/class"), Path("/proc")


def health(folder: str = "/") -> dict[str, Scalar]:
    """Return the metrics of a reply: what is not known is left out.

    The highest temperature of its sensors in degrees Celsius; free space on the disk of `folder` and free
    memory in megabytes; the load of the last minute in processes; the charge of its battery in percent; the
    energy that its processor has used in joules, where the user may read that.
    """
    measures: dict[str, Callable[[], float | None]] = {
        "temperature": lambda: _largest(SYS.glob("thermal/thermal_zone*/temp"), 1e-3),
        "disk-free": lambda: shutil.disk_usage(folder).free / 1e6,
        "memory-free": _free_memory,
        "load": lambda: os.getloadavg()[0],
        "battery": lambda: _largest(SYS.glob("power_supply/*/capacity"), 1.0),
        "energy": lambda: _largest(SYS.glob("powercap/*:0/energy_uj"), 1e-6),
    }
    found: dict[str, Scalar] = {}
    for name, measure in measures.items():
        with suppress(OSError, ValueError):
            if (value := measure()) is not None:
                found[metrics.BOARD + name] = round(value, 3)
    return found


def _largest(files: Iterable[Path], unit: float) -> float | None:
    values = []
    for file in files:
        with suppress(OSError, ValueError):  # a sensor that is switched off
            values.append(int(file.read_text()) * unit)
    return max(values, default=None)


def _free_memory() -> float | None:
    for line in (PROC / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / 1e6
    return None
