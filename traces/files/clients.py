"""Which client a line of a recording is about: by number, or by name."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from fedtide.base.numbers import exact
from fedtide.base.wording import count, plain
from traces.files.lines import alike, client_index, finite_number, whole_number
from traces.files.tables import Row

_SHOWN = 3  # names in a message


class Clients:
    """The clients of one recording: numbers in a column `client`, or any texts in a column `device`.

    Where the data name their clients, a device is the client of the same name, and a number is a name as
    well if the data's are all numbers. Where they do not, devices are clients 0, 1, ... in order of first
    appearance, and numbers are those of the clients.

    Parameters
    ----------
    reader
        The reader, for messages.
    num_clients
        N.
    names
        Names of the data's clients, N or none.

    Attributes
    ----------
    names
        Of the clients, once `found` has been called: N, "" for one without a device; () if there are none.
    """

    def __init__(self, reader: str, num_clients: int, names: Sequence[str] = ()) -> None:
        self._reader, self._num_clients, self.names = reader, num_clients, tuple(names)
        self._are_numbers = bool(names) and exact(names) is not None
        self._devices: dict[str, int] = {}  # in order of first appearance
        self._kind = ""

    @property
    def most(self) -> float:
        """What all that `read` returns, or lines of plain numbers have, is below."""
        return np.inf if self._devices or self._are_numbers else self._num_clients

    def read(self, place: str, row: Row) -> int:
        """Return the number in a row, or that of its device."""
        if "device" in row:
            if "client" in row:
                raise SettingsError(f"{place}: give a device or a client, not both")
            self._kind = alike(place, "clients", self._kind, "names of devices")
            return self._devices.setdefault(row["device"], len(self._devices))
        if "client" not in row:
            raise SettingsError(f"{place}: device is missing, give its name; or its number as client")
        self._kind = alike(place, "clients", self._kind, "numbers")
        try:
            value = finite_number(place, row["client"])
        except ValueError as error:
            raise SettingsError(f"{error}, give the client's number; names have a column device") from None
        return whole_number(place, "client", value, 0)

    def check(self, place: str, value: float) -> None:
        """Raise SettingsError for a number that no client can have."""
        client_index(place, value, self.most)

    def found(self, path: str, numbers: NDArray[Any]) -> NDArray[np.intp]:
        """Return the client of each line, shape (n,), given what `read` returned; -1: none of the data's."""
        devices, where = [*self._devices], f"{self._reader}: {path}"
        if self.names and (devices or self._are_numbers):
            if not devices:
                known, numbers = np.unique(numbers, return_inverse=True)
                devices = [f"{number:.0f}" for number in known.tolist()]
            return match(where, devices, self.names)[numbers.astype(np.intp)]
        if len(devices) > self._num_clients:
            raise SettingsError(
                f"{where}: {len(devices)} devices for {self._num_clients} clients, set --num-clients "
                f"{len(devices)}"
            )
        self.names = (*devices, *[""] * (self._num_clients - len(devices))) if devices else ()
        return numbers.astype(np.intp)


def match(where: str, devices: Sequence[str], names: Sequence[str]) -> NDArray[np.intp]:
    """Return the client of each device, given the clients' names; -1: none has its name.

    Names are compared as texts, or by value if all of them are numbers. One line says who is without a
    partner; SettingsError, which begins with `where`: no device is a client.
    """
    keys: Sequence[object] = exact([*devices, *names]) or [*devices, *names]
    if len({*keys[: len(devices)]}) < len(devices) or len({*keys[len(devices) :]}) < len(names):
        keys = [*devices, *names]  # where 1 and 01 differ
    client = {key: k for k, key in enumerate(keys[len(devices) :])}
    found = np.array([client.get(key, -1) for key in keys[: len(devices)]], np.intp)
    strangers = [device for device, k in zip(devices, found.tolist(), strict=True) if k < 0]
    silent = [names[k] for k in np.setdiff1d(np.arange(len(names)), found)]
    sides = count(len(devices), "device"), count(len(names), "client")
    if len(strangers) == len(devices):
        both = f"{sides[0]} ({_listed(devices)}) and {sides[1]} ({_listed(names)})"
        advice = "name them alike, or set by-name=false to pair them without regard to names"
        raise SettingsError(f"{where}: {both} have no name in common; {advice}")
    if strangers or silent:
        apart = [f"without a device, never online: {_listed(silent)}"] if silent else []
        apart += [f"without a client, left out: {_listed(strangers)}"] if strangers else []
        common = count(len(devices) - len(strangers), "name")
        line = f"{where}: {' and '.join(sides)} have {common} in common; {'; '.join(apart)}"
        warnings.warn(line, stacklevel=2)
    return found


def _listed(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(plain(name, 24) for name in names[:_SHOWN]) + more
