"""What a trace is: who is there in a round, who is online, and how much of the work each one finishes."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class RoundAvailability(NamedTuple):
    """The availability of all N clients in one round.

    Attributes
    ----------
    member : (N,) bool
        Part of the federation in this round: arrived and not departed.
    online : (N,) bool
        Visible to the server at the start of the round. Only members are online.
    completion : (N,) float32
        Finished share of the E local steps, 0..1. It is 0 where a client is not online; 0 where it is online
        means that the client dropped in mid-round.
    """

    member: NDArray[np.bool_]
    online: NDArray[np.bool_]
    completion: NDArray[np.float32]


class Trace(ABC):
    """A pure function from the round to the availability of all clients.

    Asking for rounds in any order, or for one round twice, gives the same answers. The arrays that a trace
    returns belong to the caller.

    Attributes
    ----------
    num_clients : int
        N. Clients are numbered 0..N-1.
    """

    num_clients: int

    @abstractmethod
    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t.

        Parameters
        ----------
        t : int
            Round, counted from 1.

        Returns
        -------
        RoundAvailability
            Three arrays of N entries.

        Raises
        ------
        ValueError
            If t < 1.
        """

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return whose reply of round t gets lost after the work is done; nobody's, as a rule.

        The server cannot tell a client whose reply is lost from one that was away; the client knows no better
        than that it has done its work.

        Parameters
        ----------
        t : int
            Round, counted from 1.

        Returns
        -------
        (N,) bool
            It says nothing about clients that have no reply to lose.

        Raises
        ------
        ValueError
            If t < 1.
        """
        check_round(t)
        return np.zeros(self.num_clients, np.bool_)

    def seconds(self, t: int) -> float | None:
        """Return the virtual seconds that have passed when round t ends; None where rounds have no duration.

        Parameters
        ----------
        t : int
            Round, counted from 1.

        Raises
        ------
        ValueError
            If t < 1.
        """
        check_round(t)
        return None


def complete_if_online(online: NDArray[np.bool_]) -> RoundAvailability:
    """Return the availability where all are members and who is online, shape (N,), finishes all its work."""
    return RoundAvailability(np.ones(len(online), np.bool_), online, online.astype(np.float32))


def check_round(t: int) -> None:
    """Raise ValueError unless t is a round, that is, at least 1."""
    if t < 1:
        raise ValueError(f"trace: round {t} does not exist, rounds are counted from 1")


# float32 holds 0.7 as 0.69999999, so 0.7 of 10 steps would be floored to 6. The guard, in steps, covers that
# error (at most 3e-8 * E) up to E = 3000 and is far below one step.
_GUARD = 1e-4


def finished_steps(completion: ArrayLike, planned: ArrayLike) -> NDArray[np.intp]:
    """Turn finished shares into whole finished steps.

    A completion above 0 says that the client finished something, so it counts at least one step even where
    the share is less than one step; 0 steps are left to those that dropped in mid-round or were offline.

    Parameters
    ----------
    completion : array_like of float
        Finished shares, 0..1.
    planned : int or array_like of int
        Planned steps E, of a shape that broadcasts against `completion`.

    Returns
    -------
    ndarray of intp
        0 where `completion` is 0, else ``max(1, floor(completion * E))``, never above E.

    Raises
    ------
    ValueError
        If a completion lies outside 0..1 or a planned number of steps is negative.
    """
    share = np.asarray(completion, dtype=np.float64)
    limit = np.asarray(planned, dtype=np.intp)
    if not np.all((share >= 0) & (share <= 1)):
        worst = share[~((share >= 0) & (share <= 1))].flat[0]
        raise ValueError(
            f"finished_steps: completion {worst:g} is outside 0..1, give shares of the planned steps"
        )
    if np.any(limit < 0):
        raise ValueError(f"finished_steps: {limit.min()} planned steps are negative, give 0 or more")
    whole = np.floor(share * limit + _GUARD).astype(np.intp)
    at_least_one = np.maximum(whole, share > 0)
    return np.asarray(np.minimum(at_least_one, limit), dtype=np.intp)
