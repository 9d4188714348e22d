"""Exact trajectories in event time of an independent reference: real engine, strategies and client code."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import pytest
from fakes import NamedProxy
from golden_cases import close, curvature, devices_of, strategy_of, variants
from test_golden import METHODS, VALUES, check_state, layers_of

from fedtide.base.contract import FitConfig
from fedtide.engine.availability import TraceClientManager
from fedtide.engine.event_clock import EventClock
from fedtide.engine.server import RoundServer
from fedtide.engine.transports.base import Transport
from fedtide.engine.transports.late import EventTime
from strategies import SELECTIONS, STRATEGIES
from strategies.core.replies import ReplyTable
from traces.base import NEVER, microseconds
from traces.recorded import recording
from traces.recorded.log import DeviceLog, RawSessions

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


def make_strategy(problem: dict[str, Any], case: dict[str, Any], given: dict[str, Any], clock: Any) -> Any:
    """The strategy of a variant, of which `given` are the options."""
    method, hyper = given["method"], {"E": case["E"], **case.get("hyper", {})}
    name = METHODS[method]
    known = {field.name for field in fields(STRATEGIES[name].options_type())}
    names = OPTIONS | OWN_OPTIONS.get(method, {})
    own = {key: case[key] for key in ("B", "C", "seed") if key in case} | hyper | given
    own["select"] = selection_of(given.get("select", case.get("select", {"kind": "method"})), clock)
    options = {names.get(key, key): VALUES.get(key, {}).get(str(value), value) for key, value in own.items()}
    options = REFERENCE.get(method, {}) | {key: value for key, value in options.items() if key in known}
    return strategy_of(problem, {**case, "hyper": hyper}, name, layers=layers_of(given, hyper), **options)


def selection_of(options: dict[str, Any], clock: EventClock) -> Any:
    """What makes the selection of a variant."""

    def make(roster: Any, seed: int) -> Any:
        roster.forecast = clock.forecast
        return SELECTIONS[options["kind"]](roster, seed, **{k: v for k, v in options.items() if k != "kind"})

    return make


@dataclass(frozen=True, kw_only=True)
class Recording(recording.Recording, name="golden"):
    """The sessions, speeds and lost replies of a case."""

    case: dict[str, Any] = field(compare=False)

    @classmethod
    def of(cls, case: dict[str, Any], given: dict[str, Any], num_clients: int) -> Recording:
        """The recording of a case; `given` are the options of a variant."""
        options = {**case, **given}
        return cls(
            num_clients,
            0,
            case=case,
            repeat="cycle" in case,
            on_interrupt=options.get("interrupt", "stop"),
            deadline=options.get("deadline", 0.0),
            partial=options.get("partial", True),
            local_steps=case["E"],
            upload_bytes=1.0,
        )

    def read(self) -> tuple[DeviceLog, np.ndarray]:
        case, n = self.case, self.num_clients
        usual = np.broadcast_arrays(case["speed"], case.get("upload", 0.0), np.empty(n))
        rows = [
            [*session, *(kind[session[0]] for kind in usual[len(session) - 3 : 2])]
            for session in case["sessions"]
        ]
        device, start, end, speed, upload = np.array(rows, np.float64).T
        rate = np.divide(1.0, upload, out=np.full(len(upload), np.nan), where=upload > 0)
        sessions = RawSessions(device.astype(int), start, end, speed, rate)
        return DeviceLog.build(sessions, np.zeros(n), np.full(n, case.get("cycle", 1e9)), str), np.arange(n)

    def lost(self, t: int) -> np.ndarray:
        return np.isin(np.arange(self.num_clients), [k for task, k in self.case.get("lost", []) if task == t])


class Clients(Transport):
    """The real client code, in float64; of quadratics, it reports the losses."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__()
        self.devices, self.updates = devices_of(problem), dict[tuple[int, int], np.ndarray]()
        self.losses: list[float] = []  # in the local steps of the present task
        for device, client in zip(self.devices, problem["clients"], strict=True):
            if problem["type"] == "quadratic":
                device.gradient = partial(self._note_loss, device.gradient, client)

    def _note_loss(self, gradient: Any, client: dict[str, Any], w: np.ndarray) -> np.ndarray:
        away = w - np.array(client["e"])
        self.losses.append(away @ curvature(client) @ away / 2)
        return gradient(w)

    def proxy(self, client: int) -> NamedProxy:
        return NamedProxy(str(client))

    def fit(self, server_round: int, instructions: Any, timeout: Any) -> tuple[Any, list[Any]]:
        results = []
        for proxy, instruction in instructions:
            config, device = FitConfig.from_wire(instruction.config), self.devices[int(proxy.cid)]
            self.losses = []
            result = device.fit(instruction, round(config.completion * config.local_steps))
            if self.losses:
                squares = np.square(self.losses)
                result.metrics |= {"train-loss": float(np.mean(self.losses))}
                result.metrics |= {"rms-loss": float(np.sqrt(squares.mean()))}
            results.append((proxy, result))
            self.updates[int(proxy.cid), config.round] = device.update
        return ReplyTable.of(results), []

    evaluate = fit


def members(case: dict[str, Any], n: int) -> Any:
    """Return what `Membership.window` is to return; a client may come back."""
    founders = np.isin(np.arange(n), case.get("initial_members", range(n)))

    def window(t: int) -> tuple[np.ndarray, np.ndarray]:
        begin, end = np.where(founders, -NEVER, NEVER), np.full(n, NEVER)
        for event in case.get("events", []):
            client, when = event["cid"], microseconds(event.get("second", -math.inf))
            if event.get("round", 0) > t:
                continue
            if event["type"] == "depart":
                end[client] = when
            else:
                begin[client], end[client] = when, NEVER
        return begin, end

    return window


def ages(timeline: Any, w: Any) -> dict[int, int]:
    """How often the weights have changed between the task of each client's last reply and the last update."""
    changes, found = np.diff(w, axis=0).any(axis=1), {}
    for t, now in enumerate(timeline):
        found |= {client: lag + int(changes[t:-1].sum()) for client, _, lag, *_ in now["arrived"]}
    return found


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant, n = case["variants"][name], len(problem["clients"])
    given, timeline = variant["opts"], case["timelines"][variant["timeline"]]
    options, records = {**case, **given}, list[dict[str, Any]]()
    clock = EventClock(Recording.of(case, given, n), options["B"] or n)
    strategy, clients = make_strategy(problem, case, given, clock), Clients(problem)
    object.__setattr__(clock.timeline.membership, "window", members(case, n))
    transport = EventTime(clients, clock, options["C"] or n, strategy.wire)

    def check(record: dict[str, Any]) -> None:
        if not (t := record["round"]):
            return
        now = timeline[t - 1]
        records.append(record)
        assert record["selected"] == now["selected"]
        assert [record["begin"], record["virtual_seconds"]] == [now["begin"], now["end"]]
        assert record["replied"] == [(client, task, end) for client, task, _, _, end in now["arrived"]]
        assert record["dropped"] == [(client, task, end) for client, task, _, end in now["failed"]]
        assert record["withdrawn"] == [tuple(task) for task in now.get("cancelled", [])]
        assert record.get("stopped", []) == [tuple(task) for task in now.get("stopped", [])]
        assert strategy.learning_rate == pytest.approx(variant["lr_used"][t - 1], rel=1e-12)
        for reply in case["replies"][t - 1] if name == case["primary"] else ():
            close(clients.updates[reply["cid"], reply["task"]], reply["delta"])
        lags = {client: lag for client, task, lag, *_ in now["arrived"]}
        counted = {client for client, lag in lags.items() if lag <= given.get("max_lag", math.inf)}
        assert {*strategy.report.active.tolist()} == counted
        assert all(lags[late["client"]] == late["lag"] for late in strategy.report.late)
        discarded = {row["client"]: (row["lag"], row["steps"]) for row in record.get("discarded", [])}
        steps = {client: steps for client, _, _, steps, _ in now["arrived"]}
        assert discarded == {k: (lags[k], steps[k]) for k in lags.keys() - counted}
        close(strategy.weights, variant["w"][t - 1], f"round {t}")

    manager = TraceClientManager(clock.round, transport, 0)
    RoundServer(strategy, manager, observers=[check], clock=clock).fit(case["rounds"])
    assert len(records) == len(timeline) == len(variant["w"])
    expected = {key: value for key, value in variant.get("state", {}).items() if key != "select"}
    if "waiting" in expected:
        waiting = np.stack([strategy.buffer.clients, strategy.buffer.lags], axis=1)
        assert waiting.tolist() == expected["waiting"]
    if "max_age" in given:  # the reference keeps old entries and does not use them
        age = ages(timeline, [case["w0"], *variant["w"]])
        expected["G"] = {k: np.array(G) * (age[int(k)] <= given["max_age"]) for k, G in expected["G"].items()}
    check_state(strategy, expected)
    check_selection(strategy.selection, variant.get("state", {}).get("select", {}))


def check_selection(selection: Any, expected: dict[str, Any]) -> None:
    """What it has noted, by the symbols of the specification."""
    read = {
        "loss": lambda: selection.last.loss,
        "mu": lambda: selection.duration,
        "u": lambda: selection.known.utility,
        "D": lambda: selection.known.seconds,
        "L": lambda: selection.known.round,
        "percentile": lambda: selection.percentile,
    }
    for symbol, value in expected.items():
        if isinstance(value, dict):
            close(read[symbol]()[: len(value)], [value[str(k)] for k in range(len(value))], symbol)
        else:
            close(read[symbol](), value, symbol)
