"""Federated methods for clients that come and go, each a Flower `Strategy`.

All that a method is written with can be imported from here: the base class, options and their allowed
values, the replies of a round, and tables by client.
"""

from fedtide.base.allowed import Count, CountOrZero, NotNegative, Positive, Range, Share
from fedtide.base.contract import CORRECTED, SGD, Rule
from fedtide.base.errors import SettingsError
from strategies.core.layers import Layer, Vector
from strategies.core.members import AvailabilityManager, LossTracker
from strategies.core.norms import MAX_RESULT
from strategies.core.options import SCHEDULES, EmptyRound, Options, ServerRateOptions, Units
from strategies.core.parameters import FlatParameters, Layout, largest
from strategies.core.replies import Replies
from strategies.core.roster import Clients, ClientWeights, Forecast, Roster
from strategies.core.round import RoundReport, Sent, Task
from strategies.core.selection import LongestAbsent, Selection, Uniform
from strategies.core.state import ByClient, Stateful, extend
from strategies.core.strategy import EvaluateFn, FlexibleStrategy, LateReplies
from strategies.fedavg import FedAvg
from strategies.memory.models import HeldModels, ModelWindow
from strategies.memory.table import ClientTable, MemoryOptions, SummedTable, TableOptions
from strategies.memory.zero_sum import ZeroSumTable
from strategies.registry import STRATEGIES, VARIANTS, make
from strategies.selection import SELECTIONS

__all__ = [
    "CORRECTED",
    "MAX_RESULT",
    "SCHEDULES",
    "SELECTIONS",
    "SGD",
    "STRATEGIES",
    "VARIANTS",
    "AvailabilityManager",
    "ByClient",
    "ClientTable",
    "ClientWeights",
    "Clients",
    "Count",
    "CountOrZero",
    "EmptyRound",
    "EvaluateFn",
    "FedAvg",
    "FlatParameters",
    "FlexibleStrategy",
    "Forecast",
    "HeldModels",
    "LateReplies",
    "Layer",
    "Layout",
    "LongestAbsent",
    "LossTracker",
    "MemoryOptions",
    "ModelWindow",
    "NotNegative",
    "Options",
    "Positive",
    "Range",
    "Replies",
    "Roster",
    "RoundReport",
    "Rule",
    "Selection",
    "Sent",
    "ServerRateOptions",
    "SettingsError",
    "Share",
    "Stateful",
    "SummedTable",
    "TableOptions",
    "Task",
    "Uniform",
    "Units",
    "Vector",
    "ZeroSumTable",
    "extend",
    "largest",
    "make",
]
