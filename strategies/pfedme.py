"""pFedMe: clients have a model of their own, tied to the global one by a Moreau envelope.

T Dinh, Tran, Nguyen 2020, "Personalized Federated Learning with Moreau Envelopes", Algorithm 1. A client's
part is clients/rules/pfedme.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from strategies import ClientWeights, Options, Positive, Range, Replies, Rule
from strategies.parts.personal import Personalised


class PFedMe(Personalised):
    """w = (1 - beta) w + beta mean_S w_i; a client uses theta_i = argmin f_i + lambda/2 ||theta_i - w||^2.

    theta_i is the client's: an inactive one keeps it, an arriving one begins with theta_i = w.
    """

    suits = "a model for each client, near the global one"
    options: PFedMeOptions
    rule = Rule("pfedme", scalars=("penalty", "inner-steps", "personal-rate", "start"), remembers=True)

    def update(self, replies: Replies) -> None:
        """Move w by beta times the mean update of those who replied."""
        coefficients = replies.mean_coefficients(self.options.weights)
        self.weights += self.options.beta * replies.weighted_sum(coefficients)


@dataclass(frozen=True, kw_only=True)
class PFedMeOptions(Options):
    """Options of pFedMe. The learning rate is eta, of the step of w_i; local steps are its local rounds R.

    Attributes
    ----------
    penalty
        lambda, how strongly the own model is tied to the global one.
    inner_steps
        K, gradient steps on theta_i in each local step.
    personal_rate
        Rate of these steps. They are stable below 2 / (L + lambda), for gradients with Lipschitz constant L:
        the 0.1 of the paper's experiments is close to that with lambda = 15.
    beta
        Share of the mean local model in the new global one, above 1 to go beyond it.
    start
        Where the K steps of a local step begin: `warm` at the theta_i before, as in the authors' code, or
        `w` at w_i; those of the first local step of a round begin at w.
    weights
        `uniform` counts clients alike, as the paper does; `n` by their examples, as the authors' code does.
    """

    penalty: Positive = 15.0
    inner_steps: Annotated[int, Range(least=1, most=1_000_000)] = 5
    personal_rate: Positive = 0.05
    beta: Positive = 1.0
    start: Literal["warm", "w"] = "warm"
    weights: ClientWeights = "uniform"
