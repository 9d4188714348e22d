"""Schemes A, B and C: aggregation with fixed or debiased coefficients.

Ruan et al. 2021, "Towards Flexible Device Participation in Federated Learning", AISTATS, section 4.1.
All three are eq. (2), w += sum_k p_tau^k delta_k without renormalisation, and differ in p_tau^k. The shares
p^k = n_k / n are over all members, so that the coefficients of a round need not sum to 1: B replies of N
members make a step of about B / N. In event time a late reply counts like any other.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from strategies import Clients, FlexibleStrategy, Options, Positive, Range, Replies
from strategies.parts.reboot import FastReboot

Coefficients = NDArray[np.float64]
Counts = NDArray[np.int64]


def scheme_a(shares: Coefficients, steps: Counts, planned: Counts, num_members: int) -> Coefficients:
    """N p^k / K_tau for the K_tau complete devices (s_k = E), 0 for the others; all 0 if none is complete."""
    complete = steps >= planned
    return np.where(complete, num_members * shares / max(1, complete.sum()), 0.0)


def scheme_b(shares: Coefficients, steps: Counts, planned: Counts, num_members: int) -> Coefficients:
    """p^k, whatever the device finished."""
    return shares


def scheme_c(shares: Coefficients, steps: Counts, planned: Counts, num_members: int) -> Coefficients:
    """(E / s_k) p^k, so that every device counts as if it had run all E steps."""
    return planned / steps * shares


class Scheme(FlexibleStrategy):
    """What the three schemes share: eq. (2), fast reboot on arrivals."""

    options: SchemeOptions
    saved = ("reboot",)
    late_replies = "event-time"

    def setup(self) -> None:
        """Start without any arrival."""
        self.reboot = FastReboot(self.options.reboot, self.options.reboot_peak, self.options.reboot_factor)

    @staticmethod
    @abstractmethod
    def coefficients(shares: Coefficients, steps: Counts, planned: Counts, num_members: int) -> Coefficients:
        """p_tau^k of the devices that replied, shape (K,)."""

    def update(self, replies: Replies) -> None:
        """w += sum_k p_tau^k delta_k (eq. 2); the boost multiplies an arriving device's coefficient."""
        shares, N = self.roster.share(replies.clients), self.roster.num_contributors
        p = self.coefficients(shares, replies.steps, replies.planned, N)
        factors, events = self.reboot.multipliers(replies, self.roster, self.round)
        self.report.events += events
        self.weights += replies.weighted_sum(p * factors)

    def members_changed(self, arrived: Clients, left: Clients) -> None:
        """Reconsider devices that were members before."""
        for client in arrived.tolist():
            self.reboot.boosted.pop(client, None)


class SchemeA(Scheme):
    """N p_k / K for the K devices that finished all E steps; incomplete work is dropped."""

    suits = "comparison, or devices that nearly always finish"
    coefficients = staticmethod(scheme_a)


class SchemeB(Scheme):
    """Fixed p_k; incomplete work is taken as it is, and so favours devices that do more."""

    suits = "comparison: how far fast devices pull the model"
    coefficients = staticmethod(scheme_b)


class SchemeC(Scheme):
    """(E / s_k) p_k: unbiased where devices finish different shares of their work."""

    suits = "devices that finish different shares of their work"
    coefficients = staticmethod(scheme_c)


@dataclass(frozen=True, kw_only=True)
class SchemeOptions(Options):
    """Options of the schemes.

    Attributes
    ----------
    reboot
        Boost of arriving devices: `on`, `off`, or `auto` where Corollary 4.0.2 says that it helps.
    reboot_peak
        Factor of an arriving device's coefficient in its first round.
    reboot_factor
        Allowance in the criterion of `auto`, see `strategies.parts.reboot.near_old_optimum`.
    """

    reboot: Literal["on", "off", "auto"] = "on"
    reboot_peak: Annotated[float, Range(least=1)] = 3.0
    reboot_factor: Positive = 1.0
