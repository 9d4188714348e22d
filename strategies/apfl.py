"""APFL: clients mix the global model with one of their own.

Deng, Kamani, Mahdavi 2020, "Adaptive Personalized Federated Learning", Algorithm 1. A client's part is the
rule `apfl` in clients/rules/personal.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.core.interfaces import Task
from strategies.core.options import Options, choose
from strategies.core.replies import Replies
from strategies.fedavg import mean_coefficients
from strategies.parts.personal import Personalised


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
        `chain` moves v by alpha grad f(vbar), its gradient as in the paper and by autograd; `plain` leaves
        alpha out, as other implementations do.
    """

    alpha: float = 0.5
    alpha_mode: str = "fixed"
    gradient: str = "chain"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is {self.alpha}; it is a share, 0 to 1")
        choose("alpha-mode", self.alpha_mode, ("fixed", "step", "round"))
        choose("gradient", self.gradient, ("chain", "plain"))


class APFL(Personalised):
    """w = mean_S w_i; a client uses alpha_i v_i + (1 - alpha_i) w with a v_i of its own.

    v_i and alpha_i are the client's: an inactive one keeps them, an arriving one begins with v_i = w, and
    they have no influence on w.
    """

    options_type = APFLOptions
    options: APFLOptions
    rule = "apfl"

    def shared_task(self) -> Task:
        """Return what clients need to know to move v_i and alpha_i."""
        options = self.options
        return Task(
            config=(
                ("alpha", options.alpha),
                ("alpha-mode", options.alpha_mode),
                ("gradient", options.gradient),
            )
        )

    def update(self, replies: Replies) -> None:
        """Set w to the mean of the local models of those who replied."""
        self.weights += replies.weighted_sum(mean_coefficients(replies.num_examples, "uniform"))
