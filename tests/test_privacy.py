"""Differential privacy and secure aggregation: docs/privacy.md, and what it says works."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FEDERATED
from flwr.app import Context, RecordDict
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import adaptiveclipping_mod, fixedclipping_mod, secaggplus_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD
from message_grid import HereGrid, identify
from privacy import complete, incomplete, influence, secure_aggregation_error

import strategies

PAGE = (Path(__file__).parents[1] / "docs" / "privacy.md").read_text(encoding="utf-8")
ROWS = {
    name.strip("` "): cells[1:]
    for line in PAGE.splitlines()
    if len(cells := line.split("|")[1:-1]) == 5
    for name in cells[0].split(",")
}


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process make messages."""
    identify(monkeypatch)


# The table


def percent(error: float) -> str:
    if error < 1e-9:
        return "exact"
    return f"{100 * error:.0f} %" if error > 0.01 else f"{100 * error:.1f} %"


@pytest.mark.parametrize("name", FEDERATED)
def test_the_table_has_what_is_measured(name: str) -> None:
    private, *secure = (cell.strip() for cell in ROWS[name])
    if name == "efl":
        with pytest.raises(ValueError, match="could not be broadcast"):
            influence(name)
        assert private == "ValueError"
    else:
        now, later, _ = influence(name)
        more = f" + {later - now:.2g} a round" if name != "fedbuff" and later - now > 0.01 else ""
        assert private == (f"{later:.2g}, late" if name == "fedbuff" else f"{now:.2g}{more}")
    errors = [
        secure_aggregation_error(name, complete),
        secure_aggregation_error(name, incomplete),
        secure_aggregation_error(name, incomplete, [10] * 6),
    ]
    assert secure == [percent(error) for error in errors]


# Differential privacy at the server, in our engine


def fixed(clip: float) -> Callable[[Any], Any]:
    """Flower's wrapper for six clients, without noise."""
    return lambda made: DifferentialPrivacyServerSideFixedClipping(made.strategy, 0.0, clip, 6)


@pytest.mark.parametrize(("method", "adaptive"), [("fedavg:weights=uniform", False), ("scheme-c", True)])
def test_clipping_at_the_server(simulate: Callable[..., Any], method: str, adaptive: bool) -> None:
    """The noise of each round is in the weights that the strategy continues with."""
    seen: list[float] = []  # standard deviation of the noise, relative to what it should be
    clipping: Any = DifferentialPrivacyServerSideFixedClipping
    if adaptive:
        clipping = DifferentialPrivacyServerSideAdaptiveClipping

    def private(experiment: Any) -> Any:
        wrapper = clipping(experiment.strategy, 0.3, *((6, 0.1) if adaptive else (0.1, 6)))

        def note(change: np.ndarray) -> None:
            seen.append(change.std() * 6 / (wrapper.noise_multiplier * wrapper.clipping_norm))

        experiment.strategy.on_outside_change = note
        return wrapper

    run = simulate(trace="bernoulli:p=0.7+pools:first=2", stock=private, strategy=method, num_rounds=5)
    assert all(record["active"] for record in run.rounds)
    assert seen == pytest.approx([1] * 4, rel=0.2)


def test_no_noise_and_no_clipping_is_no_wrapper(simulate: Callable[..., Any]) -> None:
    settings = {"trace": "bernoulli:p=0.7+pools:first=2", "strategy": "scheme-c", "num_rounds": 4}
    idle = simulate(stock=fixed(1e6), **settings)
    np.testing.assert_allclose(idle.weights, simulate(**settings).weights, rtol=1e-4, atol=1e-6)


def test_a_lost_reply_discards_the_round(simulate: Callable[..., Any]) -> None:
    run = simulate(trace="always+lost:p=0.05", stock=fixed(1.0), strategy="scheme-c", num_rounds=40)
    failed = [bool(record["failed"]) for record in run.rounds]
    unmoved = [after["loss"] == before["loss"] for before, after in pairwise(run.records)]
    assert unmoved == failed
    assert f"{sum(failed)} of 40 rounds" in PAGE


def test_an_empty_round_ends_adaptive_clipping(simulate: Callable[..., Any]) -> None:
    def private(made: Any) -> Any:
        return DifferentialPrivacyServerSideAdaptiveClipping(made.strategy, 0.3, 6)

    with pytest.raises(ZeroDivisionError):
        simulate(trace="bernoulli:p=0.1", stock=private, strategy="fedavg", num_rounds=8)


# At the clients, in messages


class Far(NumPyClient):
    """Moves by ((k + 1) / 10, 0, ...), in five of ten steps or in all of them."""

    def __init__(self, client: int, dropping: bool = False, finishing: bool = False) -> None:
        self.client, self.dropping, self.finishing = client, dropping, finishing

    def get_properties(self, config: Any) -> Any:
        return {"client-id": self.client}

    def fit(self, parameters: Any, config: Any) -> Any:
        if self.dropping and config["round"] == 2 and self.client == 3:
            raise ConnectionError
        moved = [array.copy() for array in parameters]
        moved[0][0, 0] += (self.client + 1) / 10
        steps = config["local-steps"] if self.finishing or self.client % 2 else 5
        return moved, 10 * (self.client + 1), {"steps": steps}


def app(mods: list[Any], **options: Any) -> ClientApp:
    def client_fn(context: Any) -> Any:
        return Far(int(context.node_config["partition-id"]), **options).to_client()

    return ClientApp(client_fn=client_fn, mods=mods)


def make(name: str, **options: Any) -> Any:
    return strategies.make(name, ndarrays_to_parameters([np.zeros((8, 50)), np.zeros(8)]), **options)


def train(strategy: Any, clients: ClientApp, num_rounds: int = 1) -> np.ndarray:
    return weights_after(strategy, HereGrid(clients), num_rounds, DefaultWorkflow())


def weights_after(strategy: Any, grid: HereGrid, num_rounds: int, workflow: DefaultWorkflow) -> np.ndarray:
    """What the last round sends, after rounds of Flower's workflow for classic strategies on a Grid."""
    state = Context(1, 1, {}, RecordDict(), {})
    config = ServerConfig(num_rounds=num_rounds)
    manager = SimpleClientManager()
    context = LegacyContext(state, config=config, strategy=strategy, client_manager=manager)
    workflow(grid, context)
    arrays = context.state.array_records[MAIN_PARAMS_RECORD].to_numpy_ndarrays()
    return np.concatenate([array.ravel() for array in arrays])


@pytest.mark.parametrize(("method", "options"), [("fedavg", {"weights": "uniform"}), ("scheme-c", {})])
def test_clipping_at_the_clients(method: str, options: Any) -> None:
    """Each client's update has norm 0.01, by Flower's mods, whatever it moved by; then comes the noise."""

    def private(noise: float) -> Any:
        return DifferentialPrivacyClientSideFixedClipping(make(method, **options), noise, 0.01, 10)

    unclipped = train(private(0.0), app([]))[0]
    clipped = train(private(0.0), app([fixedclipping_mod]))
    mean = 0.01 if method == "fedavg" else 0.01 * (25 * 2 + 30) / 55  # those with odd numbers do all steps
    assert clipped[0] == pytest.approx(mean, rel=1e-6)
    assert unclipped > 50 * clipped[0]  # in simulation no mods run: noise for updates that are not clipped
    noised = train(private(1.0), app([fixedclipping_mod]))
    assert noised[1:].std() == pytest.approx(0.001, rel=0.2)

    adaptive = DifferentialPrivacyClientSideAdaptiveClipping(make(method, **options), 0.5, 10, 0.01)
    moved = train(adaptive, app([adaptiveclipping_mod]), num_rounds=3)
    assert np.isfinite(moved).all()
    # All updates are longer, and yet it shrinks: Flower 1.41 counts those that are clipped, not the others.
    assert adaptive.clipping_norm == pytest.approx(0.01 * np.exp(-0.1 * 3), rel=0.15)
    with pytest.raises(KeyError, match="norm_bit"):
        train(DifferentialPrivacyClientSideAdaptiveClipping(make(method), 0.5, 10), app([]))


# Secure aggregation


def securely(strategy: Any, grid: HereGrid) -> np.ndarray:
    """The weights after two rounds of Flower's SecAgg+."""
    workflow = SecAggPlusWorkflow(num_shares=5, reconstruction_threshold=3)
    return weights_after(strategy, grid, 2, DefaultWorkflow(fit_workflow=workflow))


def test_secure_aggregation() -> None:
    """A client drops out of round 2 while it trains: the sums of the others are right, to 16 bits."""
    weights = securely(make("scheme-b"), HereGrid(app([secaggplus_mod], dropping=True)))
    expected = train(make("scheme-b"), app([], dropping=True), num_rounds=2)
    np.testing.assert_allclose(weights, expected, atol=1e-4)
    assert expected[0] > 1.3


def test_secure_aggregation_scales_no_incomplete_work() -> None:
    """Scheme C multiplies what it gets by E / s: of a mean, that is right only if all clients finish."""
    for finishing in (True, False):
        secure = securely(make("scheme-c"), HereGrid(app([secaggplus_mod], finishing=finishing)))
        plain = train(make("scheme-c"), app([], finishing=finishing), num_rounds=2)
        assert (abs(secure - plain).max() < 1e-4) == finishing


def test_secure_aggregation_loses_a_round_before_the_keys(caplog: pytest.LogCaptureFixture) -> None:
    """A client that does not answer from the first stage of round 2 on: nobody's update counts."""
    weights = securely(make("scheme-b"), HereGrid(app([secaggplus_mod]), silent={2: [3]}))
    np.testing.assert_allclose(weights, train(make("scheme-b"), app([])), atol=1e-4)
    assert "Not enough shares to recover secret" in caplog.text
