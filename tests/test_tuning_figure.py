"""The picture of the search before a comparison, also from files that nobody can have written."""

import json
from pathlib import Path

import pytest

from fedtide.report.tuning import read_searches, tuning_figure
from fedtide.tasks import ACCURACY

SEARCHES = {
    "searches": [
        {
            "varied": {"strategy": strategy},
            "trials": [
                {"values": {"learning-rate": 0.1}, "score": 0.5, "pruned": False, "rounds": 9},
                {"values": {"learning-rate": 1.0}, "score": 0.4, "pruned": True, "rounds": 3},
                {"values": {"learning-rate": 0.3}, "score": score, "pruned": False, "rounds": 9},
                {"values": {"learning-rate": 9.0}, "score": None, "pruned": False, "rounds": 9},
            ],
            "chosen": {"learning-rate": 0.3},
            "logarithmic": ["learning-rate"],
            "widened": {"learning-rate": "0.1..10"},
            "at_end": {},
        }
        for strategy, score in (("fedavg", 0.9), ("mifa", 0.8))
    ]
}


def test_the_metric_against_the_rate_by_method(tmp_path: Path) -> None:
    (tmp_path / "tuning.json").write_text(json.dumps(SEARCHES))
    searches = read_searches(tmp_path, "")
    figure = tuning_figure(searches, {"": {"fedavg": "fedavg", "mifa": "mifa"}}, [ACCURACY])
    assert figure
    assert figure.heading == "Accuracy against learning rate"
    assert not figure.choices
    view = figure.views[""]  # where the page looks without toggles
    assert view["layout"]["xaxis"]["type"] == "log"
    line, whole, given_up, chosen = (trace for trace in view["data"] if trace["name"] == "fedavg")
    assert (line["x"], line["y"]) == ([0.1, 0.3], [50, 90])
    assert (whole["x"], given_up["x"], given_up["y"], chosen["x"]) == ([0.1], [1], [40], [0.3])
    assert figure.table
    assert figure.table.rows[3] == ["fedavg", "9.0", "", "9", ""]
    assert "mifa, learning-rate to 0.1..10" in figure.notes[1]


@pytest.mark.parametrize("content", ["[]", '{"searches": 1}', '{"searches": [{"varied": {}}]}', "{"])
def test_a_search_that_nobody_can_have_written_is_left_out(content: str, tmp_path: Path) -> None:
    (tmp_path / "tuning.json").write_text(content)
    assert not read_searches(tmp_path, "")
    assert tuning_figure({}, {"": {"fedavg": "fedavg"}}, [ACCURACY]) is None
