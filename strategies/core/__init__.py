"""The base of every strategy, and all that a method is written with."""

from strategies.core.instructions import Sent, Task
from strategies.core.layers import Layer, LayerFactory, Vector
from strategies.core.membership import AvailabilityManager
from strategies.core.method import LateReplies
from strategies.core.options import Options, ServerRateOptions
from strategies.core.parameters import FlatParameters, Layout
from strategies.core.replies import Replies
from strategies.core.report import RoundReport
from strategies.core.roster import Clients, Roster
from strategies.core.state import ByClient, Stateful, extend
from strategies.core.strategy import EvaluateFn, FlexibleStrategy

__all__ = [
    "AvailabilityManager",
    "ByClient",
    "Clients",
    "EvaluateFn",
    "FlatParameters",
    "FlexibleStrategy",
    "LateReplies",
    "Layer",
    "LayerFactory",
    "Layout",
    "Options",
    "Replies",
    "Roster",
    "RoundReport",
    "Sent",
    "ServerRateOptions",
    "Stateful",
    "Task",
    "Vector",
    "extend",
]
