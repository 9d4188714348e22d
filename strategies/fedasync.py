"""FedAsync: each reply is mixed into the model, one after the other, the less the older it is.

Xie, Koyejo & Gupta 2019, "Asynchronous Federated Optimization", Algorithm 1. For the replies of a round, in
the order in which they have arrived, with w_k the local weights,

    w := (1 - x_k) w + x_k w_k,    x_k = alpha s(lag_k),

where lag_k counts the changes of the weights between the client's task and the beginning of the round, and

    s(lag) = 1                                            constant,
             (1 + lag)^-a                                 poly,
             1 if lag <= b, else 1 / (a (lag - b) + 1)    hinge.

The clients' local steps are FedProx's, with mu for the paper's rho. As w_k contains the weights from which
its client started, mixing it in takes back x_k times what others have changed since; FedBuff does not. With
`rescale`, x_k is also scaled by the duration of the task (`strategies.parts.rescaling`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from strategies import CountOrZero, NotNegative, Range, Replies, Vector
from strategies.fedprox import FedProx
from strategies.parts.rescaling import Rescaling, RescalingOptions


class FedAsync(Rescaling):
    """Mixes the model with each local model as it comes, less with late ones: w := (1 - x) w + x w_k."""

    suits = "event time, where every reply should move the model at once"
    options: FedAsyncOptions
    rule = FedProx.rule

    def update(self, replies: Replies) -> None:
        """Mix in the local weights, in the order of their arrival."""
        x = self.options.alpha * self.staleness(replies.lag) * self.rescaled(replies)
        for k in np.argsort(replies.order).tolist():
            self.weights += x[k] * (replies.vectors[k] - self.weights)

    def staleness(self, lag: NDArray[np.int64]) -> Vector:
        """s(lag), shape (K,)."""
        options, s = self.options, np.ones(len(lag))
        if options.staleness == "poly":
            s = np.power(1.0 + lag, -(options.a or 0.5))
        elif options.staleness == "hinge":
            s /= (options.a or 10.0) * np.maximum(lag - options.b, 0) + 1
        return s


@dataclass(frozen=True, kw_only=True)
class FedAsyncOptions(RescalingOptions):
    """Options of FedAsync.

    Attributes
    ----------
    alpha
        Share of a local model in the mixture, where its lag does not matter.
    staleness
        How that share falls with the lag: `constant` not at all, `poly` as a power, `hinge` beyond `b`.
    a
        How fast it falls; 0 is 0.5 with `poly` and 10 with `hinge`.
    b
        Largest lag that counts fully, with `hinge`.
    mu
        Strength of FedProx's proximal term in the local steps; 0: plain SGD.
    """

    alpha: Annotated[float, Range(above=0, most=1)] = 0.6
    staleness: Literal["constant", "poly", "hinge"] = "constant"
    a: NotNegative = 0.0
    b: CountOrZero = 4
    mu: NotNegative = 0.0
