"""The virtual clock against recordings, of different origins and lengths, evaluated second by second."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

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

    def seconds(self, begin, deadline, pause):
        """Seconds of work by the deadline of a round; None if the device is offline when it starts."""
        online = [self.online(second) for second in range(begin, begin + deadline)]
        if not online[0]:
            return None
        return sum(online) if pause or all(online) else online.index(False)

    def work(self, begin, steps, pause):
        """Steps of one second that are finished, and when; 0 steps if pauses never end."""
        done = 0
        for second in range(begin, begin + HORIZON):
            online = self.online(second)
            done += online
            if done == steps or not (online or pause):
                return done, second - begin + online
        return 0, None

    def next_online(self, begin):
        """The first second from `begin` on in which it is online; infinite if there is none."""
        return next(
            (float(second) for second in range(begin, begin + HORIZON) if self.online(second)), np.inf
        )

    def task(self, begin, steps, upload, deadline, pause):
        """Steps of one second that are finished, after how long it is over, and when the device leaves."""
        online = [self.online(second) for second in range(begin, begin + HORIZON)]
        stays = online.index(False) if False in online else np.inf
        time = sum(online) if pause else stays
        after = None
        if time >= steps + upload:
            after = int(np.searchsorted(np.cumsum(online), steps + upload)) + 1
        elif not pause:
            after = stays
        if deadline and (after is None or after > deadline):
            after, time = deadline, sum(online[:deadline])
        if after is None:  # its recording ends
            return 0, HORIZON - online[::-1].index(True), stays
        return min(max(time - upload, 0), steps), after, stays


@st.composite
def recordings(draw):
    """Origins and flags of some devices, and the seconds at which their sessions are cut in two."""
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        flags = draw(st.lists(st.booleans(), min_size=1, max_size=12) | st.lists(st.just(True), min_size=1))
        cuts = draw(st.sets(st.integers(1, len(flags))))
        drawn.append((draw(st.integers(0, 20)), flags, cuts))
    return drawn


def replayed(devices, pause, **options):
    """The trace of clients that replay these recordings, with a step per second."""
    sessions = [
        (k, origin + first, origin + end)
        for k, (origin, flags, cuts) in enumerate(devices)
        for first, end in runs(flags, cuts)
    ]
    device, start, end = np.array(sessions).reshape(-1, 3).T
    ones = np.ones(len(sessions))
    origin = np.array([origin for origin, _, _ in devices], float)
    finish = origin + [len(flags) for _, flags, _ in devices]
    built = DeviceLog.build(RawSessions(device, start, end, ones, ones), origin, finish, str)

    class Replayed(Recording, name="replayed"):
        def read(self):
            return built, np.arange(len(devices))

    return Replayed(len(devices), 0, on_interrupt="pause" if pause else "stop", **options)


@settings(max_examples=300)
@given(
    devices=recordings(),
    begin=st.integers(0, 40),
    seconds=st.integers(1, 40),
    data=st.data(),
    pause=st.booleans(),
    repeat=st.booleans(),
)
def test_against_unrolled_recordings(devices, begin, seconds, data, pause, repeat):
    deadline = data.draw(st.integers(1, seconds))
    clock = {"round_seconds": float(seconds), "deadline": float(deadline), "begin": float(begin)}
    trace = replayed(devices, **clock, repeat=repeat, pause=pause, local_steps=100)
    unrolled = [Unrolled(origin, flags, repeat) for origin, flags, _ in devices]
    for t in (9, 1, 2, 3, 4, 30):
        now = min(origin for origin, _, _ in devices) + begin + (t - 1) * seconds
        expected = [device.seconds(now, deadline, pause) for device in unrolled]
        found = trace.round(t)
        assert found.online.tolist() == [work is not None for work in expected]
        assert np.array_equal(
            found.completion, np.array([(work or 0) / 100 for work in expected], np.float32)
        )


def runs(flags, cuts):
    """Start and end of the runs of True, cut at some seconds into adjacent sessions."""
    first = None
    for second, flag in enumerate([*flags, False]):
        if first is not None and (not flag or second in cuts):
            yield first, second
            first = None
        if flag and first is None:
            first = second


@settings(max_examples=300)
@given(
    devices=recordings(),
    begin=st.integers(0, 40),
    seconds=st.integers(1, 20),
    steps=st.integers(1, 25),
    data=st.data(),
    pause=st.booleans(),
    repeat=st.booleans(),
)
def test_late_replies(devices, begin, seconds, steps, data, pause, repeat):
    """A client goes on after the deadline; what it hands in, and by how many rounds that is late."""
    deadline = data.draw(st.integers(1, seconds))
    clock = {"round_seconds": float(seconds), "deadline": float(deadline), "begin": float(begin)}
    trace = replayed(devices, **clock, repeat=repeat, pause=pause, local_steps=steps, late=True)
    for t in (1, 2, 7):
        now = min(origin for origin, _, _ in devices) + begin + (t - 1) * seconds
        found, late = trace.round(t), trace.delay(t)
        for k, (origin, flags, _) in enumerate(devices):
            device = Unrolled(origin, flags, repeat)
            assert found.online[k] == device.online(now)
            if not device.online(now):
                continue
            done, after = device.work(now, steps, pause)
            assert found.completion[k] == np.float32(done / steps)
            if done:
                assert late[k] == max(0, -(-(after - deadline) // seconds))
