"""Runs on connected nodes: who is a member, and when, and what ends a run before it begins."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common import FitIns, FitRes
from flwr.server import History
from flwr.supercore.constant import TaskType
from grid_nodes import Federation, eventually, trained
from numpy.typing import NDArray

from fedtide.config import Settings
from fedtide.devices.connected import ConnectedClients
from fedtide.devices.deadlines import RoundDeadlines
from fedtide.devices.flower_compat import is_simulated
from fedtide.devices.flower_run import names_trace, run_on_grid
from fedtide.devices.grid import GridTransport
from fedtide.engine.availability import RoundClock, TraceClientManager
from fedtide.engine.experiment import prepare
from fedtide.engine.server import RoundServer
from fedtide.plan import Plan
from strategies import Roster


def test_members_are_who_has_connected(federation: Federation) -> None:
    """Three clients, of which two begin; one comes later, one leaves and returns, one is silent for long."""
    said: dict[str, bool] = {}

    def leaving(ins: FitIns) -> FitRes:
        return trained(ins, round=int(ins.config["round"]), **said)

    node = [federation.node(0), federation.node(1, leaving)]
    settings = Settings(num_clients=3, num_rounds=99, model="logistic", strategy="mifa:departure=exclude")
    nodes = GridTransport(federation.grid, 3, RoundDeadlines(60.0), replay=False)
    founders = nodes.connect(np.arange(3), 60.0, 2)
    trace = ConnectedClients(3, nodes, founders, max_absence=2)
    experiment = prepare(Plan.of(settings), tune=False, observed=lambda: trace)
    trace.roster = experiment.strategy.roster
    records: list[dict[str, Any]] = []
    server = RoundServer(
        experiment.strategy,
        TraceClientManager(RoundClock(trace).round, nodes, 0),
        observers=[records.append],
    )
    server.parameters = experiment.strategy.initialize_parameters(server.client_manager())
    number = 0

    def play() -> dict[str, Any]:
        nonlocal number
        number += 1
        return server._run_round(number, None, History())

    def events(record: dict[str, Any]) -> list[tuple[str, int]]:
        return [(event["event"], event["client"]) for event in record["events"]]

    def resumed() -> NDArray[np.bool_]:
        """Return the members of the second round of a run that goes on from a checkpoint now."""
        again = ConnectedClients(3, nodes, nodes.reachable(), max_absence=2)
        again.roster = Roster(np.zeros(3, np.int64))
        again.roster.load_state_dict(experiment.strategy.roster.state_dict())
        again.round(number + 1)
        return again.round(number + 2).member

    first = play()
    assert (first["selected"], first["active"], first["events"]) == ([0, 1], [0, 1], [])
    assert first["members"] == first["available"] == [0, 1]
    assert first["deadline_seconds"] == 60.0
    node.append(federation.node(2))
    eventually(lambda: nodes.reachable().size == 3)
    assert events(play()) == [("arrival", 2)]
    said["departing"] = True
    assert play()["active"] == [0, 1, 2]
    left = play()
    assert (left["selected"], left["offline"], events(left)) == ([0, 2], 0, [("departure", 1)])
    said.clear()
    assert events(play()) == []  # it is still connected
    assert resumed().tolist() == [True, False, True]
    federation.stop(node[1])
    play()
    federation.again(node[1])
    assert events(play()) == [("arrival", 1)]
    federation.stop(node[2])
    silent = [(1, []), (1, []), (0, [("departure", 2)])]
    assert [(record["offline"], events(record)) for record in (play(), play(), play())] == silent
    federation.again(node[2])
    eventually(lambda: 2 in nodes.reachable())
    assert resumed().tolist() == [True, True, True]
    assert events(play()) == [("arrival", 2)]
    assert trace.round(2).member.tolist() == [True, True, True]  # as it was


def test_a_trace_is_replayed_where_the_user_chose_one(federation: Federation) -> None:
    grid, default = federation.grid, Settings()
    assert not is_simulated(grid)
    assert not names_trace(grid, default)
    assert names_trace(grid, Settings(trace="phones"))  # in pyproject.toml
    grid._run = replace(grid.run, override_config={"trace": default.trace})
    assert names_trace(grid, default)
    grid._run = replace(grid.run, primary_task_type=TaskType.SIMULATION)
    assert is_simulated(grid)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (TaskType.SIMULATION, r"only 0 of num-clients=6 .*num-supernodes=6"),
        (
            TaskType.SERVER_APP,
            r"only 0 of .* after 0 s; 4 are needed \(min-nodes\); clients 0, 1",
        ),
    ],
)
def test_too_few_nodes(federation: Federation, tmp_path: Path, kind: str, says: str) -> None:
    federation.grid._run = replace(federation.grid.run, primary_task_type=kind)
    settings = Settings(num_clients=6, min_nodes=4, connect_timeout=0.0, run_dir=str(tmp_path / "runs"))
    with pytest.raises(ValueError, match=says):
        run_on_grid(federation.grid, settings)
    assert not (tmp_path / "runs").exists()


def test_boards_have_data_of_their_own(federation: Federation, tmp_path: Path) -> None:
    """However many examples they have: the server's split of its data says nothing about them."""
    for client in range(2):
        federation.node(client, lambda ins: replace(trained(ins), num_examples=10_000))
    settings = Settings(num_clients=2, num_rounds=2, run_dir=str(tmp_path), evaluate_every=2, report="none")
    run_on_grid(federation.grid, settings)
    (metrics,) = tmp_path.glob("*/metrics.jsonl")
    _, *rounds = map(json.loads, metrics.read_text().splitlines())
    assert [record["active"] for record in rounds] == [[0, 1], [0, 1]]
