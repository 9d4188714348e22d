"""Clients whose rates of participation depend on the labels of their data."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Count, CountOrZero, Share, checked
from fedtide.ground.errors import SettingsError
from traces.base import generator
from traces.patterns.dynamics import CYCLE, Cycle, Dynamics, RateTrace, with_dynamics

_ALPHA = 0.1  # concentration of FedAU's phi
_FLOOR, _MEAN = 0.02, 0.1  # FedAU's


@checked
def labels(
    num_clients: Count,
    seed: CountOrZero,
    *,
    label_shares: NDArray[np.float64],
    floor: Share = _FLOOR,
    mean: Share = _MEAN,
    phi: Literal["dirichlet", "uniform"] = "dirichlet",
    dynamics: Dynamics = "bernoulli",
    cycle: Cycle = CYCLE,
) -> RateTrace:
    """Client k is online at a rate p_k that depends on the labels of its data; dynamics as in `rates`.

    Each of the L labels has a weight phi_c, drawn from the seed; nu_kc is its share of client k's data. With
    phi `dirichlet`, phi ~ Dirichlet(0.1) and p_k = max(floor, mean L sum_c nu_kc phi_c), at most 1 (Wang and
    Ji, "FedAU", ICLR 2024). With `uniform`, phi_c is uniform on 0..1 for the first half of the labels and on
    0..0.5 for the others, and p_k = sum_c nu_kc phi_c (Xiang et al., "FedAWE", NeurIPS 2024). Online clients
    complete all their steps.

    Parameters
    ----------
    label_shares : (N, L) float64
        Share of each label in each client's data; rows sum to 1, or to 0 for a client without examples.
    floor
        Lowest rate.
    mean
        Rate of a client with all labels in equal shares. But for the floor, it is the expected mean of
        all rates if the labels are equally frequent.
    phi
        How the weights are drawn; `uniform` has neither floor nor mean.
    dynamics
        How clients come and go: see `rates`.
    cycle
        Length of a cycle in rounds, for dynamics `cyclic`.
    """
    if len(label_shares) != num_clients:
        raise SettingsError(
            f"trace labels: label shares of {len(label_shares)} clients are given, for {num_clients} clients"
        )
    count = label_shares.shape[1]
    rng = generator(seed, "labels", 0)
    if phi == "dirichlet":
        weights, scale = rng.dirichlet(np.full(count, _ALPHA)), mean * count
    else:
        if (floor, mean) != (_FLOOR, _MEAN):
            raise SettingsError("trace labels: phi=uniform has neither floor nor mean, leave them out")
        floor, scale = 0.0, 1.0
        weights = rng.random(count) * np.where(np.arange(count) < count // 2, 1.0, 0.5)
    p = label_rates(label_shares, weights, scale, floor)
    return with_dynamics("labels", dynamics, cycle, p, seed)


def label_rates(
    shares: NDArray[np.float64], phi: NDArray[np.float64], scale: float, floor: float
) -> NDArray[np.float64]:
    """Return p_k = max(floor, scale sum_c nu_kc phi_c), at most 1, of shares (N, L) and weights (L,)."""
    return np.asarray(np.clip(scale * (shares @ phi), floor, 1.0))
