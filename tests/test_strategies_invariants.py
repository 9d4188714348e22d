"""Invariants of MIFA, FedLaAvg and MimiC under random participation, arrivals and departures.

Each is held against its definition, client by client.
"""

from typing import Any

import numpy as np
from fakes import M, N
from tables import E, Federation, on_tables

FILE = {"table_memory": 0.0}


@on_tables({}, {"first_round": "wait", **FILE}, {"first_round": "seen"}, {"empty": "move", **FILE})
def test_mifa_is_its_table(table: Any, departure: str, options: dict[str, Any]) -> None:
    """Overwrite, keep, drop: w -= eta (1/N) sum G by the table of this moment."""
    federation = Federation("mifa", table, departure, **options)
    G: dict[int, np.ndarray] = {}
    waiting = options.get("first_round") == "wait"
    for answers in federation:
        for client in federation.left:
            G.pop(client, None)
        G |= {k: -a.delta / federation.rates[a.task] * E / a.steps for k, a in answers.items()}
        moves = answers or "empty" in options
        waiting = waiting and (not moves or not federation.members - federation.gone <= G.keys())
        expected = federation.before.copy()
        if moves and not waiting and G:
            count = len(G) if options.get("first_round") == "seen" else len(federation.members)
            expected -= federation.rates[federation.round] * sum(G.values()) / max(1, count)
        federation.check(expected)
        assert sorted(federation.strategy.latest.clients.tolist()) == sorted(G)


@on_tables({}, {"units": "update", **FILE}, {"empty": "move"}, {"units": "update", "empty": "move"})
def test_fedlaavg_moves_by_the_mean_of_the_latest(
    table: Any, departure: str, options: dict[str, Any]
) -> None:
    """sum / N is the mean of all members' latest updates, 0 for those never seen (Algorithm 2)."""
    federation = Federation("fedlaavg", table, departure, **options)
    gradient = "units" not in options
    u: dict[int, np.ndarray] = {}
    for answers in federation:
        for client in federation.left:
            u.pop(client, None)
        p, rates = federation.shares(), federation.rates
        for k, a in answers.items():
            unit = -1 / rates[a.task] if gradient else 1.0
            u[k] = unit * len(p) * p[k] * E / a.steps * a.delta
        mean = sum((u.get(client, np.zeros(M)) for client in p), np.zeros(M)) / max(1, len(p))
        moves = bool(answers) or "empty" in options
        federation.check(federation.before + moves * mean * (-rates[federation.round] if gradient else 1.0))
        np.testing.assert_allclose(federation.strategy.latest.total / max(1, len(p)), mean, atol=1e-11)


@on_tables({}, {"units": "update", **FILE}, {"table_dtype": "float32"})
def test_mimic_corrections_sum_to_zero(table: Any, departure: str, options: dict[str, Any]) -> None:
    """sum_i c_i = 0 over the members after every round; each c_i is what Algorithm 1 and the handover say."""
    federation = Federation("mimic", table, departure, **options)
    close = dict.fromkeys(("rtol", "atol"), 1e-5 if "table_dtype" in options else 1e-9)
    c = {client: np.zeros(M) for client in range(N - 1)}
    for answers in federation:
        for client in federation.left:
            handed = c.pop(client)
            c = {other: vector + handed / len(c) for other, vector in c.items()}
        c |= {client: np.zeros(M) for client in federation.joined}
        expected, rate = federation.before, federation.rates[federation.round]
        if answers:
            unit = {k: 1.0 if "units" in options else rate * a.steps for k, a in answers.items()}
            ghat = {k: -a.delta / unit[k] for k, a in answers.items()}
            v = sum(g + c[client] for client, g in ghat.items()) / len(ghat)
            c |= {client: v - g for client, g in ghat.items()}
            expected = federation.before - (1 if "units" in options else E * rate) * v
        members = np.array(sorted(federation.members), np.intp)
        ours = federation.strategy.corrections.read(members)
        np.testing.assert_allclose(ours, np.array([c[k] for k in members]).reshape(-1, M), **close)
        np.testing.assert_allclose(ours.sum(axis=0), 0, atol=close["atol"])
        federation.check(expected, **close)
