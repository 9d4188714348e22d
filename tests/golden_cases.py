"""Exact trajectories of an independent reference: those of pytest's `--golden FILE`, or all of ours."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from devices import Device
from fakes import TableManager
from flwr.common import FitIns, FitRes, ndarrays_to_parameters

import strategies
from strategies import FlatParameters, Roster
from strategies.core.options import Constant, Staircase

FILES = sorted((Path(__file__).parent / "golden").glob("*.json"))


def cases(config: pytest.Config) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield each case with its problem, None where it has none."""
    for file in config.getoption("--golden") or FILES:
        golden = json.loads(Path(file).read_text(encoding="utf-8"))
        for case in golden["cases"]:
            yield golden["problems"].get(case.get("problem")), case


def variants(config: pytest.Config, methods: Collection[str], **unless: Any) -> list[Any]:
    """Return (problem, case, name of the variant) of some methods; none with an option of `unless`."""
    return [
        pytest.param((problem, case, name), id=f"{case['id']}-{name}")
        for problem, case in cases(config)
        if case["method"] in methods
        for name, variant in case["variants"].items()
        if not variant["opts"].items() & unless.items()
    ]


def curvature(client: dict[str, Any]) -> np.ndarray:
    """Of a quadratic."""
    return np.array(client["H"]) if "H" in client else np.transpose(client["A"]) @ np.array(client["A"])


def gradient(problem: dict[str, Any], client: dict[str, Any], w: np.ndarray) -> np.ndarray:
    if problem["type"] == "quadratic":
        return curvature(client) @ (w - np.array(client["e"]))
    X, y = np.array(client["X"]), np.array(client["y"])
    return X.T @ (1 / (1 + np.exp(-X @ w)) - y) / len(y) + problem["l2"] * w


def fisher(problem: dict[str, Any], client: dict[str, Any], w: np.ndarray) -> np.ndarray:
    """Diagonal of A^T A, or mean p (1 - p) x^2."""
    if problem["type"] == "quadratic":
        return np.diag(curvature(client)).copy()
    X = np.array(client["X"])
    p = 1 / (1 + np.exp(-X @ w))
    return (p * (1 - p)) @ X**2 / len(X)


def devices_of(problem: dict[str, Any]) -> list[Device]:
    """The problem's clients, with the real client code."""
    return [
        Device(client["n"], partial(gradient, problem, client), partial(fisher, problem, client))
        for client in problem["clients"]
    ]


def strategy_of(problem: dict[str, Any], case: dict[str, Any], name: str, **options: Any) -> Any:
    """The real strategy of a case."""
    sizes = np.array([client["n"] for client in problem["clients"]])
    members = np.isin(np.arange(len(sizes)), case.get("initial_members", range(len(sizes))))
    rates, schedule = case["lr"], Constant()
    if isinstance(rates, list):
        schedule = lambda _, t, shift, E: rates[t - 1]  # noqa: E731
    elif rates is None:
        schedule, rates = Staircase(), case["hyper"]["eta0"]
    return strategies.make(
        name,
        ndarrays_to_parameters([np.array(case["w0"])]),
        Roster(sizes, members),
        local_steps=case["hyper"]["E"],
        learning_rate=1.0 if isinstance(rates, list) else rates,
        lr_schedule=schedule,
        **options,
    )


class Played(NamedTuple):
    """A round, the weights before it, and what its clients have sent, also where that is lost or late."""

    number: int
    before: FlatParameters
    sent: dict[int, FitRes]


def play(
    case: dict[str, Any],
    strategy: Any,
    devices: list[Device],
    told: Callable[[int, FitIns], FitIns] = lambda client, instruction: instruction,
) -> Iterator[Played]:
    """Yield the rounds of a case, each when it is over; `told` may change what a client is told."""
    manager = TableManager()
    parameters = strategy.initialize_parameters(manager)
    delays = {(task, client): delay for task, client, delay in case.get("late", [])}
    arrivals: dict[int, list[Any]] = {}
    for t in range(1, case["rounds"] + 1):
        events = [event for event in case.get("events", []) if event["round"] == t]
        manager.arrived = [event["cid"] for event in events if event["type"] == "arrive"]
        manager.departed = [event["cid"] for event in events if event["type"] == "depart"]
        if "available" in case:  # the server selects K of these, who do all of their work
            steps = [case["hyper"]["E"] * there for there in case["available"][t - 1]]
        else:
            steps = case["steps"][t - 1]
        if "eta" in case:  # the server's own rate
            strategy.options = replace(strategy.options, global_rate=eta(case, t))
        manager.working = [int(proxy.cid) for results in arrivals.values() for proxy, _ in results]
        manager.online = [client for client, s in enumerate(steps) if s > 0]
        before, sent = parameters, dict[int, FitRes]()
        for proxy, instruction in strategy.configure_fit(t, parameters, manager):
            client = int(proxy.cid)
            result = sent[client] = devices[client].fit(told(client, instruction), steps[client])
            if [t, client] not in case.get("lost", []):
                n = 0 if [t, client] in case.get("data_less", []) else result.num_examples
                arrival = t + delays.get((t, client), 0)
                arrivals.setdefault(arrival, []).append((proxy, replace(result, num_examples=n)))
        parameters, _ = strategy.aggregate_fit(t, arrivals.pop(t, [])[::-1], [])
        yield Played(t, before, sent)


def eta(case: dict[str, Any], t: int) -> float:
    """The server's rate of a round."""
    return float(np.broadcast_to(case["eta"], case["rounds"])[t - 1])


def close(got: Any, expected: Any, what: str = "") -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11, err_msg=what)
