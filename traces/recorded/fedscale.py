"""FedScale's phones: when they were charging, and how fast they were."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from fedtide.base.numbers import exact
from traces.files.documents import number, read_document
from traces.recorded.log import LATEST, SHORTEST, DeviceLog, RawSessions, check_rate, check_session
from traces.recorded.recording import Recording

# In FedScale, training on an example takes three times as long as an inference; `computation` is in ms.
_INFERENCES_PER_STEP = 3 * 10
_BYTES_PER_KILOBIT = 125


@dataclass(frozen=True, kw_only=True)
class Phones(Recording, name="phones"):
    """Phones that replay FedScale's availability data on a virtual clock (see `Recording`).

    By default these are the 100 phones in this package, the most available of FedScale's 107,749 (see
    docs/traces.md); online means charging. `file` gives another part of FedScale's data, as JSON or as the
    pickle that FedScale distributes (see `read_fedscale`). Clients are assigned phones at random, by the
    seed, each phone at most once; phones with names, not numbers, are the data's clients of the same names,
    if these have any. Each phone's recording starts over at its own end.
    """

    def read(self) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Read the phones and draw one per client."""
        return self.assign_devices(read_fedscale("trace phones", self.file or str(shipped_phones())))


def shipped_phones() -> Path:
    """Return the file of the 100 phones in this package."""
    return Path(str(files("traces.recorded").joinpath("phones.json")))


def read_fedscale(reader: str, path: str) -> DeviceLog:
    """Read FedScale's device availability.

    The file is a dict ``id -> phone``, or ``{"clients": [phone, ...]}``. A phone has ``active`` and
    ``inactive``, the times in seconds at which its sessions start and end, and ``finish_time``, the length of
    its recording. If given, ``computation`` (or ``computation_ms``: ms per inference) becomes a speed in
    steps of 10 examples, at three inferences per example as in FedScale, and ``communication`` (or
    ``communication_kbps``: kbit/s) an upload rate. Sessions of zero seconds are left out.

    The file is JSON or a pickle (see `traces.files.documents`; nothing in it is executed). Other data are a
    ValueError; the message, which begins with `reader`, names the file and the phone.
    """
    content = read_document(reader, path)
    if isinstance(content, dict):
        content = content.get("clients", content)
    if not isinstance(content, dict | list | tuple):
        raise SettingsError(f"{reader}: {path}: not a dict of phones, expected FedScale's availability data")
    named = content.items() if isinstance(content, dict) else enumerate(content, start=1)
    device: list[int] = []
    times: list[tuple[float, float]] = []
    speeds: list[tuple[float, float]] = []
    cycle: list[float] = []
    places: list[str] = []
    names: list[str] = []
    for d, (name, phone) in enumerate(named):
        if isinstance(phone, dict):
            name = phone.get("id", name)
        place = f"{reader}: {path}, phone {str(name)[:40]!r}"
        sessions, length, speed = _phone(place, phone)
        device += [d] * len(sessions)
        times += sessions
        speeds += [speed] * len(sessions)
        cycle.append(length)
        places.append(place)
        names.append(str(name).strip())
    if not times:
        raise SettingsError(
            f"{reader}: {path}: no phone is ever available, expected FedScale's availability data"
        )
    start, end = np.array(times).T
    return DeviceLog.build(
        RawSessions(device, start, end, *np.array(speeds).T),
        np.zeros(len(cycle)),
        np.array(cycle),
        lambda i: places[device[i]],
        () if exact(names) else tuple(names),
    )


def _phone(place: str, phone: Any) -> tuple[list[tuple[float, float]], float, tuple[float, float]]:
    """Return a phone's sessions, the length of its recording, its speed and its upload rate."""
    if not isinstance(phone, dict):
        raise SettingsError(f"{place}: not a dict, expected a phone of FedScale's availability data")
    lists: list[Any] = [phone.get("active"), phone.get("inactive")]
    if not all(isinstance(times, list | tuple) for times in lists) or len(lists[0]) != len(lists[1]):
        raise SettingsError(f"{place}: active and inactive must be lists of the same length")
    length = number(place, "finish_time", phone.get("finish_time"))
    sessions = []
    for start, end in zip(*lists, strict=True):
        session = number(place, "active", start), number(place, "inactive", end)
        if session[0] != session[1]:
            check_session(place, *session)
            sessions.append(session)
        if session[1] > length:
            raise SettingsError(f"{place}: a session ends at {end} s, after finish_time {length:g}")
    if not SHORTEST <= length <= LATEST:
        raise SettingsError(
            f"{place}: finish_time is {length:g}, give a number of seconds from {SHORTEST:g} to {LATEST:g}"
        )
    ms = _positive(place, "computation", phone)
    kbps = _positive(place, "communication", phone)
    rates = 1000 / (ms * _INFERENCES_PER_STEP), kbps * _BYTES_PER_KILOBIT
    for name, rate in zip(("steps per second", "upload rate"), rates, strict=True):
        check_rate(place, name, rate)
    return sessions, length, rates


def _positive(place: str, name: str, phone: dict[str, Any]) -> float:
    """Return a capacity of a phone; NaN if it is not given."""
    unit = {"computation": "_ms", "communication": "_kbps"}[name]
    value = phone.get(name, phone.get(name + unit))
    if value is None:
        return float("nan")
    if not number(place, name, value) > 0:
        raise SettingsError(f"{place}: {name} is {value}, give a positive number")
    return float(value)
