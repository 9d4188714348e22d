"""Clients that have names in the data and in recordings: the same client, whatever the order in either."""

import csv
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtide
import sim
from clients.torch_client import environment
from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.report.__main__ import main as report
from fedtide.tasks.data import client_names

Write = Callable[..., str]


def data_of(write: Write, names: list[str]) -> str:
    """Task of a CSV file with ten rows for each client."""
    rows = [f"{name},{i},{i % 2}" for i in range(10) for name in names]
    path = write("\n".join(["who,x,y", *rows, ""]), "data.csv")
    return f"csv:file={path},target=y,client=who"


def sessions(log: dict[str, int], column: str = "device") -> str:
    """A log in which each device is online in one round."""
    return f"{column},start,end\n" + "".join(f"{name},{(t - 1) * 600},{t * 600}\n" for name, t in log.items())


def rounds(log: dict[str, int], column: str = "device") -> str:
    return f"round,{column},completion\n" + "".join(f"{t},{name},1\n" for name, t in log.items())


def fedscale(log: dict[str, int]) -> str:
    return json.dumps(
        {
            name: {"active": [600 * (t - 1)], "inactive": [600 * t], "finish_time": 9000}
            for name, t in log.items()
        }
    )


def flash(log: dict[str, int]) -> str:
    def phone(t: int) -> dict[str, str]:
        begin, end = (f"2020-01-31 {m // 60:02}:{m % 60:02}:00\t" for m in (10 * t - 10, 10 * t))
        start = [f"{begin}{event}" for event in ("screen_lock", "battery_charged_on", "wifi")]
        return {"messages": "\n".join(["2020-01-31 00:00:00\tscreen_on", *start, f"{end}screen_unlock"])}

    return json.dumps({name: phone(t) for name, t in log.items()})


FORMATS: dict[str, Callable[[dict[str, int]], str]] = {
    "recorded": sessions,
    "table": rounds,
    "phones": fedscale,
    "flash": flash,
}


def seen(settings: Settings, count: int = 9) -> dict[str, int]:
    """Return the round in which each client is online, by its name in the data."""
    federation = Federation.of(settings)
    trace, names = federation.trace, client_names(federation.data)
    online = np.array([trace.round(t).online for t in range(1, count + 1)])
    assert (online.sum(0) <= 1).all()
    return {name: int(online[:, k].argmax()) + 1 for k, name in enumerate(names) if online[:, k].any()}


def of(write: Write, names: list[str], kind: str, text: str, more: str = "") -> Settings:
    trace = f"{kind}:file={write(text, 'log')},repeat=false{more}"
    return Settings(task=data_of(write, names), trace=trace, num_clients=len(set(names)))


@given(
    st.lists(
        st.text("abcZ09 .-ä", min_size=1).map(str.strip).filter(bool), min_size=1, max_size=6, unique=True
    ),
    st.permutations(range(9)),
    st.sampled_from([*FORMATS]),
    st.randoms(use_true_random=False),
)
def test_every_client_has_the_device_of_its_name(
    write: Write, given: list[str], places: list[int], kind: str, random: Any
) -> None:
    names = [f"x{name}" for name in given]  # not all of them are numbers
    log = dict(zip(names, (place + 1 for place in places), strict=False))
    log |= {f"left out {t}": t for t in range(1, 10) if t not in log.values()}  # no round is missing
    order = [*log]
    random.shuffle(order)
    settings = of(write, names, kind, FORMATS[kind]({name: log[name] for name in order}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert seen(settings) == {name: log[name] for name in names}
        assert Federation.of(settings).trace.devices == client_names(Federation.of(settings).data)


@pytest.mark.parametrize("kind", [*FORMATS])
def test_those_without_a_partner_are_named_in_one_line(write: Write, kind: str) -> None:
    log = {"e": 1, "c": 2, "a": 3, "gateway": 4}
    settings = of(write, ["a", "b", "c", "d"], kind, FORMATS[kind](log))
    says = "4 devices and 4 clients have 2 names in common; without a device, never online: b, d"
    with pytest.warns(UserWarning, match=says + "; without a client, left out: e, gateway$"):
        assert seen(settings) == {"c": 2, "a": 3}
    with pytest.raises(
        fedtide.SettingsError, match=r"4 devices \(e, c, a, ...\) and 2 clients .* no name in"
    ):
        Federation.of(of(write, ["x", "y"], kind, FORMATS[kind](log))).trace


@pytest.mark.parametrize("column", ["client", "device"])
def test_numbers_are_names_where_those_of_the_data_are(write: Write, column: str) -> None:
    """1, 01 and 1.0 are the same; and client 3 is not the fourth."""
    for kind in ("recorded", "table"):
        log = {"12": 1, "3": 2, "7": 3}
        settings = of(write, ["03", "7.0", "12"], kind, FORMATS[kind](log, column))  # type: ignore[call-arg]
        assert seen(settings) == {"03": 2, "7.0": 3, "12": 1}
        settings = of(write, ["b", "c", "a"], kind, FORMATS[kind]({"2": 1, "0": 2, "1": 3}, "client"))  # type: ignore[call-arg]
        assert seen(settings) == {"a": 2, "b": 3, "c": 1}  # numbers of clients, as without names
        assert Federation.of(settings).trace.devices == ()
        half = FORMATS[kind]({"4": 1, "3.5": 2}, "client")  # type: ignore[call-arg]
        with pytest.raises(fedtide.SettingsError, match=r"client is 3\.5, give a whole number"):
            Federation.of(of(write, ["3", "4"], kind, half)).trace


def test_phones_with_numbers_are_drawn(write: Write) -> None:
    text = fedscale({"3": 1, "2": 2, "1": 3})
    named, drawn = of(write, ["1", "2", "3"], "phones", text), of(write, ["a", "b", "c"], "phones", text)
    rounds = [[Federation.of(s).trace.round(t).online.tolist() for t in (1, 2, 3)] for s in (named, drawn)]
    assert rounds[0] == rounds[1]


def test_names_can_be_left_out_of_account(write: Write) -> None:
    settings = of(write, ["b", "a"], "recorded", sessions({"p": 1, "a": 2}), ",by-name=false")
    assert seen(settings) == {"a": 1, "b": 2}
    assert Federation.of(settings).trace.devices == ("p", "a")


def test_recordings_agree_with_each_other(write: Write) -> None:
    """Where the data have no names, those of the first recording count."""
    log, table = (
        write(sessions({"b": 1, "a": 2, "c": 2}), "log"),
        write(rounds({"a": 2, "c": 2, "b": 1}), "table"),
    )
    trace = Federation.of(Settings(trace=f"recorded:file={log}+table:file={table}", num_clients=4)).trace
    assert trace.devices == ("b", "a", "c", "")
    assert [np.flatnonzero(trace.round(t).online).tolist() for t in (1, 2)] == [[0], [1, 2]]


def test_arrays_name_their_clients(write: Write, tmp_path: Path) -> None:
    x, owners = np.arange(40.0).reshape(40, 1), np.array(["p10", "p9", "p2", "p1"] * 10, object)
    task = fedtide.Task.from_arrays(x, np.arange(40) % 2, clients=owners)
    log = write(sessions({"p9": 1, "p2": 2, "p10": 3, "p1": 4}))
    run = fedtide.run(
        **{"task": task, "trace": f"recorded:file={log}", "num_clients": 4, "num_rounds": 4, "report": False},
        run_dir=str(tmp_path),
    )
    assert [record["active"] for record in run.records[1:]] == [[3], [2], [1], [0]]  # p1, p10, p2, p9
    for wrong in (["a", None], [0.5, 1.0], ["a", ""], [True, False]):
        with pytest.raises(fedtide.SettingsError, match="whole numbers from 0 on, or names"):
            fedtide.Task.from_arrays(x[:2], [0, 1], clients=np.array(wrong, object if "a" in wrong else None))


def test_a_client_with_test_examples_alone_is_one(write: Write) -> None:
    names = [f"{k}" for k in range(30)]
    settings = Settings(task=data_of(write, names).replace("data.csv", "one.csv"), num_clients=30)
    write("who,x,y\n" + "".join(f"{name},{k},{k % 2}\n" for k, name in enumerate(names)), "one.csv")
    data = Federation.of(settings).data
    assert client_names(data) == tuple(names)
    assert np.count_nonzero(data.sizes == 0) == 6
    assert data.sizes.sum() == 24


def test_clients_on_nodes_of_flower_go_by_the_same_names(write: Write) -> None:
    settings = of(write, ["a", "b", "c"], "recorded", sessions({"c": 1, "a": 2, "b": 3}))
    _, trace = environment(settings.for_clients(), "cpu")
    assert [trace.round(t).online.tolist() for t in (1, 2, 3)] == [
        Federation.of(settings).trace.round(t).online.tolist() for t in (1, 2, 3)
    ]


@pytest.mark.parametrize("more", [[], ["--round-ends=1", "--num-rounds=3"]])
def test_runs_and_reports_bear_the_names(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    """Also where the trace knows none, and without the data and the log that had them."""
    task = data_of(write, ["Zoe", "Ada", "Bo"])
    named = f"--trace=recorded:file={write(sessions({'Bo': 1, 'Zoe': 2, 'Ada': 3}), 'log')}"
    always = "--trace=sessions:kind=always"
    for trace, who in ((named, [[1], [2], [0]]), (always, [])):
        arguments = [f"--task={task}", trace, "--num-clients=3", "--num-rounds=3", "--engine=inline"]
        assert sim.main([*arguments, f"--run-dir={tmp_path / 'runs'}", "--json", *more]) == 0
        folder = Path(json.loads(capsys.readouterr().out)["run_dir"])
        with (folder / "clients.csv").open(newline="") as file:
            assert [*csv.reader(file)] == [["client", "name"], ["0", "Ada"], ["1", "Bo"], ["2", "Zoe"]]
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert not who or [record["active"] for record in records[1:]] == who
        assert "Zoe" in (folder / "report.html").read_text()
        (folder / "report.html").unlink()
    (tmp_path / "data.csv").unlink()
    assert report([str(folder)]) == 0
    assert "Zoe" in (folder / "report.html").read_text()
