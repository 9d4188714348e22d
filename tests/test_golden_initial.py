"""Exact trajectories of the initial model after a change of the members, through the real strategies."""

from typing import Any

import numpy as np
import pytest
from golden_cases import cases, close, devices_of, play, strategy_of, variants

from fedtide.base.specs import bind
from strategies import Layout
from strategies.parts.initial_model import INITIAL_MODELS

INNER = {"fedavg": "fedavg", "ruan_C": "scheme-c"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trajectory" in metafunc.fixturenames:
        metafunc.parametrize("trajectory", variants(metafunc.config, ["initial_model"]))
    if "similarity" in metafunc.fixturenames:
        found = [case for _, case in cases(metafunc.config) if case["method"] == "similarity"]
        metafunc.parametrize("similarity", found, ids=[case["id"] for case in found])


def test_trajectory(trajectory: Any) -> None:
    problem, case, name = trajectory
    variant = case["variants"][name]
    options = {"min_change": 0.0, **variant["opts"]}  # the paper's, where it does not say otherwise
    similarity = options.pop("similarity", "two_norm").replace("_", "-")
    departure = options.pop("objective")
    spec = ",".join(f"{key.replace('_', '-')}={value}" for key, value in options.items())
    own = {"reboot_peak": case["hyper"]["peak"]} if "peak" in case["hyper"] else {}
    strategy = strategy_of(
        problem,
        case,
        INNER[case["hyper"]["inner"]],
        departure=departure,
        initial_model=bind("initial-model", INITIAL_MODELS, f"{similarity}:{spec}").build,
        **own,
    )
    mixtures = []
    for t, _, _ in play(case, strategy, devices_of(problem)):
        assert strategy.learning_rate == pytest.approx(variant["lr_used"][t - 1], rel=1e-12)
        assert ("probe" in strategy.report.measured) == bool(variant["probe"][t - 1])
        close(strategy.weights, variant["w"][t - 1], f"round {t}")
        mixtures += [e["weights"] for e in strategy.report.events if e["event"] == "initial-model"]
    assert len(strategy.initial_model.models) == variant["state"]["sessions"]
    close(mixtures[-1], variant["state"]["weights"])


def test_similarity(similarity: dict[str, Any]) -> None:
    args = similarity["args"]
    sessions = [[np.array(tensor) for tensor in session] for session in [*args["past"], args["new"]]]
    layout = Layout.of(sessions[0])
    kind = INITIAL_MODELS[args["kind"].replace("_", "-")]
    made: Any = kind(layout, np.zeros(layout.size), R=args["scale"])
    made.gradients = np.array([layout.flatten(session) for session in sessions[:-1]])
    close(made.mixture(layout.flatten(sessions[-1])), similarity["expect"])
