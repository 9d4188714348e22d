"""FLASH's state traces: phones with screen, battery and network events."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from fedtide.base.numbers import exact
from traces.files.documents import read_document
from traces.recorded.log import DeviceLog, RawSessions
from traces.recorded.recording import DrawnRecording

_MESSAGE = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}) +([0-9]{2}:[0-9]{2}:[0-9]{2}) *\t\s*(\S+)", re.ASCII)
_LEVEL = re.compile(r"[0-9.]+%")  # of the battery
# The state that an event changes, and its new value; all states are False at first.
_EVENTS: dict[str, tuple[str, bool]] = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    "screen_on": ("screen_off", False),
    "screen_off": ("screen_off", True),
}
_NEEDED = {"locked", "charging", "wifi"}  # to be online


@dataclass(frozen=True, kw_only=True)
class Flash(DrawnRecording, name="flash"):
    """Phones that replay FLASH's state traces on a virtual clock (see `Recording`).

    Online means locked, charging and on Wi-Fi, as in FLASH. Clients are assigned phones at random, by the
    seed, each phone at most once; phones with names, not numbers, are the data's clients of the same names,
    if these have any. All phones share the calendar; each recording starts over at its own end.
    """

    def read(self) -> tuple[DeviceLog, NDArray[np.intp]]:
        return self.assign_devices(read_flash("trace flash", self.file))


def read_flash(reader: str, path: str) -> DeviceLog:
    """Read FLASH's ``state_traces.json``: phone -> {"messages": "2020-01-31 08:00:00<TAB>wifi<NEWLINE>..."}.

    The messages of a phone are sorted by time. A phone is online while it is locked, charging and on Wi-Fi
    (Yang et al., WWW 2021; `timer.py` of their code); a session that is running at the last message ends
    there. Phones without messages are never online.

    Other data are a ValueError; the message, which begins with `reader`, names the file, the phone and the
    line of its messages.
    """
    content = read_document(reader, path)
    if not isinstance(content, dict):
        raise SettingsError(f"{reader}: {path}: not a dict of phones, expected FLASH's state_traces.json")
    device: list[int] = []
    sessions: list[tuple[float, float]] = []
    records: list[tuple[float, float]] = []
    for d, (name, phone) in enumerate(content.items()):
        place = f"{reader}: {path}, phone {str(name)[:40]!r}"
        own, record = _phone(place, phone)
        device += [d] * len(own)
        sessions += own
        records.append(record)
    if not sessions:
        raise SettingsError(f"{reader}: {path}: no phone is ever locked, charging and on Wi-Fi")
    begin, finish = np.array(records).T
    begin = np.where(np.isnan(begin), np.nanmin(begin), begin)
    start, end = np.array(sessions).T
    return DeviceLog.build(
        RawSessions(device, start, end),
        begin,
        np.where(finish > begin, finish, begin + 1),  # any length for phones without sessions
        lambda i: f"{reader}: {path}",
        () if exact([*content]) else tuple(name.strip() for name in content),
    )


def _phone(place: str, phone: Any) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Return a phone's sessions, and the start and end of its recording (NaN without messages)."""
    messages = phone.get("messages") if isinstance(phone, dict) else None
    if not isinstance(messages, str):
        raise SettingsError(f"{place}: no messages, expected FLASH's state_traces.json")
    events = []
    for line, message in enumerate(messages.split("\n"), start=1):
        text = message.replace("\0", "").strip()
        if text:
            events.append(_event(f"{place}, message {line}", text))
    events.sort(key=lambda event: event[0])
    if not events:
        return [], (float("nan"), float("nan"))
    state = dict.fromkeys(_NEEDED, False)
    sessions: list[tuple[float, float]] = []
    since: float | None = None
    for time, (name, value) in [*events, (events[-1][0], ("locked", False))]:
        state[name] = value
        ready = all(state[needed] for needed in _NEEDED)
        if ready and since is None:
            since = time
        elif not ready and since is not None:
            if since < time:
                sessions.append((since, time))
            since = None
    return sessions, (events[0][0], events[-1][0])


def _event(place: str, text: str) -> tuple[float, tuple[str, bool]]:
    """Return the time of a message, in seconds of the calendar, and the state that it sets."""
    match = _MESSAGE.fullmatch(text)
    if match is None:
        raise SettingsError(f"{place}: {text[:40]!r} is not a time, a tab and an event")
    day, hour, event = match.groups()
    try:
        time = (datetime.fromisoformat(f"{day} {hour}") - datetime.min).total_seconds()
    except ValueError:
        raise SettingsError(f"{place}: {day} {hour} is not a valid time") from None
    if _LEVEL.fullmatch(event):
        return time, ("battery", True)
    if event.lower() not in _EVENTS:
        raise SettingsError(f"{place}: unknown event {event[:40]!r}; known: {', '.join(_EVENTS)}")
    return time, _EVENTS[event.lower()]
