"""What methods change about local SGD, as rules on flat vectors with any number of leading axes (..., M).

The same rule trains one client, a cohort of clients, and a client on a device.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from clients.memory.handshake import Memory
from clients.rules.apfl import APFL
from clients.rules.base import SGD
from clients.rules.corrections import Corrected, Dynamic, HeavyBall, Proximal
from clients.rules.elastic import Elastic
from clients.rules.focus import KeptGradient, KeptLastGradient, LastGradient
from clients.rules.pfedme import PFedMe
from clients.rules.uploads import CorrectedUpload, DifferenceUpload
from fedtide.base import dotted
from fedtide.base.errors import SettingsError

__all__ = ["RULES", "SGD", "rule_named", "usable_memory"]

log = logging.getLogger(__name__)

RULES: dict[str, type[SGD]] = {
    "sgd": SGD,
    "proximal": Proximal,
    "corrected": Corrected,
    "heavy-ball": HeavyBall,
    "apfl": APFL,
    "pfedme": PFedMe,
    "elastic": Elastic,
    "corrected-upload": CorrectedUpload,
    "difference-upload": DifferenceUpload,
    "dynamic": Dynamic,
    "last-gradient": LastGradient,
    "kept-gradient": KeptGradient,
    "kept-last-gradient": KeptLastGradient,
}
"""The client's side of each `fedtide.base.contract.Rule`, by its name."""


def rule_named(name: str) -> type[SGD]:
    """Return the rule of this name; a dotted one is imported. A ValueError says that there is none."""
    if name in RULES:
        return RULES[name]
    if not dotted.is_dotted("rule", name):
        raise SettingsError(f"unknown rule {name!r}; known: {', '.join(RULES)}; is this client up to date?")
    rule: type[SGD] = dotted.load("rule", name)
    if not (isinstance(rule, type) and issubclass(rule, SGD)):
        raise SettingsError(f"rule {name} is not derived from clients.rules.SGD")
    return rule


def usable_memory(memory: Memory | None, rule: str, size: int, dtype: np.dtype[Any]) -> Memory | None:
    """Return a stored memory; None, with a warning, if it belongs to another rule or model.

    The client then continues without one, as after a reinstallation.
    """
    if memory is not None:
        try:
            for state in (memory.committed, memory.pending or {}):
                rule_named(rule).check_state(state, size, dtype)
        except ValueError as error:
            log.warning("the client's memory cannot be used (%s); the client continues without one", error)
            return None
    return memory
