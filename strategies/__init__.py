"""Federated methods for clients that come and go, each a Flower `Strategy`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from flwr.common import Parameters

from strategies.apfl import APFL
from strategies.core.interfaces import AvailabilityManager, EvaluateFn, Task
from strategies.core.options import Options
from strategies.core.parameters import FlatParameters, Layout
from strategies.core.replies import Replies
from strategies.core.roster import Roster
from strategies.core.schedules import SCHEDULES
from strategies.core.state import State
from strategies.core.strategy import FlexibleStrategy
from strategies.efl import EFL
from strategies.fedavg import FedAvg
from strategies.fedgate import FedGATE
from strategies.fedlaavg import FedLaAvg
from strategies.fedprox import FedProx
from strategies.fedsgd import FedSGD
from strategies.mifa import MIFA
from strategies.mimic import MimiC
from strategies.pfedme import PFedMe
from strategies.scaffold import Scaffold
from strategies.schemes import SchemeA, SchemeB, SchemeC
from strategies.sequential_sgd import SequentialSGD
from strategies.vrl_sgd import VRLSGD

STRATEGIES: dict[str, type[FlexibleStrategy]] = {
    "fedavg": FedAvg,
    "fedsgd": FedSGD,
    "scheme-a": SchemeA,
    "scheme-b": SchemeB,
    "scheme-c": SchemeC,
    "mifa": MIFA,
    "fedlaavg": FedLaAvg,
    "mimic": MimiC,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fedgate": FedGATE,
    "vrl-sgd": VRLSGD,
    "efl": EFL,
    "apfl": APFL,
    "pfedme": PFedMe,
    "sequential-sgd": SequentialSGD,
}

__all__ = [
    "APFL",
    "EFL",
    "MIFA",
    "SCHEDULES",
    "STRATEGIES",
    "VRLSGD",
    "AvailabilityManager",
    "EvaluateFn",
    "FedAvg",
    "FedGATE",
    "FedLaAvg",
    "FedProx",
    "FedSGD",
    "FlatParameters",
    "FlexibleStrategy",
    "Layout",
    "MimiC",
    "Options",
    "PFedMe",
    "Replies",
    "Roster",
    "Scaffold",
    "SchemeA",
    "SchemeB",
    "SchemeC",
    "SequentialSGD",
    "State",
    "Task",
    "make",
]


def make(
    name: str,
    initial_parameters: Parameters,
    roster: Roster | None = None,
    evaluate_fn: EvaluateFn | None = None,
    **options: Any,
) -> FlexibleStrategy:
    """Make a strategy by its name.

    Parameters
    ----------
    name
        One of `STRATEGIES`.
    initial_parameters, roster, evaluate_fn
        See `FlexibleStrategy`.
    options
        Fields of the strategy's options.

    Raises
    ------
    ValueError
        The name or an option is unknown (the message lists the known ones), or a value is out of range.
    """
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}; known: {', '.join(STRATEGIES)}")
    strategy = STRATEGIES[name]
    known = [field.name for field in fields(strategy.options_type)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}; known: {', '.join(known)}")
    return strategy(initial_parameters, roster, evaluate_fn, strategy.options_type(**options))
