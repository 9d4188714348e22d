"""The virtual clock against recordings, of different origins and lengths, evaluated second by second."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.base import in_seconds, microseconds
from traces.recorded.log import DeviceLog, RawSessions
from traces.recorded.recording import Recording

HORIZON = 500  # seconds in which 25 steps are finished, with pauses of at most 11 s for each, or never


class Unrolled:
    """A device with one flag per second of its recording, evaluated second by second."""

    def __init__(self, origin, flags, repeat):
        self.origin, self.flags, self.repeat = origin, flags, repeat

    def online(self, second):
        cycle, second = divmod(second - self.origin, len(self.flags))
        return (cycle == 0 or (cycle > 0 and self.repeat)) and self.flags[second]

    def next_online(self, begin):
        """The first second from `begin` on in which it is online; infinite if there is none."""
        found = (float(second) for second in range(begin, begin + HORIZON) if self.online(second))
        return next(found, np.inf)

    def task(self, begin, steps, transfers, deadline, pause):
        """Steps of one second that are finished, after how long it is over, and when the device leaves."""
        online = [self.online(second) for second in range(begin, begin + HORIZON)]
        stays = online.index(False) if False in online else np.inf
        time = sum(online) if pause else stays
        after = None
        if time >= steps + transfers:
            after = int(np.searchsorted(np.cumsum(online), steps + transfers)) + 1
        elif not pause:
            after = stays
        if deadline and (after is None or after > deadline):
            after, time = deadline, sum(online[:deadline])
        if after is None:  # its recording ends
            return 0, HORIZON - online[::-1].index(True), stays
        return min(max(time - transfers, 0), steps), after, stays


@st.composite
def recordings(draw):
    """Origins and flags of some devices, and the seconds at which their sessions are cut in two."""
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        flags = draw(st.lists(st.booleans(), min_size=1, max_size=12) | st.lists(st.just(True), min_size=1))
        cuts = draw(st.sets(st.integers(1, len(flags))))
        drawn.append((draw(st.integers(0, 20)), flags, cuts))
    return drawn


def runs(flags, cuts):
    """Start and end of the runs of True, cut at some seconds into adjacent sessions."""
    first = None
    for second, flag in enumerate([*flags, False]):
        if first is not None and (not flag or second in cuts):
            yield first, second
            first = None
        if flag and first is None:
            first = second


def replay(sessions, origin, finish, rate=np.nan, seed=0, **options):
    """The trace of clients with these sessions, in which all have one rate of steps and of bytes."""
    device, start, end = np.array(sessions).reshape(-1, 3).T
    rates = np.full(len(sessions), rate)
    log = DeviceLog.build(RawSessions(device, start, end, rates, rates, rates), origin, finish, str)

    class Replayed(Recording, name="replayed"):
        def read(self):
            return log, np.arange(len(origin))

    return Replayed(len(origin), seed, **options)


@settings(max_examples=300)
@given(
    devices=recordings(),
    begin=st.integers(0, 40),
    length=st.integers(1, 40),
    now=st.integers(0, 60),
    steps=st.integers(1, 25),
    download=st.integers(0, 2),
    upload=st.integers(0, 3),
    pause=st.booleans(),
    repeat=st.booleans(),
    data=st.data(),
)
def test_against_unrolled_recordings(
    devices, begin, length, now, steps, download, upload, pause, repeat, data
):
    """In event time, in rounds, and in rounds in which clients go on after the deadline."""
    deadline = data.draw(st.integers(0, length))
    sessions = [
        (k, origin + first, origin + end)
        for k, (origin, flags, cuts) in enumerate(devices)
        for first, end in runs(flags, cuts)
    ]
    origin = np.array([origin for origin, _, _ in devices], float)
    finish = origin + [len(flags) for _, flags, _ in devices]
    options = {"round_seconds": length, "deadline": deadline, "begin": begin}
    options |= {"upload_bytes": upload, "download_bytes": download}
    options = {key: float(value) for key, value in options.items()} | {"local_steps": steps, "repeat": repeat}
    options["on_interrupt"] = "pause" if pause else "stop"
    seen, late = (replay(sessions, origin, finish, 1.0, late=late, **options) for late in (False, True))
    assert late.has_late_replies
    unrolled = [Unrolled(origin, flags, repeat) for origin, flags, _ in devices]
    start = int(origin.min()) + begin

    moment = int(microseconds(now))
    online = seen.is_online(moment)
    assert online.tolist() == [device.online(start + now) for device in unrolled]
    expected = [device.next_online(start + now) - start for device in unrolled]
    assert in_seconds(seen.next_online(np.full(len(devices), moment))).tolist() == expected
    clients = np.flatnonzero(online)[::-1]
    moments, completions = seen.tasks(moment, 1, clients)
    leave = in_seconds(seen.leave(moment, clients)) - now
    for i, k in enumerate(clients.tolist()):
        done, after, stays = unrolled[k].task(start + now, steps, download + upload, deadline, pause)
        assert (completions[i], moments[i], leave[i]) == (done / steps, moment + after * 10**6, stays)

    for t in (9, 1, 2, 30):
        now, ends, delay = start + (t - 1) * length, deadline or length, late.delay(t)
        for k, device in enumerate(unrolled):
            assert seen.round(t).online[k] == late.round(t).online[k] == device.online(now)
            if device.online(now):
                done, *_ = device.task(now, steps, download + upload, ends, pause)
                assert seen.round(t).completion[k] == np.float32(done / steps)
                done, after, _ = device.task(now, steps, download + upload, 0, pause)
                assert late.round(t).completion[k] == np.float32(done / steps)
                if done:
                    assert delay[k] == max(0, -(-(after - ends) // length))
            else:
                assert seen.round(t).completion[k] == late.round(t).completion[k] == 0
