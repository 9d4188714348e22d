"""What server and client agree on: the task of a round, the rules of local training, and the reply.

It needs NumPy and the standard library only, so that a client on a small device can use it.
"""

from fedtide.base.contract import metrics, ternary
from fedtide.base.contract.fit import FitConfig, Scalar
from fedtide.base.contract.metrics import REPORTED, Reported
from fedtide.base.contract.rule import CORRECTED, SGD, Rule

__all__ = [
    "CORRECTED",
    "REPORTED",
    "SGD",
    "FitConfig",
    "Reported",
    "Rule",
    "Scalar",
    "metrics",
    "ternary",
]
