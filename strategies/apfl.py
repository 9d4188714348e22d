"""APFL: clients mix the global model with one of their own.

Deng, Kamani, Mahdavi 2020, "Adaptive Personalized Federated Learning", Algorithm 1. A client's part is
clients/rules/apfl.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strategies import Options, Replies, Rule, Share
from strategies.parts.personal import Personalised


class APFL(Personalised):
    """w = mean_S w_i; a client uses alpha_i v_i + (1 - alpha_i) w with a v_i of its own.

    v_i and alpha_i are the client's: an inactive one keeps them, an arriving one begins with v_i = w, and
    they have no influence on w.
    """

    suits = "a model for each client, as far from the global one as its data are"
    options: APFLOptions
    rule = Rule("apfl", scalars=("alpha", "alpha-mode", "gradient"), remembers=True)

    def update(self, replies: Replies) -> None:
        """Set w to the mean of the local models of those who replied."""
        self.weights += replies.weighted_sum(replies.mean_coefficients("uniform"))


@dataclass(frozen=True, kw_only=True)
class APFLOptions(Options):
    """Options of APFL.

    Attributes
    ----------
    alpha
        Share of the own model in the mixture, 0 to 1; where it adapts, that of the beginning.
    alpha_mode
        `fixed`; or alpha follows its gradient in every local `step`, or in the first one of a `round`.
    gradient
        `chain-rule` moves v by alpha grad f(vbar), its gradient as in the paper and by autograd; `plain`
        leaves alpha out, as other implementations do.
    """

    alpha: Share = 0.5
    alpha_mode: Literal["fixed", "step", "round"] = "fixed"
    gradient: Literal["chain-rule", "plain"] = "chain-rule"
