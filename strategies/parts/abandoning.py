"""Whether a client that is often unavailable should be abandoned (Ma et al., "EFL", Corollary 1).

Theorem 1 bounds the distance to the optimum by C_t / (t E + gamma)^2 + H_t J / (t E + gamma). Each round in
which a client is away adds to H_t, so that a client that is away with probability y^a costs y^a J / E in the
long run; without it only the first term is left, restarted at the round tau_0 in which it is abandoned:

    abandon a  if  y^a J / E > f_1(T) = C T / (E (T - tau_0))^2.

This is eq. (8) with C_T = C T and without gamma, as in the paper's eq. (9), y^a > C / (J T E), which is its
case tau_0 = 0. The paper writes y^a J for the left side, from which (9) does not follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedtide.base.allowed import Count, Positive
from strategies import Options, Roster
from strategies.core.members import LossTracker
from strategies.parts.availability import Availability


def abandoning_pays(
    inactivity: float, dissimilarity: float, local_steps: float, shift: int, num_rounds: int, constant: float
) -> bool:
    """y^a J / E > C T / (E (T - tau_0))^2, in the form y^a J E (T - tau_0)^2 > C T.

    J, `dissimilarity`, and C, `constant`, are known up to a factor: the proof has J = (32 E / mu) sum_k p_k
    D_k, with D_k = F_k(w*) - F_k^*. E is the mean where it differs by client; tau_0, `shift`, rounds done.
    """
    remaining = max(0, num_rounds - shift)
    return inactivity * dissimilarity * local_steps * remaining**2 > constant * num_rounds


def worst(
    availability: Availability, roster: Roster, server_round: int, at_least: int
) -> tuple[int, float] | None:
    """Return the member that is away most, and how much more than the others on average: y^a.

    The corollary has one inactive client among active ones. Where all are away at times, abandoning one saves
    its excess over the others' mean, whose part stays in both bounds. Members that joined fewer than
    `at_least` rounds ago are not judged; None if nobody can be.
    """
    rounds = server_round - roster.joined
    judged = np.flatnonzero(roster.member & ~roster.departed & ~roster.data_less & (rounds >= at_least))
    if len(judged) < 2:
        return None
    away = 1 - availability.shares(judged)
    most = int(np.argmax(away))
    return int(judged[most]), float(away[most] - np.delete(away, most).mean())


@dataclass(frozen=True, kw_only=True)
class AbandonmentOptions(Options):
    """Options of methods that can abandon clients.

    Attributes
    ----------
    abandon
        `auto` removes a client for good if it is away so much more often than the others that the model is
        better off without it (Corollary 1), at most one per round; `off` never does.
    abandon_constant
        C of that criterion, which neither the paper nor a calibration gives: it stands for the unknown
        variance of the gradients and convexity of the objective. J is the mean of the members' Gamma_k as in
        `departure=auto`. With J = 0.5, E = 10 and T = 100, a client that is always away while the others are
        available is abandoned up to round 56.
    abandon_after
        Rounds for which a client has to be a member before it is judged.
    """

    abandon: Literal["off", "auto"] = "off"
    abandon_constant: Positive = 100.0
    abandon_after: Count = 10


def judge(
    availability: Availability,
    roster: Roster,
    losses: LossTracker,
    server_round: int,
    options: AbandonmentOptions,
) -> tuple[int, dict[str, Any]] | None:
    """Return the client to abandon and the numbers that the decision rests on; None: all stay.

    An unknown J (no client reported losses) or T (`num_rounds` 0) counts in favour of keeping the client.
    """
    found = worst(availability, roster, server_round, options.abandon_after)
    shares, gammas = roster.shares, losses.gammas(np.arange(len(roster)))
    known = (shares > 0) & ~np.isnan(gammas)
    if found is None or not known.any() or not options.num_rounds:
        return None
    client, away = found
    J = float(np.average(gammas[known], weights=shares[known]))
    E = options.mean_steps(roster.num_examples[roster.member])
    done, constant = server_round - 1, options.abandon_constant
    if not abandoning_pays(away, J, E, done, options.num_rounds, constant):
        return None
    return client, {
        "inactivity": away,
        "dissimilarity": J,
        "remaining": max(0, options.num_rounds - done),
        "tau_0": done,
        "constant": constant,
    }
