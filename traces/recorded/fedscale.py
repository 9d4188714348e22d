"""Phones of FedScale's trace: when they charged, and how fast they were."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.files.documents import number, read_document
from traces.recorded.clock import VirtualClock
from traces.recorded.sessions import DeviceLog, Sessions, check_session

# FedScale takes three times the time of an inference, per example; its `computation` is in ms.
_INFERENCES_A_STEP = 3 * 10
_BYTES_A_KILOBIT = 125


class Phones(VirtualClock):
    """Phones that replay FedScale's trace, on a virtual clock (see `VirtualClock`).

    Without a file these are the 100 phones that this package carries, the most available ones of FedScale's
    107,749 (see docs/traces.md); online means charging. A file is another part of FedScale's data, as JSON or
    as the pickle that FedScale distributes (see `read_fedscale`). Client k is a phone drawn from the file by
    the seed, each phone at most once. Every phone's record begins anew at its own end.
    """

    name = "phones"

    def _read_log(self, file: str) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Read the phones and draw one for each client."""
        log = read_fedscale("trace phones", file or str(shipped()))
        return log, self._draw_devices(log)


def shipped() -> Path:
    """Return where the 100 phones lie that this package carries."""
    return Path(str(files("traces.recorded").joinpath("phones.json")))


def read_fedscale(where: str, path: str) -> DeviceLog:
    """Read FedScale's device availability.

    The file is a dict ``id -> phone``, or ``{"clients": [phone, ...]}``. A phone has ``active`` and
    ``inactive``, the times in seconds at which its sessions begin and end, and ``finish_time``, the length of
    its record; ``computation`` (or ``computation_ms``: ms for one inference) and ``communication`` (or
    ``communication_kbps``: kbit/s), where given, become a speed in steps of 10 examples, at three inferences
    an example as in FedScale, and an upload rate. Sessions that end in the second in which they begin are
    left out: they hold no time.

    Parameters
    ----------
    where : str
        What reads the file, for messages.
    path : str
        The file, JSON or pickle (read by `traces.files.documents`, nothing in it is run).

    Raises
    ------
    ValueError
        If the file is no such data; the message names the file and the phone.
    """
    content = read_document(where, path)
    if isinstance(content, dict):
        content = content.get("clients", content)
    if not isinstance(content, dict | list):
        raise ValueError(f"{where}: {path}: not a dict of phones, expected FedScale's availability data")
    named = content.items() if isinstance(content, dict) else enumerate(content, start=1)
    device: list[int] = []
    times: list[tuple[float, float]] = []
    speeds: list[tuple[float, float]] = []
    cycle: list[float] = []
    places: list[str] = []
    for d, (name, phone) in enumerate(named):
        if isinstance(phone, dict):
            name = phone.get("id", name)
        place = f"{where}: {path}, phone {str(name)[:40]!r}"
        sessions, length, speed = _phone(place, phone)
        device += [d] * len(sessions)
        times += sessions
        speeds += [speed] * len(sessions)
        cycle.append(length)
        places.append(place)
    if not times:
        raise ValueError(
            f"{where}: {path}: no phone is ever available, expected FedScale's availability data"
        )
    start, end = np.array(times).T
    return DeviceLog.build(
        Sessions(device, start, end, *np.array(speeds).T),
        np.zeros(len(cycle)),
        np.array(cycle),
        lambda i: places[device[i]],
    )


def _phone(place: str, phone: Any) -> tuple[list[tuple[float, float]], float, tuple[float, float]]:
    """Return a phone's sessions, the length of its record, its speed and its upload rate."""
    if not isinstance(phone, dict):
        raise ValueError(f"{place}: not a dict, expected a phone of FedScale's availability data")
    active, inactive = phone.get("active"), phone.get("inactive")
    if not isinstance(active, list) or not isinstance(inactive, list) or len(active) != len(inactive):
        raise ValueError(f"{place}: active and inactive must be lists of the same length")
    length = number(place, "finish_time", phone.get("finish_time"))
    sessions = []
    for start, end in zip(active, inactive, strict=True):
        session = number(place, "active", start), number(place, "inactive", end)
        if session[0] != session[1]:
            check_session(place, *session)
            sessions.append(session)
        if session[1] > length:
            raise ValueError(f"{place}: a session ends at {end} s, after finish_time {length:g}")
    if length <= 0:
        raise ValueError(f"{place}: finish_time is {length:g}, give a positive number of seconds")
    ms = _positive(place, "computation", phone)
    kbps = _positive(place, "communication", phone)
    return sessions, length, (1000 / (ms * _INFERENCES_A_STEP), kbps * _BYTES_A_KILOBIT)


def _positive(place: str, name: str, phone: dict[str, Any]) -> float:
    """Return a capacity of a phone; NaN where it has none."""
    unit = {"computation": "_ms", "communication": "_kbps"}[name]
    value = phone.get(name, phone.get(name + unit))
    if value is None:
        return float("nan")
    if not number(place, name, value) > 0:
        raise ValueError(f"{place}: {name} is {value}, give a positive number")
    return float(value)
