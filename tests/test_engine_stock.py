"""Any strategy of Flower as a method: its options, its results beside ours, and what it survives."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from own_parts import Folder

import sim
from fedtide.config import Settings
from fedtide.engine.update_shares import update_shares
from fedtide.plan import Plan
from traces import TRACES

STOCK = "flwr.server.strategy."
DEFAULT_TRACE = Settings().trace
BRIEF = ["--num-clients=4", "--num-rounds=2", "--model=logistic", "--engine=inline", "--trace=always"]
ALWAYS: dict[str, Any] = {"trace": "always", "num_rounds": 4}
OWN = """
import random

import flwr.server.strategy
import numpy as np
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg, Strategy

class Picky(FedAvg):
    '''Needs four replies.'''
    def __init__(self, *, num_rounds: int, how: str = "value", **others):
        super().__init__(**others)
        self.num_rounds, self.how = num_rounds, how
    def aggregate_fit(self, server_round, results, failures):
        assert self.num_rounds == 3
        if len(results) < 4:
            if self.how == "value":
                raise ValueError(f"{len(results)} replies are too few")
            if self.how == "nan":
                return ndarrays_to_parameters([0 * a + np.nan for a in self.first]), {}
            raise TypeError("a mistake")
        return super().aggregate_fit(server_round, results, failures)
    def initialize_parameters(self, client_manager):
        own = super().initialize_parameters(client_manager)
        self.first = parameters_to_ndarrays(own)
        return own

class Bare(Strategy):
    '''A strategy that knows nothing of the run, with its own start and its own way to choose.'''
    def initialize_parameters(self, client_manager):
        return ndarrays_to_parameters([np.zeros((10, 64), np.float32), np.zeros(10, np.float32)])
    def configure_fit(self, server_round, parameters, client_manager):
        chosen = sorted(client_manager.all().values(), key=lambda proxy: proxy.cid)[:2]
        slow = {"learning-rate": 0.01, "hint": 7}
        return [(proxy, FitIns(parameters, slow if i else {})) for i, proxy in enumerate(chosen)]
    def aggregate_fit(self, server_round, results, failures):
        self.seen = [(proxy.cid, result.metrics["steps"]) for proxy, result in results]
        return results[-1][1].parameters, {"num-seen": len(results)}
    def evaluate(self, server_round, parameters):
        return None
    def configure_evaluate(self, server_round, parameters, client_manager):
        return []
    def aggregate_evaluate(self, server_round, results, failures):
        return None, {}

class Seen(FedAvg):
    def __init__(self, **others):
        super().__init__(**others)
        self.seen = set()

class Steps(FedAvg):
    def configure_fit(self, *arguments):
        asked = super().configure_fit(*arguments)
        return [(proxy, FitIns(ins.parameters, {**ins.config, "local-steps": 3})) for proxy, ins in asked]

class Own(FedAvg):
    '''Sends each client weights of its own.'''
    def configure_fit(self, server_round, parameters, client_manager):
        asked = super().configure_fit(server_round, parameters, client_manager)
        zero = ndarrays_to_parameters([0 * a for a in parameters_to_ndarrays(parameters)])
        return [(proxy, FitIns(zero, ins.config)) for proxy, ins in asked]

def wrapped(initial_parameters, evaluate_fn, *, fraction: float = 1.0):
    return FedAvg(initial_parameters=initial_parameters, evaluate_fn=evaluate_fn, fraction_fit=fraction)

def clipping(*, adaptive: bool = False):
    client_side = "Adaptive" if adaptive else "Fixed"
    clipped = getattr(flwr.server.strategy, f"DifferentialPrivacyClientSide{client_side}Clipping")
    return clipped(FedAvg(), *((0.3, 6) if adaptive else (0.3, 0.1, 6)))

def wrong(*, fraction: float = 1.0):
    return fraction
"""


@pytest.fixture
def strategies(own: Folder) -> Folder:
    own.write("stock.py", OWN)
    return own


def outcome(run: Any) -> list[dict[str, Any]]:
    keys = ("selected", "active", "steps", "failed", "offline", "incomplete", "events", "learning_rate")
    return [{key: record[key] for key in keys} for record in run.rounds]


# Beside ours


SAMPLED = {**ALWAYS, "clients_per_round": 3, "lr_schedule": "staircase", "arrivals": "5=3"}
INCOMPLETE = {"trace": "bernoulli:p=0.8+pools:first=8", "num_rounds": 5, "departures": "1=3", "seed": 4}
EPOCHS = {**ALWAYS, "local_epochs": 1, "sizes": "pareto", "evaluate_on": "objective"}


@pytest.mark.parametrize(
    ("stock", "ours", "settings"),
    [
        ("FedAvg", "fedavg", SAMPLED),
        ("FedAvg", "fedavg", EPOCHS),
        ("FedAvgM:server-momentum=0", "fedavg", INCOMPLETE),
        ("FedProx:proximal-mu=0.5", "fedprox:mu=0.5", INCOMPLETE),
    ],
)
def test_it_gives_the_same_weights_as_ours(
    simulate: Callable[..., Any], stock: str, ours: str, settings: dict[str, Any]
) -> None:
    """With the same participation, rates, membership and records."""
    theirs = simulate(**settings, strategy=f"{STOCK}{stock}")
    here = simulate(**settings, strategy=ours)
    # Their means are in single precision.
    np.testing.assert_allclose(theirs.weights, here.weights, rtol=1e-5, atol=1e-6)
    assert outcome(theirs) == outcome(here)
    assert [r["loss"] for r in theirs.rounds] == pytest.approx([r["loss"] for r in here.rounds], rel=1e-5)


SELDOM = "bernoulli:p=0.2+lost:p=0.3+late:p=0.2"


@pytest.mark.parametrize(
    ("strategy", "trace"),
    [
        ("FedAvgM:server-momentum=0.9", DEFAULT_TRACE),
        ("Krum:num-malicious-clients=2,num-clients-to-keep=3", DEFAULT_TRACE),
        ("FedAdam:eta=0.01", SELDOM),
        ("FedMedian", SELDOM),
    ],
)
def test_they_run_where_clients_come_and_go(simulate: Callable[..., Any], strategy: str, trace: str) -> None:
    run = simulate(strategy=STOCK + strategy, trace=trace, num_rounds=5, arrivals="5=2", departures="0=4")
    assert len(run.rounds) == 5
    assert np.isfinite(run.weights).all()
    assert (run.weights != run.experiment.initial.vector).any()
    assert all({"accuracy", "loss", "events", "learning_rate"} <= record.keys() for record in run.rounds)
    assert {e["event"] for record in run.rounds for e in record["events"]} == {"arrival", "departure"}
    if trace == SELDOM:
        assert {len(record["active"]) for record in run.rounds} >= {0, 1}


def test_the_shares_of_its_updates() -> None:
    """Under a trace in which all are there, FedAvg counts clients by their examples."""
    sizes = np.array([10, 20, 30, 40])
    plan = Plan.of(Settings(strategy=f"{STOCK}FedAvg", num_clients=4, num_rounds=3, trace="always"))
    np.testing.assert_allclose(update_shares(plan, sizes, TRACES["always"](4, 0)), sizes / 100, rtol=1e-9)


# Its options


def test_the_constructors_parameters_are_the_options() -> None:
    spec = f"{STOCK}FedAdam:eta=0.5,min-available-clients=3,accept-failures=false"
    options = Plan.of(Settings(strategy=spec, option=("tau=0.25",), learning_rate=0.125)).options
    chosen = {
        name: getattr(options, name) for name in ("eta", "min_available_clients", "accept_failures", "tau")
    }
    assert chosen == {"eta": 0.5, "min_available_clients": 3, "accept_failures": False, "tau": 0.25}
    assert (options.beta_1, options.fraction_evaluate, options.learning_rate) == (0.9, 0.0, 0.125)


@pytest.mark.parametrize(
    ("strategy", "more", "says"),
    [
        ("FedAdam:etta=1", {}, "'etta'; known: fraction-fit,.*; did you mean eta"),
        ("FedAdam", {"option": ("departure=include",)}, "'departure'; known: fraction"),
        ("FedAdam", {"server_opt": "adam"}, "takes no --server-opt"),
        ("FedAdam:eta=fast", {}, "eta is 'fast'"),
        ("FedProx", {}, "needs .*proximal-mu"),
        ("DPFedAvgFixed", {}, "needs 'strategy'"),
    ],
)
def test_what_it_does_not_take(strategy: str, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Plan.of(Settings(strategy=STOCK + strategy, **more))


def test_fractions_and_least_numbers(simulate: Callable[..., Any]) -> None:
    """Half of those available, at most `clients_per_round` of them; nobody where there are too few."""
    half = simulate(strategy=f"{STOCK}FedAvg:fraction-fit=0.5", **ALWAYS)
    assert [len(record["selected"]) for record in half.rounds] == [3] * 4
    assert len({tuple(record["selected"]) for record in half.rounds}) > 1
    two = simulate(strategy=f"{STOCK}FedAvg:fraction-fit=0.5", clients_per_round=4, **ALWAYS)
    assert [len(record["selected"]) for record in two.rounds] == [2] * 4
    none = simulate(strategy=f"{STOCK}FedAvg:min-available-clients=7", **ALWAYS)
    assert [record["selected"] for record in none.rounds] == [[]] * 4
    np.testing.assert_array_equal(none.weights, none.experiment.initial.vector)


def test_it_may_evaluate_at_the_clients(simulate: Callable[..., Any]) -> None:
    run = simulate(strategy=f"{STOCK}FedAvg:fraction-evaluate=1", evaluate_on="objective", **ALWAYS)
    for record in run.rounds:
        assert record["client_loss"] == pytest.approx(record["loss"], rel=1e-5)
        assert record["client_accuracy"] == pytest.approx(record["accuracy"])


# Rounds without, and with too few replies


@pytest.mark.parametrize(("strategy", "trace"), [("QFedAvg", "bernoulli:p=0"), ("FedMedian", "lost:p=1")])
def test_rounds_without_replies_leave_the_weights(
    simulate: Callable[..., Any], strategy: str, trace: str
) -> None:
    run = simulate(strategy=STOCK + strategy, trace=trace)
    np.testing.assert_array_equal(run.weights, run.experiment.initial.vector)
    assert [record["active"] for record in run.rounds] == [[]] * 3


@pytest.mark.parametrize(
    ("how", "reason"),
    [("value", "ValueError: 3 replies are too few"), ("nan", "ValueError: weights that are not finite")],
)
def test_too_few_replies_do_not_end_the_run(
    simulate: Callable[..., Any], strategies: Folder, how: str, reason: str
) -> None:
    """Six clients in rounds 1 and 3, three in round 2."""
    rows = [f"{t},{k},1" for t in (1, 2, 3) for k in range(3 if t == 2 else 6)]
    (strategies.path / "table.csv").write_text("round,client,completion\n" + "\n".join(rows) + "\n")
    run = simulate(strategy=f"stock.Picky:how={how}", trace="table:file=table.csv")
    first, second, third = run.rounds
    assert second["events"] == [{"event": "no update", "reason": reason}]
    assert (first["events"], third["events"]) == ([], [])
    assert first["loss"] == second["loss"] > third["loss"]


def test_a_strategy_that_cannot_use_any_reply(own: Folder, capsys: Any) -> None:
    """Flower's for gradient-boosted trees, with our clients: every round is without an update."""
    assert sim.main([*BRIEF, f"--strategy={STOCK}FedXgbBagging", "--json"]) == 3
    shown = capsys.readouterr()
    assert json.loads(shown.out)["client_fits"] == 0
    assert "no reply ever counted" in shown.err


@pytest.mark.parametrize(
    "strategy",
    [
        *("FedAvg", "FedAvgM:server-momentum=0.9", "FedProx:proximal-mu=0.1", "QFedAvg", "FedMedian"),
        *("FedAdagrad", "FedAdam", "FedYogi", "FedTrimmedAvg", "FaultTolerantFedAvg", "Krum"),
    ],
)
def test_nothing_is_said_of_attributes_that_are_saved(own: Folder, capsys: Any, strategy: str) -> None:
    assert sim.main([*BRIEF, f"--strategy={STOCK}{strategy}", "--checkpoint-every=1"]) == 0
    shown = "".join(capsys.readouterr())
    assert "is not in its" not in shown
    assert "warning" not in shown


def test_attributes_that_cannot_be_saved_are_a_warning(strategies: Folder, capsys: Any) -> None:
    """The run ends as any other, and cannot be resumed."""
    assert sim.main([*BRIEF, "--strategy=stock.Seen", "--json"]) == 0
    shown = capsys.readouterr()
    assert "warning: no checkpoint of round 2: Seen.seen is a set, which cannot be saved" in shown.err
    assert "state_bytes" not in json.loads(shown.out)


@pytest.mark.parametrize(
    ("strategy", "error"),
    [
        ("Bulyan", r"TypeError: aggregate_krum\(\) .*"),
        ("FedAvgAndroid", "[A-Z][a-z]+Error: .*"),
        ("FedXgbNnAvg", "[A-Z][a-z]+Error: .*"),
    ],
)
def test_one_of_flowers_that_does_not_work_here(own: Folder, capsys: Any, strategy: str, error: str) -> None:
    """Its code has failed, not a user's: one line instead of a traceback."""
    assert sim.main([*BRIEF, f"--strategy={STOCK}{strategy}"]) == 1
    shown = "".join(capsys.readouterr())
    why = f"strategy {strategy} of Flower does not work with these clients and this model: {error}"
    assert re.search(f"^the run has failed: {why}; ", shown, re.MULTILINE), shown
    assert "Traceback" not in shown


def test_a_mistake_in_its_code_ends_the_run(simulate: Callable[..., Any], strategies: Folder) -> None:
    with pytest.raises(TypeError, match="a mistake"):
        simulate(strategy="stock.Picky:how=type", trace="bernoulli:p=0.3")


# Strategies of one's own that were written for Flower


def test_a_strategy_that_knows_nothing_of_the_run(simulate: Callable[..., Any], strategies: Folder) -> None:
    """It starts from zero, asks two clients, one of them to go slowly, and takes the weights of the last."""
    run = simulate(strategy="stock.Bare", trace="always", num_rounds=1, learning_rate=0.5)
    (record,) = run.rounds
    assert record["selected"] == [0, 1]
    assert record["num_seen"] == 2
    assert run.records[0]["accuracy"] == pytest.approx(0.1, abs=0.05)  # evaluated, although it does not
    slow = simulate(strategy="stock.Bare", trace="always", num_rounds=1, learning_rate=0.01)
    np.testing.assert_allclose(run.weights, slow.weights, rtol=1e-5, atol=1e-7)
    assert np.abs(run.weights).max() < 0.05


def test_weights_of_a_clients_own(simulate: Callable[..., Any], strategies: Folder) -> None:
    """Who starts from zero in each round is where the first round ended up, but for the batches."""
    once, twice = (simulate(strategy="stock.Own", trace="always", num_rounds=t) for t in (1, 2))
    far = simulate(strategy=f"{STOCK}FedAvg", trace="always", num_rounds=20)
    assert np.linalg.norm(once.weights - twice.weights) < np.linalg.norm(far.weights) / 2
    assert np.linalg.norm(once.weights) == pytest.approx(np.linalg.norm(twice.weights), rel=0.3)


def test_what_only_the_run_may_set(simulate: Callable[..., Any], strategies: Folder) -> None:
    run = simulate(strategy="stock.Steps", trace="always")
    (event,) = run.rounds[0]["events"]
    assert event["event"] == "nobody asked"
    assert "local-steps" in event["reason"]


def test_a_function_that_makes_a_strategy(simulate: Callable[..., Any], strategies: Folder) -> None:
    run = simulate(strategy="stock.wrapped:fraction=0.5", trace="always")
    assert [len(record["selected"]) for record in run.rounds] == [3] * 3
    with pytest.raises(ValueError, match="strategy wrong gives a float, not a strategy of Flower"):
        simulate(strategy="stock.wrong")
    with pytest.raises(ValueError, match="strategy FedTrimmedAvg: `beta` must be in the range"):
        simulate(strategy=f"{STOCK}FedTrimmedAvg:beta=0.7")
    for adaptive in ("false", "true"):
        with pytest.raises(ValueError, match="strategy clipping: clients here do not clip their updates"):
            simulate(strategy=f"stock.clipping:adaptive={adaptive}")
