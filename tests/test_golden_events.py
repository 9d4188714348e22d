"""Exact trajectories in event time of an independent reference: the real strategies, the real client code.

When replies arrive, and which tasks fail, is taken from the reference's timelines. Who is asked is not, but
where the reference selects by a rule that is no method's own.
"""

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from devices import Device
from fakes import TableManager
from golden_cases import close, devices_of, strategy_of, variants
from test_golden import METHODS, VALUES, check_state, layers_of

from strategies import STRATEGIES

OPTIONS = {  # others have our names
    "objective": "departure",
    "unseen": "first_round",
    "C": "clients_per_round",
    "B": "round_ends",
}
OWN_OPTIONS = {"fedbuff": {"a": "staleness"}}
# What the reference does where a variant does not say otherwise: literally the papers, not our defaults.
REFERENCE: dict[str, dict[str, Any]] = {
    "fedavg": {"weights": "uniform"},
    "fedbuff": {"buffer": 1},
    "mifa": {"normalize": False},
    "fedlaavg": {"units": "update", "weights": "none", "normalize": False},
    "fedau": {"weights": "uniform", "cutoff": 0, "normalize": False},
    "fedawe": {"evaluate": "newest"},
    "fedvarp": {"weights": "uniform", "units": "update", "normalize": False},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trajectory" in metafunc.fixturenames:
        metafunc.parametrize("trajectory", variants(metafunc.config, ["event"]))


def make_strategy(problem: dict[str, Any], case: dict[str, Any], given: dict[str, Any]) -> Any:
    """The strategy of a variant, of which `given` are the options."""
    method, hyper = given["method"], {"E": case["E"], **case.get("hyper", {})}
    name = METHODS[method]
    known = {field.name for field in fields(STRATEGIES[name].options_type())}
    names = OPTIONS | OWN_OPTIONS.get(method, {})
    own = {key: case[key] for key in ("B", "C", "seed") if key in case} | hyper | given
    options = {names.get(key, key): VALUES.get(key, {}).get(str(value), value) for key, value in own.items()}
    options = REFERENCE.get(method, {}) | {key: value for key, value in options.items() if key in known}
    return strategy_of(problem, {**case, "hyper": hyper}, name, layers=layers_of(given, hyper), **options)


def online(case: dict[str, Any], now: float) -> list[int]:
    """Whose recording has a session at this moment."""
    at = now % case.get("cycle", math.inf)
    return sorted({client for client, start, end, *_ in case["sessions"] if start <= at < end})


def play(
    case: dict[str, Any], given: dict[str, Any], timeline: Any, strategy: Any, devices: list[Device]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rounds of a timeline, each when it is over."""
    manager, under_way = TableManager(), dict[int, Any]()
    parameters, events = strategy.initialize_parameters(manager), case.get("events", [])
    for t, now in enumerate(timeline, start=1):
        begin = now["begin"]
        due = [e for e in events if e.get("round", math.inf) <= t or e.get("second", math.inf) <= begin]
        events = [event for event in events if event not in due]
        manager.arrived = [event["cid"] for event in due if event["type"] == "arrive"]
        manager.departed = [event["cid"] for event in due if event["type"] == "depart"]
        manager.working = [*under_way]
        manager.online = now["selected"] if "select" in case | given else online(case, begin)
        asked = strategy.configure_fit(t, parameters, manager)
        assert strategy.selected.tolist() == now["selected"]
        assert asked.withdrawn == [str(client) for client, _ in now.get("cancelled", [])]
        for name in asked.withdrawn:
            del under_way[int(name)]
        under_way |= {int(proxy.cid): (proxy, instruction, t) for proxy, instruction in asked}
        results = []
        for client, task, _, steps, _ in now["arrived"]:
            proxy, instruction, since = under_way.pop(client)
            assert since == task
            results.append((proxy, devices[client].fit(instruction, steps)))
        for client, *_ in now["failed"]:
            del under_way[client]
        parameters, _ = strategy.aggregate_fit(t, results, [])
        yield t, now


def ages(timeline: Any, w: Any) -> dict[int, int]:
    """How often the weights have changed between the task of each client's last reply and the last update."""
    changes, found = np.diff(w, axis=0).any(axis=1), {}
    for t, now in enumerate(timeline):
        found |= {client: lag + int(changes[t:-1].sum()) for client, _, lag, *_ in now["arrived"]}
    return found


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant = case["variants"][name]
    given, timeline = variant["opts"], case["timelines"][variant["timeline"]]
    strategy, devices = make_strategy(problem, case, given), devices_of(problem)
    assert len(variant["w"]) == len(timeline)
    for t, now in play(case, given, timeline, strategy, devices):
        assert strategy.learning_rate == pytest.approx(variant["lr_used"][t - 1], rel=1e-12)
        for reply in case["replies"][t - 1] if name == case["primary"] else ():
            close(devices[reply["cid"]].update, reply["delta"], f"delta of {reply['cid']} in round {t}")
        counted = set(strategy.report.active.tolist())
        lags = {client: lag for client, task, lag, *_ in now["arrived"] if task != t and client in counted}
        assert {late["client"]: late["lag"] for late in strategy.report.late} == lags
        most = given.get("max_lag", math.inf)
        assert counted == {client for client, _, lag, *_ in now["arrived"] if lag <= most}
        close(strategy.weights, variant["w"][t - 1], f"round {t}")
    expected = {key: value for key, value in variant.get("state", {}).items() if key != "select"}
    if "waiting" in expected:
        waiting = np.stack([strategy.buffer.clients, strategy.buffer.lags], axis=1)
        assert waiting.tolist() == expected["waiting"]
    if "max_age" in given:  # the reference keeps old entries and does not use them
        age = ages(timeline, [case["w0"], *variant["w"]])
        expected["G"] = {k: np.array(G) * (age[int(k)] <= given["max_age"]) for k, G in expected["G"].items()}
    check_state(strategy, expected)
