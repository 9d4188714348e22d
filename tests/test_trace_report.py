"""`--show-trace`: the statistics of small traces by hand, the page, and the command."""

import io
import json
import re
from datetime import UTC, datetime
from itertools import groupby

import numpy as np
import pytest
from rich.console import Console

import sim
from fedtide.config import Settings
from fedtide.engine.client_states import State
from fedtide.federation import Federation
from fedtide.report.participation import StateGrid
from fedtide.report.participation_figure import participation_figure
from fedtide.report.trace import participation_of, print_lines
from fedtide.report.trace_statistics import SpellLengths, describe, observe
from traces import Combined, Membership, RoundAvailability, Trace

OFF = -1.0


class Given(Trace):
    """A trace given by an array of rounds x clients, with OFF or a completion."""

    def __init__(self, rows, lost=()):
        self.rows, self.num_clients, self.losses = np.array(rows), len(rows[0]), lost

    def round(self, t):
        row = self.rows[t - 1]
        online = row >= 0
        return RoundAvailability(np.ones(len(row), bool), online, np.where(online, row, 0).astype(np.float32))

    def lost(self, t):
        return np.array([(t, client) in self.losses for client in range(self.num_clients)])


ROWS = [
    [1.0, 0.5, OFF],
    [1.0, 0.0, OFF],
    [OFF, 1.0, 1.0],
    [OFF, OFF, OFF],
]
SIZES = np.array([1, 1, 2])  # p = 1/4, 1/4, 1/2


def report_on(trace, num_rounds, sizes=SIZES, steps=4, **more):
    return observe(trace, num_rounds, sizes, np.full(trace.num_clients, steps), **more)


def ratios(bias):
    return dict(bias.favoured) | dict(bias.neglected)


def test_three_clients_and_four_rounds_by_hand():
    report = report_on(Given(ROWS), 4)
    assert report.online == pytest.approx([2 / 3, 2 / 3, 2 / 3, 0])
    assert report.sessions == SpellLengths(3, 2.0, 2, 3, 1)  # 2, 3, 1
    assert report.gaps == SpellLengths(4, 1.5, 1, 2, 0)  # 2; 1; 2, 1
    assert report.unanswered == SpellLengths(5, 1.4, 1, 2, 0)  # 2; 1, 1; 2, 1
    assert (report.complete, report.incomplete, report.dropped) == pytest.approx((4 / 6, 1 / 6, 1 / 6))
    assert report.finished == 0.5
    assert (report.never_seen, report.availability_period, report.virtual_seconds) == (0, 3, None)
    a, b, c = report.bias
    # A: 3 p / K: client 0 has 3/4 twice, in round 3 client 1 has 3/8 and client 2 3/4. Full: 4 p.
    assert a.scale == pytest.approx((1.5 + 0.375 + 0.75) / 4)
    assert ratios(a) == pytest.approx({0: 1.5 / 0.65625, 1: 0.375 / 0.65625, 2: 0.375 / 0.65625})
    # B: p s / E: 2/4, 1.5/4, 1/2.
    assert b.scale == pytest.approx(1.375 / 4)
    assert ratios(b) == pytest.approx({0: 0.5 / 0.34375, 1: 0.375 / 0.34375, 2: 0.25 / 0.34375})
    # C: p for each reply: 2/4, 2/4, 1/2.
    assert c.scale == pytest.approx(1.5 / 4)
    assert ratios(c) == pytest.approx({0: 4 / 3, 1: 4 / 3, 2: 2 / 3})
    assert (c.minimum, c.median, c.maximum) == pytest.approx((2 / 3, 4 / 3, 4 / 3))
    assert [client for client, _ in b.favoured] == [0, 1]
    assert [client for client, _ in b.neglected] == [2]


def test_spells_counted_one_by_one():
    trace = Federation.of(Settings(trace="markov:on=3,off=5", num_clients=40)).trace
    report = report_on(trace, 60, sizes=np.ones(40))
    online = np.array([trace.round(t).online for t in range(1, 61)]).T.tolist()
    for spells, holds in ((report.sessions, True), (report.gaps, False)):
        lengths = sorted(len(list(run)) for row in online for value, run in groupby(row) if value == holds)
        assert (spells.count, spells.longest) == (len(lengths), lengths[-1])
        assert spells.mean == pytest.approx(np.mean(lengths))
        assert spells.median == lengths[(len(lengths) - 1) // 2]


def test_a_lost_reply_counts_as_dropped():
    seen = {}
    report = report_on(
        Given(ROWS, lost={(1, 0), (4, 2)}), 4, on_round=lambda t, states: seen.update({t: states})
    )
    assert seen[1].tolist() == [State.LOST, State.INCOMPLETE, State.OFFLINE]
    assert seen[4].tolist() == [State.OFFLINE] * 3
    assert report.complete == pytest.approx(3 / 6)
    assert report.sessions.longest == 3  # it was online nevertheless
    assert ratios(report.bias[2])[0] == pytest.approx(0.25 / (1.25 / 4))


def test_clients_count_only_while_they_are_members():
    trace = Combined(Given(ROWS), Membership(3, {2: 3}, {0: 3}))
    seen = {}
    report = report_on(trace, 4, on_round=lambda t, states: seen.update({t: states}))
    assert seen[1].tolist() == [State.COMPLETE, State.INCOMPLETE, State.ABSENT]
    assert report.online == pytest.approx([1, 1, 1, 0])
    assert report.gaps == SpellLengths(2, 1.0, 1, 1, 1)
    assert report.availability_period == 2
    # Shares: 1/2, 1/2 in rounds 1 and 2, then 1/3, 2/3. C: client 0 has 2/2 of 2/2, client 1 1/2 + 1/3 of
    # 2/2 + 2/3, client 2 2/3 of 4/3.
    scale = (1 + 5 / 6 + 2 / 3) / 4
    assert ratios(report.bias[2]) == pytest.approx({0: 1 / scale, 1: 0.5 / scale, 2: 0.5 / scale})


def test_a_member_that_is_never_online_breaks_assumption_4():
    report = report_on(Given([[1.0, OFF, 0.0]] * 5), 5)
    assert (report.never_seen, report.never_seen_first, report.availability_period) == (1, [1], None)
    assert report.gaps.longest == 5
    assert [bias.excluded for bias in report.bias] == [2, 2, 2]
    text = dict(describe(report))
    assert text["never seen"] == "1 client: 1"
    assert "does not hold" in text["Assumption 4"]
    assert "5 rounds (client 1)" in text["tau_max"]


@pytest.mark.parametrize("rows", [[[0.0, 0.0, OFF]], [[OFF, OFF, OFF]], None])
def test_nothing_ever_arrives_or_nobody_is_a_member(rows):
    trace = Given(rows or ROWS[:1])
    if rows is None:
        trace = Combined(trace, Membership(3, {0: 5, 1: 5, 2: 5}, {}))
    report = report_on(trace, 1)
    assert [bias.scale for bias in report.bias] == [0, 0, 0]
    assert dict(describe(report))["scheme-c"] == "no update ever counts"
    assert (report.online[0] is None) == np.isnan(report.rates).all() == (rows is None)


def test_scheme_c_is_unbiased_if_work_is_incomplete_and_nobody_inactive():
    # Corollary 4.0.1: the first five pools are never inactive; A and B favour the fast.
    trace = Federation.of(Settings(trace="pools:first=5", num_clients=50)).trace
    a, b, c = report_on(trace, 200, sizes=np.arange(1, 51), steps=10).bias
    assert (c.minimum, c.maximum, c.scale) == pytest.approx((1, 1, 1))
    assert b.maximum > 3 * b.minimum
    assert a.minimum == 0


def test_lost_and_late_replies_have_states_of_their_own():
    trace = Federation.of(Settings(trace="always+lost:p=0.4+late:p=0.5,rounds=2", num_clients=30)).trace
    grid = StateGrid(30, range(1, 21))
    report = report_on(trace, 20, sizes=np.ones(30), on_round=grid.add)
    found = participation_of(trace, report, grid)
    for t in range(1, 21):
        late = np.where(trace.delay(t) > 0, State.LATE, State.COMPLETE)
        expected = np.where(trace.lost(t), State.LOST, late)
        np.testing.assert_array_equal(found.grid.states[:, t - 1], expected)
        assert found.took_part[t - 1] == pytest.approx((~trace.lost(t)).mean())
    assert found.hours is None
    assert report.rates == pytest.approx(1 - np.mean([trace.lost(t) for t in range(1, 21)], axis=0))


FLEET = """device,start,end
kitchen <b>,2026-03-01T08:00Z,2026-03-01T10:00Z
pi-7,2026-03-01T09:00Z,2026-03-01T11:00Z
"""


@pytest.mark.parametrize("rounds", [6, 7])
def test_devices_and_times_of_the_calendar(write, rounds):
    """Rounds of half an hour, the first at eight; the seventh would begin after the log."""
    settings = Settings(trace=f"recorded:file={write(FLEET)},round-seconds=1800+lost:p=0.0", num_clients=2)
    trace = Federation.of(settings).trace
    grid = StateGrid(2, range(1, rounds + 1))
    report = report_on(trace, rounds, sizes=np.ones(2), on_round=grid.add)
    found = participation_of(trace, report, grid)
    assert dict(describe(report, found.devices))["longest absence"].endswith('client 0 "kitchen <b>")')
    figure = participation_figure([("", found)])
    (heat, *curves), layout = figure.views["availability|time"].values()
    assert heat["rows"] == ['client 0 "kitchen &lt;b&gt;"', 'client 1 "pi-7"']
    assert layout["yaxis2"]["ticktext"] == ["kitchen &lt;b&gt;", "pi-7"]
    if rounds == 7:
        assert found.began is None
        assert heat["columns"][6] == "round 7, until hour 3.5"
        assert heat["x"][6] == 3.5
    else:
        assert found.began == datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp()
        assert heat["columns"][5] == "round 6, until 2026-03-01 11:00:00 UTC"
        assert heat["x"][0] == curves[0]["x"][0] == "2026-03-01 08:30:00"
        assert layout["xaxis"]["range"] == ["2026-03-01 08:15:00", "2026-03-01 11:15:00"]
        assert (
            "2026-03-01 08:00:00 to 2026-03-01 11:00:00"
            in dict(describe(report, began=found.began))["virtual time"]
        )


def test_the_page_depends_on_all_that_is_on_it(tmp_path):
    changes = "local-steps=3 batch-size=7 seed=3 partition=iid sizes=pareto:index=1 arrivals=3=4"
    for change in ["", *changes.split(), "strategy=mifa", "learning-rate=0.7"]:
        assert call(tmp_path, "--show-trace=bernoulli", *([f"--{change}"] if change else [])) == 0
    pages = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert len(pages) == 1 + len(changes.split())
    (text,) = [text for text in pages.values() if "seed 3" in text]
    assert "10 clients · 20 rounds · E = 10 local steps · task digits · seed 3" in text


def test_no_number_is_broken_on_a_narrow_terminal():
    whole = "mean 12.5 rounds, lowest 87.0% (round 259); client-17 (0.08), p=1e-5"
    file = io.StringIO()
    print_lines(Console(file=file, width=34, force_terminal=True), [("sessions", whole), ("gaps", "none")])
    lines = file.getvalue().splitlines()
    assert len(lines) > 3
    assert all(len(line) <= 34 for line in lines)
    assert " ".join(" ".join(lines).split()) == f"sessions {whole} gaps none"


def call(tmp_path, *arguments):
    return sim.main(["--num-clients=10", "--num-rounds=20", f"--run-dir={tmp_path}", *arguments])


def test_the_command_prints_a_summary_and_writes_a_page(tmp_path, capsys):
    assert call(tmp_path, "--show-trace=phones:cost=30", "--arrivals=9=5", "--json") == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert (report["num_clients"], len(report["online"])) == (10, 20)
    assert [bias["scheme"] for bias in report["bias"]] == ["scheme-a", "scheme-b", "scheme-c"]
    for name in ("online", "sessions", "Assumption 4", "tau_max", "scheme-a", "virtual time"):
        assert re.search(f"^{name} ", printed.err, re.MULTILINE), name
    assert "examples of digits, partition dirichlet" in printed.err
    (file,) = tmp_path.iterdir()
    assert str(file) == report["page"]
    text = file.read_text()
    assert "Trace phones:cost=30 · arrivals 9=5" in text
    assert "Virtual time" in text


def test_rates_by_labels_are_those_of_the_data(tmp_path, capsys):
    spec = "labels:dynamics=markov,floor=0.1"
    assert call(tmp_path, "--show-trace", spec, "--partition=dirichlet:alpha=1", "--json") == 0
    trace = Federation.of(Settings(trace=spec, num_clients=10, partition="dirichlet:alpha=1")).trace
    shown = json.loads(capsys.readouterr().out)["online"]
    assert shown == pytest.approx([trace.round(t).online.mean() for t in range(1, 21)])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--num-clients=3000"], "shares .* equal \\(.*3000 clients for"),
        (["--task=mnist", "--data-dir=nowhere"], "shares .* equal, as the data of mnist are not in nowhere"),
        (["--local-epochs=2"], "shares .* examples of digits"),
        (["--clients-per-round=2"], "sampling .* ignored"),
    ],
)
def test_the_summary_gives_the_source_of_the_shares(tmp_path, capsys, arguments, says):
    assert call(tmp_path, "--show-trace=always", *arguments) == 0
    assert re.search(says, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--show-trace=nonesuch"], "unknown trace 'nonesuch'"),
        (["--show-trace=always", "--partition=nonesuch"], "unknown partition"),
        (["--show-trace=always", "--sizes=nonesuch"], "unknown sizes"),
        (["--show-trace=always", "--local-steps=0"], "local-steps is 0; it must be at least 1"),
        (["--show-trace=always", "--departures=10=3"], "client 10 does not exist"),
        (["--show-trace=always", "--run-dir=pyproject.toml/x"], "run-dir pyproject.toml/x: "),
        (["--show-trace=labels", "--num-clients=5000"], "5000 clients for 1438 examples"),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, arguments, says):
    with pytest.raises(SystemExit) as caught:
        call(tmp_path, *arguments)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
