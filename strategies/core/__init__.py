"""The base of every strategy, and all that a method is written with."""

from strategies.core.layers import Layer, LayerFactory, Vector
from strategies.core.members import AvailabilityManager
from strategies.core.method import LateReplies
from strategies.core.options import Options, ServerRateOptions
from strategies.core.parameters import FlatParameters, Layout
from strategies.core.replies import Replies
from strategies.core.roster import Clients, Forecast, Roster
from strategies.core.round import ClientFailure, RoundReport, Sent, Task
from strategies.core.selection import Selection, SelectionFactory
from strategies.core.state import ByClient, Stateful, extend
from strategies.core.strategy import EvaluateFn, FlexibleStrategy

__all__ = [
    "AvailabilityManager",
    "ByClient",
    "ClientFailure",
    "Clients",
    "EvaluateFn",
    "FlatParameters",
    "FlexibleStrategy",
    "Forecast",
    "LateReplies",
    "Layer",
    "LayerFactory",
    "Layout",
    "Options",
    "Replies",
    "Roster",
    "RoundReport",
    "Selection",
    "SelectionFactory",
    "Sent",
    "ServerRateOptions",
    "Stateful",
    "Task",
    "Vector",
    "extend",
]
