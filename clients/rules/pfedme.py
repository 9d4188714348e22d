"""pFedMe at the client: a personal model, tied to the local one."""

from __future__ import annotations

from clients.rules.base import SGD, Oracle
from clients.rules.vectors import Rate, Vector, approach, copy_of, subtract


class PFedMe(SGD):
    """A personal model theta, tied to the local w_i (T Dinh et al. 2020, Algorithm 1).

        theta -= plr (grad f(theta) + lambda (theta - w_i)),    K times
        w_i   -= eta lambda (w_i - theta)

    with plr = `personal-rate`, lambda = `penalty`, K = `inner-steps`. In the first local step of a round,
    theta starts at w; in the others at its last value (`start` = warm), or at w_i (`start` = w).

    State: theta, shape (..., M).
    """

    vectors = ("theta",)
    first = True  # no step of this round has been done

    def step(self, y: Vector, gradient: Oracle, rate: Rate) -> None:
        own = self.config.own
        penalty, personal_rate = float(own["penalty"]), float(own["personal-rate"])
        if self.first or own["start"] == "w":
            if "theta" in self.state:
                self.state["theta"][...] = y  # in the first step y is w
            else:
                self.state["theta"] = copy_of(y)
            self.first = False
        theta = self.state["theta"]
        for _ in range(int(own["inner-steps"])):
            pull = theta - y
            pull *= penalty
            pull += gradient(theta)
            subtract(theta, pull, personal_rate)
        approach(y, theta, rate * penalty)

    def personal(self) -> Vector:
        return self.state.get("theta", self.weights)  # w before the first round
