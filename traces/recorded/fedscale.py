"""FedScale's phones: when they were charging, and how fast they were."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.download import download, obtaining
from fedtide.base.errors import SettingsError
from fedtide.base.files import open_regular
from fedtide.base.numbers import exact
from traces.files.documents import number, read_document
from traces.recorded.log import (
    FASTEST,
    LATEST,
    SHORTEST,
    SLOWEST,
    DeviceLog,
    RawSessions,
    check_rate,
    check_session,
)
from traces.recorded.recording import DrawnRecording

# In FedScale, training on an example takes three times as long as an inference; `computation` is in ms.
_INFERENCES_PER_STEP = 3 * 10
_BYTES_PER_KILOBIT = 125
_UNITS = {"computation": "_ms", "communication": "_kbps"}  # which may follow the names
_LARGEST = 1e300

PAGE = "https://github.com/SymbioticLab/FedScale"
URL = (
    "https://raw.githubusercontent.com/SymbioticLab/FedScale/7ec441c2afa99510535adebe155d89fa8bb2c637/"
    "benchmark/dataset/data/device_info"
)
SHA256 = {
    "client_behave_trace": "d0b6f81a01f0ea5f7ec432583f5afe93b1e72424db4c1affa88c484f15901662",
    "client_device_capacity": "477f61049443987318fc5667cafa059b3b420eb0e03ccb5ceb3262d20e059e53",
}


@dataclass(frozen=True, kw_only=True)
class Phones(DrawnRecording, name="phones"):
    """Phones that replay FedScale's availability data on a virtual clock (see `Recording`).

    By default these are the 100 phones in this package, the most available of FedScale's 107,749 (see
    docs/recordings.md); online means charging. `phones:all` are all of them, and `file` gives another part of
    FedScale's data, as JSON or as the pickle that FedScale distributes (see `read_fedscale`). Clients are
    assigned phones at random, by the seed, each phone at most once; phones with names, not numbers, are the
    data's clients of the same names, if these have any. Each phone's recording starts over at its own end.

    Attributes
    ----------
    source
        The phones in this package; or all of FedScale's, whose two files (65 MB) are downloaded if they are
        missing, and checked.
    data_dir
        The directory with FedScale's files, in `fedscale`; the run's --data-dir unless given.
    """

    source: Literal["included", "all"] = "included"
    data_dir: str = "data"

    def read(self) -> tuple[DeviceLog, NDArray[np.intp]]:
        if self.source == "included":
            return self.assign_devices(read_fedscale("trace phones", self.file or str(shipped_phones())))
        if self.file:
            raise SettingsError(
                f"trace phones: file is {self.file}, but all are FedScale's own: leave one out"
            )
        return self.assign_devices(read_fedscale("trace phones", *map(str, obtain(Path(self.data_dir)))))


def obtain(data_dir: Path) -> list[Path]:
    """Return FedScale's files of availability and of capacities, downloaded if they are missing."""
    folder, paths = data_dir / "fedscale", []
    by_hand = f"put {' and '.join(SHA256)} of {PAGE} there"
    with obtaining("trace phones", "phones of FedScale", folder, by_hand):
        for name, sha256 in SHA256.items():
            paths.append(folder / name)
            download(f"{URL}/{name}", paths[-1], sha256)
            with open_regular(paths[-1]) as file:
                if hashlib.sha256(file.read()).hexdigest() != sha256:
                    raise ValueError(f"{name} is not FedScale's, remove it")
    return paths


def shipped_phones() -> Path:
    """Return the file of the 100 phones in this package."""
    return Path(str(files("traces.recorded").joinpath("phones.json")))


def read_fedscale(reader: str, path: str, capacities: str = "") -> DeviceLog:
    """Read FedScale's device availability.

    The file is a dict ``id -> phone``, or ``{"clients": [phone, ...]}``. A phone has ``active`` and
    ``inactive``, the times in seconds at which its sessions start and end, and ``finish_time``, the length of
    its recording. If given, ``computation`` (or ``computation_ms``: ms per inference) becomes a speed in
    steps of 10 examples, at three inferences per example as in FedScale, and ``communication`` (or
    ``communication_kbps``: kbit/s) the rate of uploads and of downloads, as there. Sessions of zero seconds
    are left out.

    `capacities` is another such file, of phones with nothing but these two. The files are JSON or pickles
    (see `traces.files.documents`; nothing in them is executed). Other data are a ValueError; the message,
    which begins with `reader`, names the file and the phone.
    """
    phones = _phones(reader, path)
    if capacities:
        known = dict(_phones(reader, capacities))
        phones = [(name, phone | known.pop(name, {})) for name, phone in phones]
        del known  # half a million phones
    names = [name for name, _ in phones]

    def place(d: int) -> str:
        return _place(reader, path, names[d])

    counts = [_num_sessions(place, d, phone) for d, (_, phone) in enumerate(phones)]
    device = np.repeat(np.arange(len(phones)), np.array(counts, np.int64))
    start, end = (_numbers([phone[name] for _, phone in phones]) for name in ("active", "inactive"))
    length = _numbers([[phone.get("finish_time") for _, phone in phones]])
    ms, kbps = (_numbers([[_capacity(phone, name) for _, phone in phones]]) for name in _UNITS)
    with np.errstate(divide="ignore"):
        speed, byte_rate = 1000 / (ms * _INFERENCES_PER_STEP), kbps * _BYTES_PER_KILOBIT
    valid = (length >= SHORTEST) & (length <= LATEST)
    session = (start == end) | (start >= 0) & (end - start >= SHORTEST) & (end <= LATEST)
    np.logical_and.at(valid, device, session & (end <= length[device]))
    for name, rate in zip(_UNITS, (speed, byte_rate), strict=True):
        unknown = np.array([_capacity(phone, name) is None for _, phone in phones], np.bool_)
        valid &= unknown | (rate >= SLOWEST) & (rate <= FASTEST)
    for d in np.flatnonzero(~valid).tolist():
        _check(place(d), phones[d][1])
    del phones  # large, and `build` needs room
    if not len(device):
        raise SettingsError(
            f"{reader}: {path}: no phone is ever available, expected FedScale's availability data"
        )
    return DeviceLog.build(
        RawSessions(device, start, end, speed[device], *[byte_rate[device]] * 2),
        np.zeros(len(names)),
        length,
        lambda i: place(int(device[i])),
        () if exact(names) else tuple(names),
    )


def _phones(reader: str, path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the phones in a file, with their names."""
    content = read_document(reader, path)
    if isinstance(content, dict):
        content = content.get("clients", content)
    if not isinstance(content, dict | list | tuple):
        raise SettingsError(f"{reader}: {path}: not a dict of phones, expected FedScale's availability data")
    phones = []
    for name, phone in content.items() if isinstance(content, dict) else enumerate(content, start=1):
        if not isinstance(phone, dict):
            place = _place(reader, path, str(name))
            raise SettingsError(f"{place}: not a dict, expected a phone of FedScale's availability data")
        phones.append((str(phone.get("id", name)).strip(), phone))
    return phones


def _place(reader: str, path: str, name: str) -> str:
    return f"{reader}: {path}, phone {name[:40]!r}"


def _num_sessions(place: Callable[[int], str], d: int, phone: dict[str, Any]) -> int:
    """Return the number of a phone's sessions."""
    active, inactive = phone.get("active"), phone.get("inactive")
    if (
        isinstance(active, list | tuple)
        and isinstance(inactive, list | tuple)
        and len(active) == len(inactive)
    ):
        return len(active)
    raise SettingsError(f"{place(d)}: active and inactive must be lists of the same length")


def _capacity(phone: dict[str, Any], name: str) -> Any:
    """Return a capacity of a phone; None if it is not given."""
    return phone.get(name, phone.get(name + _UNITS[name]))


def _numbers(lists: Sequence[Sequence[Any]]) -> NDArray[np.float64]:
    """Return all values of lists; NaN for those that are no finite numbers."""
    if {*map(type, chain.from_iterable(lists))} <= {int, float}:
        with suppress(OverflowError):
            values = np.fromiter(chain.from_iterable(lists), np.float64)
            return np.where(np.abs(values) <= _LARGEST, values, np.nan)
    numbers = (value if type(value) in (int, float) else np.nan for value in chain.from_iterable(lists))
    return np.array([value if abs(value) <= _LARGEST else np.nan for value in numbers], np.float64)


def _check(place: str, phone: dict[str, Any]) -> None:
    """Raise ValueError for the first value of a phone that is impossible."""
    length = number(place, "finish_time", phone.get("finish_time"))
    for start, end in zip(phone["active"], phone["inactive"], strict=True):
        session = number(place, "active", start), number(place, "inactive", end)
        if session[0] != session[1]:
            check_session(place, *session)
        if session[1] > length:
            raise SettingsError(f"{place}: a session ends at {end} s, after finish_time {length:g}")
    if not SHORTEST <= length <= LATEST:
        raise SettingsError(
            f"{place}: finish_time is {length:g}, give a number of seconds from {SHORTEST:g} to {LATEST:g}"
        )
    for name in _UNITS:
        if (value := _capacity(phone, name)) is not None and not number(place, name, value) > 0:
            raise SettingsError(f"{place}: {name} is {value}, give a positive number")
    ms, kbps = (number(place, name, _capacity(phone, name) or 1) for name in _UNITS)
    check_rate(place, "steps per second", 1000 / (ms * _INFERENCES_PER_STEP))
    check_rate(place, "upload rate", kbps * _BYTES_PER_KILOBIT)
