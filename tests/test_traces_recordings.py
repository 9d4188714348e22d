"""What is read from recordings: logs, tables of rounds, FedScale's and FLASH's phones, and posts."""

import csv
import io
import json
import pickle
import warnings
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_traces_files import VALID, messages, phone

import sim
from fedtide.config import Settings
from fedtide.federation import Federation
from traces import TRACES
from traces.files.tables import read_numbers
from traces.patterns.sleep import Sleep, quietest
from traces.recorded.device_log import Recorded, parse_timestamp, read_device_log
from traces.recorded.fedscale import Phones, read_fedscale, shipped_phones
from traces.recorded.flash import Flash, read_flash
from traces.recorded.round_table import RoundTable

EIGHT = datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp()
HEADER = "client,start,end,steps_per_second\n"


# Tables of numbers


def lines(path):
    """Line numbers and values; None for a missing one."""
    found = read_numbers("test", path, ("a", "b"), ("c",))
    return [(number, tuple(None if np.isnan(v) else v for v in values)) for number, values in found]


ONE_TWO = [(2, (1.0, 2.0, None))]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b,c\n1,2.5,\n\n# a note\n-3e2,.5,7\n", [(2, (1.0, 2.5, None)), (5, (-300.0, 0.5, 7.0))]),
        ('{"a": 1, "b": 2.5}\n{"c": 7, "a": -300, "b": 0.5}\n', [(1, (1, 2.5, None)), (2, (-300, 0.5, 7))]),
        (b"\xef\xbb\xbfa,b\r\n 1 , 2\r\n", ONE_TWO),
        (b'\xef\xbb\xbf{"a":1,"b":2}\r\n', [(1, (1.0, 2.0, None))]),
        ("a,b\n1,2\n", ONE_TWO),
        ("b,x,A\n2,5,1\n", ONE_TWO),
        ('x,b,a\n"y,z",2,1\n', ONE_TWO),
        ('x;b;a\n"y;z, ";2;1\n', ONE_TWO),
        ("a;b\n-1,5;2,25e1\n1;2\n", [(2, (-1.5, 22.5, None)), (3, (1.0, 2.0, None))]),
        ("", []),
    ],
)
def test_numbers_in_tables(write, content, expected):
    assert lines(write(content)) == expected


@pytest.mark.parametrize("torn", ["3,4", "3", "3,40"])
def test_a_torn_last_line_is_left_out_with_a_warning(write, torn):
    path = write(f"a,b\n1,2\n{torn}")
    with pytest.warns(UserWarning, match="line 3: no newline at the end, left out as torn"):
        assert lines(path) == ONE_TWO


# Tables of rounds


def test_a_table_of_rounds(write):
    trace, once = (RoundTable(3, 0, file=write(VALID["table"]), repeat=repeat) for repeat in (True, False))
    assert trace.num_rounds == 3
    online = [trace.round(t).online.astype(int).tolist() for t in (1, 2, 3)]
    assert online == [[1, 0, 1], [0, 0, 0], [1, 1, 0]]
    assert [trace.round(t).completion.tolist() for t in (1, 3)] == [[1, 0, 0.5], [0.25, 0, 0]]
    assert trace.round(3).member.all()
    assert all(np.array_equal(a, b) for a, b in zip(trace.round(7), trace.round(1), strict=True))
    assert not once.round(4).online.any()


@given(data=st.data(), num_rounds=st.integers(1, 6))
def test_a_table_reads_back_what_was_written(write, data, num_rounds):
    shares = st.one_of(st.none(), st.integers(0, 8).map(lambda i: i / 8))
    drawn = [[data.draw(shares) for _ in range(3)] for _ in range(num_rounds)] + [[1.0, None, None]]
    rows = [
        {"round": t, "client": k, "completion": share}
        for t, row in enumerate(drawn, start=1)
        for k, share in enumerate(row)
        if share is not None
    ]
    rows += [{"round": t} for t, row in enumerate(drawn, start=1) if row == [None] * 3]
    rows = data.draw(st.permutations(rows))
    trace = RoundTable(3, 0, file=write("".join(json.dumps(row) + "\n" for row in rows)))
    for t, row in enumerate(drawn, start=1):
        assert trace.round(t).online.tolist() == [share is not None for share in row]
        assert trace.round(t).completion.tolist() == [share or 0 for share in row]


# Logs of fleets: devices by name, times of the calendar, columns in any order


def test_times():
    for text in (
        *("2026-03-01T08:00:00Z", "2026-03-01 08:00:00", "2026-03-01T08:00", "2026-03-01t08:00:00.000z"),
        *("2026-03-01T09:00:00+01:00", "2026-03-01 09:00:00 +0100", "2026-03-01 02:30:00.000000000-05:30"),
        *("2026-03-01 10:00+02", "2026-03-01 08:00:00 UTC"),
    ):
        assert parse_timestamp(text) == EIGHT, text
    others = "2026-03-01,20260301T080000Z,2026-02-30T08:00Z,2026-03-01T08:00:00 CET,8:00,5,,२०२६"
    assert not [text for text in others.split(",") if parse_timestamp(text) is not None]


FLEET = """# export
site,Device_ID,end_time,start_time,steps_per_second
Bern,"kitchen, pi",2026-03-01T09:00:20+01:00,2026-03-01T09:00:00+01:00,0.5
Bern,pi-2,2026-03-01 08:01:40,2026-03-01T08:00:10Z,
Basel,"kitchen, pi",2026-03-01T08:01:00Z,2026-03-01 08:00:30 UTC,2
"""
PLAIN = HEADER + "0,0,20,0.5\n1,10,100,\n0,30,60,2\n"


def test_a_fleet_log_gives_the_trace_of_its_plain_log(write):
    def replay(text):
        trace = Recorded(3, 0, file=write(text), round_seconds=10.0, local_steps=10)
        return trace.devices, [array.tolist() for t in range(1, 13) for array in trace.round(t)]

    (names, fleet), (none, plain), (_, semicolons) = map(replay, (FLEET, PLAIN, PLAIN.replace(",", ";")))
    assert fleet == plain == semicolons
    assert (names, none) == (("kitchen, pi", "pi-2", ""), ())


texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=6)
names = texts.map(str.strip).filter(bool).filter(lambda name: name[0] != "#")  # such a line is a comment
minutes = st.integers(-1439, 1439)


@given(
    devices=st.lists(names, min_size=1, max_size=4, unique=True),
    plan=st.lists(
        st.tuples(
            *(st.integers(0, 3), st.integers(0, 5000), st.integers(1, 500)), minutes, st.sampled_from("T ")
        ),
        min_size=1,
        max_size=8,
    ),
    columns=st.permutations(["device", "start", "end", "steps_per_second", "note"]),
    as_json=st.booleans(),
)
def test_a_log_reads_back_what_was_written(write, devices, plan, columns, as_json):
    """Sessions, one after the other at each device, with times in any zone."""
    now, sessions = dict.fromkeys(devices, 0), []
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    if not as_json:
        writer.writeheader()
    for device, gap, length, ahead, separator in plan:
        name, zone = devices[device % len(devices)], timezone(timedelta(minutes=ahead))
        start, end = now[name] + gap, now[name] + gap + length
        now[name] = end
        shown = (datetime.fromtimestamp(EIGHT + time, zone).isoformat(separator) for time in (start, end))
        row = dict(zip(("device", "start", "end"), (name, *shown), strict=True))
        row |= {"steps_per_second": 0.5, "note": "a,b"}
        if as_json:
            file.write(json.dumps({key: row[key] for key in columns}) + "\n")
        else:
            writer.writerow(row)
        sessions.append((name, EIGHT + start, EIGHT + end))
    order = list(dict.fromkeys(name for name, _, _ in sessions))
    log = read_device_log("test", write(file.getvalue()), 4)
    assert log.names == (*order, *[""] * (4 - len(order)))
    expected = sorted((order.index(name), start, end) for name, start, end in sessions)
    owner = np.repeat(np.arange(4), np.diff(log.first))
    assert list(zip(owner.tolist(), log.start / 1e6, log.end / 1e6, strict=True)) == expected
    assert (log.speed == 0.5).all()


@given(st.datetimes(datetime(1970, 1, 3), datetime(2200, 1, 1)), minutes, st.sampled_from("T "))
def test_every_time_of_iso_8601(time, ahead, separator):
    zoned = time.replace(tzinfo=timezone(timedelta(minutes=ahead)))
    assert parse_timestamp(zoned.isoformat(separator)) == pytest.approx(zoned.timestamp(), abs=1e-6)


def test_folders_of_logs(write, tmp_path):
    """They name devices across files."""
    folder = tmp_path / "logs"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"logs: the folder has no \.csv or \.jsonl files"):
        read_device_log("test", str(folder), 3)
    write("no log", "logs/notes.txt")
    write("device,start,end\nb,0,5\na,0,5\n", "logs/1.csv")
    write('{"device": "c", "start": 2, "end": 4}\n{"device": "a", "start": 7, "end": 8}\n', "logs/2.jsonl")
    log = read_device_log("test", str(folder), 3)
    assert (log.names, log.first.tolist()) == (("b", "a", "c"), [0, 1, 3, 4])
    for content, message in (
        ("client,start,end\n0,0,5\n", "line 2: the clients are numbers, but names of devices before"),
        ("device,start,end\n# x\na,4,3\n", "line 3: the session starts at 4 s but ends at 3 s"),
    ):
        write(content, "logs/3.csv")
        with pytest.raises(ValueError, match=rf"logs/3\.csv, {message}"):
            read_device_log("test", str(folder), 3)


def test_results_can_be_traced_back_to_devices(write, tmp_path, capsys):
    path = write(FLEET)
    arguments = ["--trace", f"recorded:file={path}+lost:p=0.1", "--num-clients=3", "--num-rounds=1"]
    arguments += ["--engine=inline", "--model=logistic", f"--run-dir={tmp_path / 'runs'}", "--json"]
    assert sim.main(arguments) == 0
    folder = Path(json.loads(capsys.readouterr().out)["run_dir"])
    with (folder / "clients.csv").open(newline="") as file:
        assert [*csv.reader(file)] == [["client", "name"], ["0", "kitchen, pi"], ["1", "pi-2"], ["2", ""]]
    arguments[0] = "--show-trace"
    assert sim.main(arguments) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["devices"] == ["kitchen, pi", "pi-2", ""]
    assert 'clients 0 "kitchen, pi", 1 "pi-2"' in shown.err
    settings = Settings(trace=f"recorded:file={path}", num_clients=2, arrivals="1=3")  # arrives late
    assert Federation.of(settings).trace.devices == ("kitchen, pi", "pi-2")


# Sessions of one device that overlap, and sessions without an end


def sessions(log):
    """Device, start, end, speed (None if unknown), and when the device leaves, of each session."""
    device = np.repeat(np.arange(log.num_devices), np.diff(log.first))
    speed = [None if np.isnan(value) else value for value in log.speed]
    start, end, leave = (moments / 1e6 for moments in (log.start, log.end, log.leave))
    return [*zip(device.tolist(), start, end, speed, leave, strict=True)]


@pytest.mark.parametrize(
    ("rows", "expected", "says"),
    [
        (  # the second starts before the first ends
            "0,0,10,1\n0,5,20,2\n",
            [(0, 0, 5, 1, 20), (0, 5, 20, 2, 20)],
            r"log.csv, line 3: the session from 5 s overlaps the device's session from 0 s to 10 s; 1 ",
        ),
        (  # two within one: the first of these has a speed, which the other inherits
            "0,30,40,\n0,0,100,1\n0,10,20,2\n0,100,110,\n",
            [(0, 0, 10, 1, 110), (0, 10, 30, 2, 110), (0, 30, 100, 2, 110), (0, 100, 110, None, 110)],
            r"line 4: the session from 10 s overlaps .* from 0 s to 100 s; 2 sessions joined",
        ),
        (  # the same start; of another device nothing is inherited
            "1,0,30,\n0,0,10,1\n0,0,30,\n",
            [(0, 0, 30, 1, 30), (1, 0, 30, None, 30)],
            r"line 4: the session from 0 s overlaps",
        ),
        (  # without an end: until the end of the log
            "0,0,,\n1,5,30,\n1,40,,\n0,50,60,\n",
            [(0, 0, 50, None, 60), (0, 50, 60, None, 60), (1, 5, 30, None, 30), (1, 40, 60, None, 60)],
            r"line \d: the session from 50 s overlaps .* from 0 s to 60 s",
        ),
    ],
    ids=["partly", "within", "same start", "without an end"],
)
@pytest.mark.parametrize("form", ["csv", "json"])
def test_overlapping_sessions_are_joined(write, rows, expected, says, form):
    if form == "json":
        table = csv.DictReader(io.StringIO(HEADER + rows))
        numbers = ({key: float(text) if text else None for key, text in row.items()} for row in table)
        rows = "".join(json.dumps(row) + "\n" for row in numbers)
    path = write((HEADER if form == "csv" else "# JSON\n") + rows, "log.csv")
    with pytest.warns(UserWarning, match=says):
        assert sessions(read_device_log("test", path, 2)) == expected


def test_the_latest_time_in_a_log_may_be_a_start(write):
    """The session that starts then has no duration, and is left out."""
    found = sessions(read_device_log("test", write("client,start,end\n0,2,\n1,9,\n"), 2))
    assert found == [(0, 2, 9, None, 9)]


times = st.integers(0, 12)
spans = st.tuples(times, times).filter(lambda pair: pair[0] < pair[1])


@given(rows=st.lists(st.tuples(st.integers(0, 1), spans, st.sampled_from(["", "1", "2"])), min_size=1))
def test_at_every_moment_the_session_that_started_last_holds(write, rows):
    path = write(HEADER + "".join(f"{k},{a},{b},{speed}\n" for k, (a, b), speed in rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sessions(read_device_log("test", path, 2))
    for client in (0, 1):
        own = sorted(((a, b, speed) for k, (a, b), speed in rows if k == client), key=lambda row: row[0])
        for now in np.arange(0.5, 13):
            holding = [(speed, leave) for k, a, b, speed, leave in found if k == client and a <= now < b]
            assert len(holding) == any(a <= now < b for a, b, _ in own)
            if not holding:
                continue
            i = max(i for i, row in enumerate(own) if row[0] <= now)
            while not own[i][2] and any(own[i][0] < b for _, b, _ in own[:i]):
                i -= 1
            speed = float(own[i][2]) if own[i][2] else None
            away = (t for t in np.arange(now, 14) if not any(a <= t < b for a, b, _ in own))
            assert holding == [(speed, next(away) - 0.5)]


# Phones


def test_fedscale_by_hand(write):
    content = {
        7: phone([0, 100, 100], [60, 100, 250], computation=50.0, communication=8000.0),
        8: phone([], [], model="x", duration=0),
    }
    for path in (
        write(json.dumps(content)),
        write(json.dumps({"clients": [{"id": k, **v} for k, v in content.items()]}), "list"),
        *(write(pickle.dumps(content, protocol), f"pickle{protocol}") for protocol in range(6)),
    ):
        log = read_fedscale("test", path)
        assert log.num_devices == 2
        assert log.first.tolist() == [0, 2, 2]
        assert (log.start / 1e6).tolist() == [0, 100]
        assert (log.end / 1e6).tolist() == [60, 250]  # the session of zero seconds is left out
        assert (log.cycle / 1e6).tolist() == [1000, 1000]
        assert log.speed == pytest.approx([1000 / 1500] * 2)  # 3 * 50 ms * 10 examples per step
        assert log.up_rate.tolist() == [1e6, 1e6]
    content = {1: phone([0, 5], [8, 9], computation=1)}
    with pytest.warns(UserWarning, match="phone '1': the session from 5 s overlaps"):
        log = read_fedscale("test", write(json.dumps(content)))
    assert np.array([log.start, log.end, log.leave]).tolist() == [[0, 5e6], [5e6, 9e6], [9e6, 9e6]]


def test_shipped_phones():
    assert shipped_phones().stat().st_size < 300_000
    log = read_fedscale("test", str(shipped_phones()))
    assert log.num_devices == 100
    content = json.loads(shipped_phones().read_text())
    assert content["licence"] == "Apache-2.0"
    assert sum(len(p["active"]) for p in content["clients"]) == 6306
    online = (log.end - log.start).sum() / log.cycle.sum()
    assert 0.7 < online < 0.8  # the most available phones of all
    assert np.isfinite(log.speed).all()

    trace = TRACES["phones"](100, 3, round_seconds=1800.0)
    rounds = [trace.round(t) for t in range(1, 241)]  # five days
    online = np.array([r.online for r in rounds])
    completion = np.array([r.completion for r in rounds])
    assert 0.6 < online.mean() < 0.85
    assert online.mean(axis=0).min() > 0.1
    assert ((completion > 0) & (completion < 1)).any()  # some leave before they complete
    assert np.array_equal(Phones(20, 3, round_seconds=1800.0).round(9).online, online[8, :20])
    assert not np.array_equal(Phones(100, 4, round_seconds=1800.0).round(9).online, online[8])
    with pytest.raises(ValueError, match="101 clients for 100 devices"):
        Phones(101, 3)


def test_flash_by_hand(write):
    content = messages(
        "08:00:00\tbattery_charged_on",
        "08:00:10\twifi",
        "08:01:00\tscreen_lock",  # online
        "08:02:00\t45%",
        "08:03:00\t4G",  # offline after 120 s
        "08:04:00\tWIFI",  # online again
        "08:04:30\tscreen_unlock",  # offline after 30 s
        "08:05:00\tscreen_lock",  # online again, until the last message
        "08:06:00\tscreen_on",
    )
    content["a"]["messages"] = "\n".join(content["a"]["messages"].splitlines()[::-1])  # sorted when read
    content |= {"b": {"messages": "\n\0\n"}, "c": messages("07:59:00\twifi")["a"]}
    log = read_flash("test", write(json.dumps(content)))
    zero = log.origin[2]  # 07:59:00
    assert log.first.tolist() == [0, 3, 3, 3]
    assert ((log.start - zero) / 1e6).tolist() == [120, 300, 360]
    assert ((log.end - zero) / 1e6).tolist() == [240, 330, 420]
    assert ((log.origin - zero) / 1e6).tolist() == [60, 0, 0]
    assert log.cycle[0] == 360_000_000
    trace = Flash(3, 0, file=write(json.dumps(content)), round_seconds=60.0, repeat=False)
    a = int(np.argmax([trace.round(3).online]))
    online = [t for t in range(1, 10) if trace.round(t).online[a]]
    assert online == [3, 4, 6, 7]  # 120, 180, 300, 360 s


# Posts


def test_sleep_from_posts(write):
    hour = 3600
    posts = [(0, 23 * hour), (0, 86400 + 12 * hour), (0, 18 * hour), (1, 6 * hour), (1, 7 * hour)]
    file = write("client,seconds\n" + "".join(f"{k},{s}\n" for k, s in posts))
    trace = Sleep(2, 0, period=24, file=file)
    # Client 0: the eight hours after 23 h hold no post; client 1: those after 7 h hold none, after 6 h one.
    assert trace.begin.tolist() == [23 * hour, 7 * hour]
    seen = np.array([trace.round(t).online for t in range(1, 25)])
    assert np.flatnonzero(seen[:, 0]).tolist() == [0, 1, 2, 3, 4, 5, 6, 23]
    assert np.flatnonzero(seen[:, 1]).tolist() == list(range(7, 15))


def test_quietest_by_brute_force():
    rng = np.random.default_rng(5)
    for _ in range(50):
        posts = rng.integers(0, 86400, rng.integers(1, 30)).astype(float)
        inside = [sum(0 < d < 28800 for d in (posts - s) % 86400) for s in np.sort(posts)]
        assert quietest(posts, 28800.0) == np.sort(posts)[int(np.argmin(inside))]
