"""Server optimisers: the pseudo-update of a method as a gradient (FedAvgM, FedAdagrad, FedAdam, ...).

Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification"; Reddi et al. 2021, "Adaptive Federated Optimization", ICLR, Algorithm 2; Wang et al. 2024,
"FADAS: Towards Federated Adaptive Asynchronous Optimization", ICML. A round without an update leaves all of
their state as it is. The adaptive ones undo every common factor of the updates, such as that of a method that
moves less when few clients take part; the clients' learning rate is one, too.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedtide.base.allowed import CountOrZero, Positive, Range, checked
from strategies import Layer, Vector

Decay = Annotated[float, Range(least=0, below=1)]
Start = Literal["tau", "zero"]
Bias = Literal["none", "adam", "flower"]
Delay = Literal["none", "scale", "cap"]


class ServerOptimizer(Layer):
    """Base of the optimisers: w := w + step(D)."""

    def apply(self, before: Vector, after: Vector, server_round: int, lag: int) -> Vector:
        update = after - before
        return before + self.step(update, server_round, lag) if update.any() else before

    @abstractmethod
    def step(self, update: Vector, server_round: int, lag: int) -> Vector:
        """Return what is added to w in place of D; `lag` is the largest of the replies that D is made of."""


class ServerSGD(ServerOptimizer):
    """w := w + eta D; eta is `rate`."""

    @checked
    def __init__(self, weights: Vector, *, rate: Positive = 1.0) -> None:
        self.rate = rate

    def step(self, update: Vector, server_round: int, lag: int) -> Vector:
        return self.rate * update


class Momentum(ServerOptimizer):
    """FedAvgM: m := beta1 m + D, w := w + eta m; eta is `rate`."""

    saved = ("m",)

    @checked
    def __init__(self, weights: Vector, *, rate: Positive = 1.0, beta1: Decay = 0.9) -> None:
        self.rate, self.beta1 = rate, beta1
        self.m: Vector = np.zeros_like(weights)

    def step(self, update: Vector, server_round: int, lag: int) -> Vector:
        self.m = self.beta1 * self.m + update
        return self.rate * self.m

    def restart(self, weights: Vector, server_round: int) -> None:
        self.m = np.zeros_like(self.m)


class Nesterov(Momentum):
    """FedAvgM with look-ahead: m := beta1 m + D, w := w + eta (D + beta1 m).

    That w, from which clients start, is where the next step of the momentum would go; the model, which is
    evaluated, is w - eta beta1 m. On top of FedAvg it is FedACG (Kim et al. 2024).
    """

    def step(self, update: Vector, server_round: int, lag: int) -> Vector:
        super().step(update, server_round, lag)
        return self.rate * (update + self.beta1 * self.m)

    def evaluated(self, weights: Vector) -> Vector:
        return weights - self.rate * self.beta1 * self.m


class Adaptive(ServerOptimizer):
    """Base of the adaptive optimisers: m := beta1 m + (1 - beta1) D, w := w + eta m / (sqrt v + tau).

    Parameters
    ----------
    weights
        The initial weights, shape (M,).
    rate, beta1, beta2, tau
        eta, the decays of m and v, and the offset, in units of D (parameters per round).
    start
        v before the first update: `tau` for tau^2 (the paper), `zero` as in the authors' code and Flower.
    bias
        Correction of the rate: `none` (the paper); `adam` by the steps taken (the authors' code); `flower` by
        round + 1, with which Flower's FedAdam counts rounds without replies, too.
    """

    saved: ClassVar[tuple[str, ...]] = ("m", "v", "steps")

    @checked
    def __init__(
        self,
        weights: Vector,
        *,
        rate: Positive = 0.1,
        beta1: Decay = 0.9,
        beta2: Decay = 0.99,
        tau: Positive = 1e-3,
        start: Start = "tau",
        bias: Bias = "none",
    ) -> None:
        self.rate, self.tau, self.beta1, self.beta2, self.bias = rate, tau, beta1, beta2, bias
        self.m: Vector = np.zeros_like(weights)
        self.v: Vector = np.full_like(weights, tau**2 if start == "tau" else 0.0)
        self.steps = 0

    def step(self, update: Vector, server_round: int, lag: int) -> Vector:
        """Divide the mean update by its size so far."""
        self.steps += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * update
        self.v = self.second_moment(update**2)
        rate = self.rate_at(lag)
        if self.bias != "none":
            count = self.steps if self.bias == "adam" else server_round + 1
            rate *= math.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)
        step: Vector = rate * self.m / (np.sqrt(self.divisor()) + self.tau)
        return step

    def restart(self, weights: Vector, server_round: int) -> None:
        """Forget the momentum; v is about the sizes of updates, and stays."""
        self.m = np.zeros_like(self.m)

    def rate_at(self, lag: int) -> float:
        """Return eta for an update of this lag."""
        return self.rate

    def divisor(self) -> Vector:
        """Return what the step is divided by the root of."""
        return self.v

    @abstractmethod
    def second_moment(self, squared: Vector) -> Vector:
        """Return the new v, given D^2."""


class Adagrad(Adaptive):
    """FedAdagrad: v := v + D^2."""

    def __init__(
        self,
        weights: Vector,
        *,
        rate: Positive = 0.1,
        beta1: Decay = 0.0,
        tau: Positive = 1e-3,
        start: Start = "tau",
    ) -> None:
        super().__init__(weights, rate=rate, beta1=beta1, tau=tau, start=start)

    def second_moment(self, squared: Vector) -> Vector:
        return self.v + squared


class Adam(Adaptive):
    """FedAdam: v := beta2 v + (1 - beta2) D^2."""

    def second_moment(self, squared: Vector) -> Vector:
        return self.beta2 * self.v + (1 - self.beta2) * squared


class Yogi(Adaptive):
    """FedYogi: v := v - (1 - beta2) D^2 sign(v - D^2)."""

    def second_moment(self, squared: Vector) -> Vector:
        new: Vector = self.v - (1 - self.beta2) * squared * np.sign(self.v - squared)
        return new


class AMSGrad(Adam):
    """FADAS: h := max(h, v), w := w + eta m / (sqrt h + tau), with shorter steps for older replies.

    v and h are 0 before the first update.

    Parameters
    ----------
    delay
        eta for an update whose oldest reply has lag L: `none` is `rate`, `scale` divides it by L if L exceeds
        `tau_c` (the authors' code), `cap` is at most 1 / L (the paper).
    tau_c
        Largest lag that `scale` leaves alone.
    bias
        `none` (the paper); `adam` divides m by 1 - beta1^n and h by 1 - beta2^n after n steps (the authors'
        code).
    """

    saved = ("h",)

    @checked
    def __init__(
        self,
        weights: Vector,
        *,
        rate: Positive = 0.1,
        beta1: Decay = 0.9,
        beta2: Decay = 0.99,
        tau: Positive = 1e-8,
        delay: Delay = "none",
        tau_c: CountOrZero = 1,
        bias: Literal["none", "adam"] = "none",
    ) -> None:
        super().__init__(weights, rate=rate, beta1=beta1, beta2=beta2, tau=tau, start="zero")
        self.delay, self.tau_c, self.corrected = delay, tau_c, bias == "adam"
        self.h: Vector = np.zeros_like(weights)

    def rate_at(self, lag: int) -> float:
        """Return eta_t, with the correction of m."""
        rate = self.rate
        if self.delay == "scale" and lag > self.tau_c:
            rate /= lag
        elif self.delay == "cap" and lag:
            rate = min(rate, 1 / lag)
        return rate / self._correction(self.beta1)

    def second_moment(self, squared: Vector) -> Vector:
        v = super().second_moment(squared)
        self.h = np.maximum(self.h, v)
        return v

    def divisor(self) -> Vector:
        """Return h, corrected."""
        return self.h / self._correction(self.beta2)

    def _correction(self, decay: float) -> float:
        """Return the sum of the weights of a moving average."""
        return 1 - decay**self.steps if self.corrected else 1.0


SERVER_OPTIMIZERS: dict[str, Callable[..., ServerOptimizer]] = {
    "sgd": ServerSGD,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "adagrad": Adagrad,
    "adam": Adam,
    "yogi": Yogi,
    "amsgrad": AMSGrad,
}
"""Server optimisers by name: ``(weights, *, options)``."""
