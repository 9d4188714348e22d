"""A federation whose clients send anything, and what has to hold after each of its rounds."""

import copy
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from fakes import START, VARIANTS, NamedProxy, TableManager, same_state, stored
from flwr.common import FitIns, FitRes, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from hostile_replies import NAMES, evaluation, failures, honest, spoiled

import strategies
from fedtide.base.contract import SGD
from strategies import STRATEGIES, FlatParameters, FlexibleStrategy, Roster
from strategies.core.app import FlowerArguments

SIZES = np.array([10, 20, 30, 40, 50, 60, 0])
MEMBERS = 5  # the others arrive later
CLIENTS = range(len(SIZES))
LONGEST = 400  # characters of a name and a reason in a report

LAYERS: list[dict[str, Any]] = [{}, {}, {}, {"amplify": "2,3"}]
LAYERS += [{"initial_model": "two-norm:min-change=0.1,keep=2"}, {"initial_model": "inner-product:V=2"}]
LAYERS += [{"server_opt": spec} for spec in ("nesterov", "adam:bias=adam", "adagrad", "amsgrad:delay=cap")]
LIMITS: list[dict[str, Any]] = [{}, {"max_update_norm": "off"}, {"max_update_norm": "auto"}]
LIMITS += [{"max_update_norm": "9"}, {"max_update_norm": "auto", "outliers": "clip"}]
SELECT: list[dict[str, Any]] = [{}, {}, {}]
SELECT += [
    {"select": spec, "clients_per_round": 3} for spec in ("uniform", "oort:explore=0.3", "longest-absent")
]
DEPARTURES = ["exclude", "include", "auto"]
OWN: dict[str, list[dict[str, Any]]] = {
    **{name: [variant] for name, variant in VARIANTS.items()},
    "scheme-c": [{"reboot": "auto"}],
    "mifa": [{"first_round": "wait", "empty": "move"}, {"table_memory": 0.0}, {"max_age": 1}],
    "fedstale": [{"units": "update", "empty": "move"}],
    "fedacg": [{"beta": 0.5, "mu": 0.5, "weights": "uniform"}],
    "ghbm": [{"tau": 2, "count": "rounds"}, {"anchor": "own"}, {"anchor": "local"}, {"local_epochs": 1}],
    "fedexp": [{"epsilon": 0.0, "units": "update", "weights": "uniform", "mu": 0.5}],
    "focus": [VARIANTS["focus"], {"gradient": "last", "empty": "move"}, {"scale": "members"}],
    "cafed": [{"bias": 0.0, "clients_per_round": 4}],
    "fedbuff": [{"buffer": 3}, {"buffer": 1, "weights": "n"}, {"buffer": 6, "discount": "refl"}],
    "fedasync": [{"staleness": "poly", "max_lag": 1}, {"staleness": "hinge", "b": 0, "mu": 0.5}],
    "fedawe": [{"weights": "n", "normalize": True}, {"clip": 0.5, "evaluate": "newest"}],
    "f3ast": [{"clients_per_round": 4, "scale": "k"}],
    "amplified-scaffold": [{"period": 2}],
    "efl": [
        {"elasticity": 30.0},
        {"apply": "full", "empty": "literal", "ties": "paper"},
        {"abandon": "auto", "abandon_constant": 1e-3, "abandon_after": 2},
    ],
}


class Round(NamedTuple):
    """What happened in a round, so that it can be played again."""

    online: list[int]
    arrived: list[int]
    departed: list[int]
    working: list[int]
    shift: float = 0.0  # by a wrapper
    results: Any = ()
    failed: Any = ()


class Side:
    """A strategy and its client manager."""

    def __init__(self, strategy: FlexibleStrategy, stock: bool) -> None:
        self.strategy, self.stock, self.number = strategy, stock, 0
        self.manager: Any = SimpleClientManager() if stock else TableManager()
        strategy.arguments = FlowerArguments(min_available_clients=0, client_rule="trust")
        self.parameters: Any = strategy.initialize_parameters(self.manager)

    def configure(self, played: Round) -> dict[str, FitIns]:
        """Begin a round; the instructions by name, a farewell in place of a task."""
        manager = self.manager
        self.number += 1
        if self.stock:
            manager.clients = {str(client): NamedProxy(str(client)) for client in played.online}
        manager.online, manager.working = played.online, played.working
        manager.arrived, manager.departed = played.arrived, played.departed
        if played.shift:
            arrays = parameters_to_ndarrays(self.parameters)
            self.parameters = ndarrays_to_parameters([array + played.shift for array in arrays])
        asked = self.strategy.configure_fit(self.number, self.parameters, manager)
        return {proxy.cid: instruction for proxy, instruction in asked}

    def aggregate(self, played: Round) -> None:
        self.parameters, self.metrics = self.strategy.aggregate_fit(
            self.number, played.results, played.failed
        )


class Campaign:
    """Rounds with a strategy, all of whose choices are those of `rng`; unpickling writes `marker`."""

    def __init__(self, name: str, rng: Random, marker: Path) -> None:
        self.name, self.rng, self.marker = name, rng, marker
        kind = STRATEGIES[name]
        layers = rng.choice(LAYERS) if kind.takes_layers else {}
        self.options = {
            **{"local_steps": 3, "num_rounds": 9, "departure": rng.choice(DEPARTURES)},
            **({"lr_schedule": "staircase"} if rng.choice([False, True]) else {}),
            **{**layers, **rng.choice(LIMITS), **rng.choice(SELECT), **rng.choice([{}, *OWN.get(name, [])])},
        }
        self.stock, self.dtype = rng.choice([False, False, True]), rng.choice([np.float32, np.float64])
        clips = self.options.pop("outliers", "")
        self.side = self.make()
        made = self.side.strategy
        if clips and (made.memory_is_private or not made.rule.remembers):
            self.options["outliers"] = clips
            self.side = self.make()
        self.rounds: list[Round] = []
        self.weights: list[np.ndarray] = []
        self.under_way: dict[int, FitIns] = {}
        self.gone: set[int] = set()

    def make(self) -> Side:
        start = ndarrays_to_parameters([array.astype(self.dtype) for array in START])
        roster = None if self.stock else Roster(SIZES, np.arange(len(SIZES)) < MEMBERS)
        return Side(strategies.make(self.name, start, roster, **self.options), self.stock)

    # Playing

    def play(self) -> None:
        """Play one round of hostile clients, and check what has to hold."""
        rng, strategy = self.rng, self.side.strategy
        played = self._begin()
        asked = self.side.configure(played)
        results = [
            (NamedProxy(name), self._reply(name, instruction))
            for name, instruction in asked.items()
            if rng.choice([True] * 4 + [False])
        ]
        due = [client for client in self.under_way if client in played.working and rng.choice([True, False])]
        results += [(NamedProxy(str(c)), self._reply(str(c), self.under_way.pop(c))) for c in due]
        missing = set(asked) - {proxy.cid for proxy, _ in results}
        self.under_way |= {int(name): asked[name] for name in sorted(missing) if rng.choice([False, True])}
        if results and rng.choice([False, False, True]):
            proxy, result = rng.choice(results)
            strangers = [proxy.cid, rng.choice(NAMES), str(rng.choice(CLIENTS))]
            results += [(NamedProxy(rng.choice(strangers)), result) for _ in range(rng.choice([1, 3]))]
        rng.shuffle(results)
        failed = failures(rng, "0", results[0][1]) if results else []
        self._aggregate(played._replace(results=results, failed=failed))
        if rng.choice([False, False, True]):
            told = [(NamedProxy(rng.choice(["0", "1", *NAMES])), evaluation(rng)) for _ in range(3)]
            strategy.configure_evaluate(self.side.number, self.side.parameters, self.side.manager)
            told_loss, _ = strategy.aggregate_evaluate(self.side.number, told, failed)
            assert told_loss is None or np.isfinite(told_loss)

    def play_honestly(self) -> None:
        """Play a round in which all come back and do their work; each reply has to count."""
        self.under_way = {}
        played = self._begin(everybody=True)
        asked = self.side.configure(played)
        results = [(NamedProxy(name), self._honest(name, instruction)) for name, instruction in asked.items()]
        self._aggregate(played._replace(results=results))
        rejected = self.side.strategy.report.rejected
        # Who was not known at the start may have claimed far fewer examples with its first reply.
        rejected = [(name, reason) for name, reason in rejected if "times the" not in reason]
        if len(results) < 5:  # too few for a median of their own
            rejected = [(name, reason) for name, reason in rejected if "update of norm" not in reason]
        assert not rejected, rejected[:3]

    def check_again(self) -> None:
        """Play all of it again, in the middle with a new strategy that takes over the state: same bits."""
        side, cut = self.make(), self.rng.randrange(len(self.rounds))
        for position, (played, weights) in enumerate(zip(self.rounds, self.weights, strict=True)):
            if position == cut and isinstance(side.parameters, FlatParameters):
                before, side = side, self.make()
                side.strategy.load_state_dict(stored(before.strategy.state_dict()))
                side.number, side.parameters = (
                    before.number,
                    side.strategy.initialize_parameters(side.manager),
                )
                np.testing.assert_array_equal(side.parameters.vector, before.parameters.vector)
            side.configure(played)
            side.aggregate(played)
            np.testing.assert_array_equal(side.strategy.weights, weights)

    # Details

    def _begin(self, everybody: bool = False) -> Round:
        """Decide who is there."""
        rng = self.rng
        leaving = set(self.side.strategy.membership.announced)
        self.gone |= leaving
        if everybody:
            return Round([*CLIENTS], sorted({5, 6, *self.gone}), [], [])
        online = [client for client in CLIENTS if rng.choice([True] * 4 + [False])]
        arrived = [client for client in (5, 6, *sorted(self.gone)) if rng.choice([False, False, True])]
        departed = [rng.choice(CLIENTS)] if rng.choice([False, False, True]) else []
        arrived = sorted(set(arrived) - set(departed))
        self.gone = (self.gone | set(departed)) - set(arrived)
        working = sorted(client for client in self.under_way if rng.choice([True] * 4 + [False]))
        self.under_way = {client: self.under_way[client] for client in working}
        shift = rng.choice([0.0] * 8 + [1.0, 1e6])
        return Round(online, arrived, departed, working, shift)

    def _honest(self, name: str, instruction: FitIns) -> FitRes:
        client = int(name)
        size = int(SIZES[client]) or 70
        rule = self.side.strategy.rule
        probed = instruction.config.get("rule", SGD.name) != rule.name  # for the initial model
        return honest(client, instruction, SGD if probed else rule, size, self.rng)

    def _reply(self, name: str, instruction: FitIns) -> FitRes:
        return spoiled(self.rng, self._honest(name, instruction), instruction, self.marker)

    def _aggregate(self, played: Round) -> None:
        """End a round; weights are finite, who was refused is named, and refused replies change nothing."""
        strategy = self.side.strategy
        spills = "table_memory" in self.options  # into a file, of which there is no copy
        before = None if spills else copy.deepcopy(strategy)
        self.side.aggregate(played)
        self.rounds.append(played)
        self.weights.append(strategy.weights.copy())
        report, arrays = strategy.report, parameters_to_ndarrays(self.side.parameters)
        assert [array.shape for array in arrays] == [array.shape for array in START]
        assert all(np.isfinite(array).all() for array in (strategy.weights, *arrays))
        assert not self.marker.exists()
        for name, reason in report.rejected:
            assert reason
            assert len(name) + len(reason) <= LONGEST
            assert (name + reason).isprintable()
        assert sum(len(key) for key in self.side.metrics) <= LONGEST * (len(report.rejected) + 3)
        farewells = sum(event["event"] == "farewell" and event["received"] for event in report.events)
        assert len(report.rejected) + len(report.active) + farewells >= len(played.results)
        if before is None or len(report.active) or farewells:
            return
        departing = before.membership.announced != strategy.membership.announced
        no_data = any(reason == "no examples" for _, reason in report.rejected)
        if not (departing or no_data or report.diverged):
            before.aggregate_fit(self.side.number, [], [])
            now, then = strategy.state_dict(), before.state_dict()
            for state in (now, then):  # a selection may hold it against clients
                for key in [key for key in state if key.startswith("selection.")]:
                    del state[key]
            same_state(now, then)


def run(name: str, rng: Random, marker: Path, rounds: int = 4) -> None:
    """Play hostile rounds, then three honest ones, and check what has to hold."""
    campaign = Campaign(name, rng, marker)
    try:
        for _ in range(rounds):
            campaign.play()
        for _ in range(3):
            campaign.play_honestly()
        campaign.check_again()
    except Exception as error:
        error.add_note(f"{name} with {campaign.options}, stock manager: {campaign.stock}, {campaign.dtype}")
        raise
