"""Logs of fleets: devices by name, times of the calendar, columns in any order."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from fedtide.config import Settings
from fedtide.federation import Federation
from traces.recorded.device_log import Recorded, parse_timestamp, read_device_log

EIGHT = datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp()


def test_times():
    for text in (
        *("2026-03-01T08:00:00Z", "2026-03-01 08:00:00", "2026-03-01T08:00", "2026-03-01t08:00:00.000z"),
        *("2026-03-01T09:00:00+01:00", "2026-03-01 09:00:00 +0100", "2026-03-01 02:30:00.000000000-05:30"),
        *("2026-03-01 10:00+02", "2026-03-01 08:00:00 UTC"),
    ):
        assert parse_timestamp(text) == EIGHT, text
    others = "2026-03-01,20260301T080000Z,2026-02-30T08:00Z,2026-03-01T08:00:00 CET,8:00,5,,२०२६"
    assert not [text for text in others.split(",") if parse_timestamp(text) is not None]


@given(
    st.datetimes(datetime(1970, 1, 3), datetime(2200, 1, 1)),
    st.integers(-1439, 1439),
    st.sampled_from("T "),
)
def test_every_time_of_iso_8601(time, minutes, separator):
    zoned = time.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert parse_timestamp(zoned.isoformat(separator)) == pytest.approx(zoned.timestamp(), abs=1e-6)


FLEET = """# export
site,Device_ID,end_time,start_time,steps_per_second
Bern,"kitchen, pi",2026-03-01T09:00:20+01:00,2026-03-01T09:00:00+01:00,0.5
Bern,pi-2,2026-03-01 08:01:40,2026-03-01T08:00:10Z,
Basel,"kitchen, pi",2026-03-01T08:01:00Z,2026-03-01 08:00:30 UTC,2
"""
PLAIN = "client,start,end,steps_per_second\n0,0,20,0.5\n1,10,100,\n0,30,60,2\n"


def rounds(trace, count=12):
    return [array.tolist() for t in range(1, count + 1) for array in trace.round(t)]


def replay(write, text, num_clients=3):
    return Recorded(num_clients, 0, file=write(text), round_seconds=10.0, local_steps=10)


def test_a_fleet_log_gives_the_trace_of_its_plain_log(write):
    fleet, plain, semicolons = (replay(write, text) for text in (FLEET, PLAIN, PLAIN.replace(",", ";")))
    assert rounds(fleet) == rounds(plain) == rounds(semicolons)
    assert fleet.devices == ("kitchen, pi", "pi-2", "")
    assert plain.devices == ()


def test_folders_name_devices_across_files(write, tmp_path):
    (tmp_path / "logs").mkdir()
    write("device,start,end\nb,0,5\na,0,5\n", "logs/1.csv")
    write('{"device": "c", "start": 2, "end": 4}\n{"device": "a", "start": 7, "end": 8}\n', "logs/2.jsonl")
    log = read_device_log("test", str(tmp_path / "logs"), 3)
    assert (log.names, log.first.tolist()) == (("b", "a", "c"), [0, 1, 3, 4])
    write("client,start,end\n0,0,5\n", "logs/3.csv")
    with pytest.raises(
        ValueError, match=r"3\.csv, line 2: the clients are numbers, but names of devices before"
    ):
        read_device_log("test", str(tmp_path / "logs"), 3)


texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=6)
names = texts.map(str.strip).filter(bool).filter(lambda name: name[0] != "#")  # such a line is a comment
spans = st.tuples(st.integers(0, 5000), st.integers(1, 500), st.integers(-720, 720), st.sampled_from("T "))


@given(
    devices=st.lists(names, min_size=1, max_size=4, unique=True),
    plan=st.lists(st.tuples(st.integers(0, 3), spans), min_size=1, max_size=8),
    columns=st.permutations(["device", "start", "end", "steps_per_second", "note"]),
    as_json=st.booleans(),
)
def test_what_is_written_is_read(write, devices, plan, columns, as_json):
    """Sessions, one after the other at each device, with times in any zone."""
    now, sessions = dict.fromkeys(devices, 0), []
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    if not as_json:
        writer.writeheader()
    for device, (gap, length, minutes, separator) in plan:
        name, zone = devices[device % len(devices)], timezone(timedelta(minutes=minutes))
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


FIRST = "2026-03-01T08:00,2026-03-01T09:00"
MISTAKES = {  # header, lines -> message
    ("device,begin,end",): "line 1: the header is 'device,begin,end', expected the columns device or client,",
    ("device,start,device_id,end",): "line 1: there are 2 columns device, leave one",
    ("device,start,end", ",0,5"): "line 2: device is missing, give its name",
    ("device,start,end", "a,,5"): "line 2: start is missing, give seconds or a time such as",
    ("device,start,end", "a,0,today"): "line 2: 'today' is not a finite number, give seconds or a time",
    ("device,start,end", "a,0,2026-03-01T08:00"): "line 2: the times are timestamps, but seconds before",
    ("client,start,end", f"0,{FIRST}", "0,9,10"): "line 3: the times are seconds, but timestamps before",
    ("device,start,end", "a,-5,5"): "line 2: the session starts at -5 s, give times of 0 s or later",
    ("device,client,start,end", "a,0,1,2"): "line 2: give a device or a client, not both",
    ("client,start,end", "pi,0,5"): "line 2: 'pi' is not a finite number, give the client's number",
    ("end,start,client", "5,0,7"): "line 2: client 7 does not exist, the clients are 0 to 1",
    ("device,start,end", "a,5,1", "b,0,x"): "line 2: the session starts at 5 s but ends at 1 s",
    ("device,start,end", "a,0,1", "b,0,1", "c,0,1"): "3 devices for 2 clients, set --num-clients 3",
    ("device,start,end", "a,2026-03-01T09:00,2026-03-01T08:00"): (
        "line 2: the session starts at 2026-03-01T09:00:00Z but ends at 2026-03-01T08:00:00Z,"
    ),
    ('{"device": ["a"], "start": 0, "end": 5}',): "line 1: device is ",
    ('{"device": "a", "start": 0, "device_id": "b"}',): "line 1: there are 2 columns device",
}


@pytest.mark.parametrize("lines", MISTAKES, ids=" / ".join)
def test_mistakes(write, lines):
    path = write("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"^test: ") as refusal:
        read_device_log("test", path, 2)
    assert str(refusal.value).startswith(tuple(f"test: {path}{sign} {MISTAKES[lines]}" for sign in ",:"))


def test_results_can_be_traced_back_to_devices(write, tmp_path: Path, capsys):
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


def test_members_that_arrive_late_keep_their_devices(write):
    settings = Settings(trace=f"recorded:file={write(FLEET)}", num_clients=2, arrivals="1=3")
    assert Federation.of(settings).trace.devices == ("kitchen, pi", "pi-2")
