"""The Failure Trace Archive: when nodes of clusters, grids and peer-to-peer networks were available."""

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from traces.files.lines import MAX_LINE_BYTES, decode_line, finite_number, open_data
from traces.recorded.log import SHORTEST, DeviceLog, RawSessions, check_session
from traces.recorded.recording import DrawnRecording

_COMPONENT, _NODE, _TYPE, _START, _STOP = 1, 2, 5, 6, 7  # columns of event_trace.tab
_AVAILABLE = 1


@dataclass(frozen=True, kw_only=True)
class FailureArchive(DrawnRecording, name="fta"):
    """Nodes that replay a trace of the Failure Trace Archive on a virtual clock (see `Recording`).

    The file is an ``event_trace.tab`` of Kondo et al. (CCGrid 2010); online means available. Clients are
    assigned nodes at random, by the seed, each node at most once. All nodes share the calendar; each
    recording, from the first to the last time of its node, starts over at its own end.
    """

    def read(self) -> tuple[DeviceLog, NDArray[np.intp]]:
        return self.assign_devices(read_failure_archive("trace fta", self.file))


def read_failure_archive(reader: str, path: str) -> DeviceLog:
    """Read the events of a trace of the Failure Trace Archive.

    A line has, separated by tabs or spaces, an event's number, component, node, platform, name of the node,
    type, start and stop in seconds, and perhaps the reason for its end. A node was available during events of
    type 1, and not during others. Lines that start with ``#`` are comments.

    Other data are a ValueError, whose message begins with `reader` and names file and line; so is a node with
    several components, such as processor and memory, of which each has a trace of its own.
    """
    nodes: dict[str, int] = {}
    components: list[str] = []
    rows = array("d")  # of five numbers
    with open_data(reader, path) as file:
        for line, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            place = f"{reader}: {path}, line {line}"
            if (text := decode_line(place, raw)) is None:
                continue
            fields = text.split("\t") if "\t" in text else text.split()
            if len(fields) <= _STOP:
                raise SettingsError(f"{place}: {len(fields)} columns, expected those of an event_trace.tab")
            node = nodes.setdefault(fields[_NODE], len(nodes))
            if node == len(components):
                components.append(fields[_COMPONENT])
            if components[node] != fields[_COMPONENT]:
                both = f"components {components[node][:20]} and {fields[_COMPONENT][:20]}"
                raise SettingsError(f"{place}: node {fields[_NODE][:20]} has {both}, leave the lines of one")
            kind, *times = (finite_number(place, fields[k].strip()) for k in (_TYPE, _START, _STOP))
            check_session(place, times[0], times[1])
            rows.extend((line, node, kind, *times))
    events = np.array(rows).reshape(-1, 5)
    device, start, stop = events[:, 1].astype(int), events[:, 3], events[:, 4]
    online = (events[:, 2] == _AVAILABLE) & (start < stop)
    if not online.any():
        raise SettingsError(f"{reader}: {path}: no event of type 1, during which a node is available")
    begin, finish = np.full(len(nodes), np.inf), np.zeros(len(nodes))
    np.minimum.at(begin, device, start)
    np.maximum.at(finish, device, stop)
    lines = events[online, 0]
    return DeviceLog.build(
        RawSessions(device[online], start[online], stop[online]),
        begin,
        np.maximum(finish, begin + SHORTEST),  # any length for a node that is never available
        lambda i: f"{reader}: {path}, line {lines[i]:.0f}",
    )
