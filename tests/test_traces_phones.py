"""FedScale's and FLASH's phones, and those in the package."""

import json
import pickle

import numpy as np
import pytest

from traces import TRACES
from traces.recorded.fedscale import Phones, read_fedscale, shipped_phones
from traces.recorded.flash import Flash, read_flash

# FedScale


def phone(active, inactive, **changes):
    return {"active": active, "inactive": inactive, "finish_time": 1000, **changes}


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({1: phone([0], [5, 7])}, "phone '1': active and inactive must be lists of the same length"),
        ({1: {"finish_time": 9}}, "phone '1': active and inactive must be lists"),
        ({1: phone("0", "5")}, "phone '1': active and inactive must be lists"),
        ({1: phone([5], [3])}, "phone '1': the session starts at 5 s but ends at 3 s"),
        ({1: phone([-5], [3])}, "phone '1': the session starts at -5 s"),
        ({1: phone([0], [1001])}, "phone '1': a session ends at 1001 s, after finish_time 1000"),
        ({1: phone([0], ["5"])}, "phone '1': inactive is '5', give a number"),
        ({1: phone([True], [5])}, "phone '1': active is 'True', give a number"),
        ({1: phone([0], [5], finish_time=None)}, "phone '1': finish_time is 'None', give a number"),
        ({1: phone([0], [5], computation=0)}, "phone '1': computation is 0, give a positive number"),
        ({1: phone([0], [5], communication=-1)}, "phone '1': communication is -1"),
        ({1: phone([], [], finish_time=0)}, "phone '1': finish_time is 0"),
        ({1: [0, 5]}, "phone '1': not a dict, expected a phone of FedScale's availability data"),
        ([5], "phone '1': not a dict"),
        ({"clients": 5}, "not a dict of phones"),
        ({}, "no phone is ever available"),
        ({1: phone([], [])}, "no phone is ever available"),
    ],
)
def test_invalid_fedscale(write, content, message):
    with pytest.raises(ValueError, match=message):
        read_fedscale("test", write(json.dumps(content)))


def test_nan_in_a_fedscale_pickle(write):
    with pytest.raises(ValueError, match="active is NaN, give a number"):
        read_fedscale("test", write(pickle.dumps({1: phone([float("nan")], [5])})))


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


def test_phones():
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


def messages(*events):
    return {"guid": "x", "model": "y", "messages": "".join(f"2020-01-31 {e}\n" for e in events)}


def test_flash_by_hand(write):
    content = {
        "a": messages(
            "08:00:00\tbattery_charged_on",
            "08:00:10\twifi",
            "08:01:00\tscreen_lock",  # online
            "08:02:00\t45%",
            "08:03:00\t4G",  # offline after 120 s
            "08:04:00\tWIFI",  # online again
            "08:04:30\tscreen_unlock",  # offline after 30 s
            "08:05:00\tscreen_lock",  # online again, until the last message
            "08:06:00\tscreen_on",
        ),
        "b": {"messages": "\n\0\n"},
        "c": messages("07:59:00\twifi"),
    }
    content["a"]["messages"] = "\n".join(content["a"]["messages"].splitlines()[::-1])  # sorted when read
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "not a dict of phones"),
        ({"a": {}}, "phone 'a': no messages"),
        ({"a": messages("08:00:00 wifi")}, "message 1: '2020-01-31 08:00:00 wifi' is not a time, a tab"),
        ({"a": messages("08:00:00\twifi", "25:00:00\twifi")}, "message 2: .* 25:00:00 is not a valid time"),
        ({"a": messages("08:00:00\tdance")}, "phone 'a', message 1: unknown event 'dance'; known: "),
        ({"a": messages("08:00:00\twifi")}, "no phone is ever locked, charging and on Wi-Fi"),
    ],
)
def test_invalid_flash(write, content, message):
    with pytest.raises(ValueError, match=message):
        read_flash("test", write(json.dumps(content)))
