"""Methods against their definitions, client by client, under everything that clients may do.

Random participation with incomplete work, replies that are lost or late, arrivals and departures.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fakes import SIZES, M, N
from tables import E, Federation, on_tables

FILE = {"table_memory": 0.0}


@on_tables(
    {},
    {"first_round": "wait", **FILE},
    {"first_round": "seen"},
    {"empty": "move", **FILE},
    {"max_age": 1},
    {"max_age": 0, "first_round": "wait", "empty": "move"},
)
def test_mifa_is_its_table(table: Any, departure: str, options: dict[str, Any]) -> None:
    """Overwrite, keep, drop: w -= eta (1/N) sum G by the table of this moment, or the mean of what is new."""
    federation = Federation("mifa", table, departure, **options)
    G: dict[int, np.ndarray] = {}
    versions: dict[int, int] = {}
    waiting = options.get("first_round") == "wait"
    for answers in federation:
        for client in federation.left:
            G.pop(client, None)
        G |= {k: -a.delta / federation.rates[a.task] * E / a.steps for k, a in answers.items()}
        versions |= {k: a.version for k, a in answers.items()}
        moves = answers or "empty" in options
        waiting = waiting and (not moves or not federation.members - federation.gone <= G.keys())
        expected = federation.before.copy()
        if moves and not waiting and "max_age" in options:
            G = {k: g for k, g in G.items() if federation.version - versions[k] <= options["max_age"]}
        if moves and not waiting and G:
            of_those_seen = "max_age" in options or options.get("first_round") == "seen"
            count = len(G) if of_those_seen else len(federation.members)
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


@on_tables({}, {"weights": "uniform"})
def test_debiasing_fedavg(table: Any, departure: str, options: dict[str, Any]) -> None:
    """omega = rounds as a member / participations, this round in both."""
    federation = Federation("fedau", table, departure, estimator="frequency", cutoff=2, **options)
    age, seen = dict.fromkeys(range(N), 0), dict.fromkeys(range(N), 0)
    for answers in federation:
        for client in federation.joined:
            age[client] = seen[client] = 0
        for client in federation.members:
            age[client] += 1
            seen[client] += client in answers
        p = federation.shares(options.get("weights", "n"))
        step = sum(p[k] * age[k] / seen[k] * E / answer.steps * answer.delta for k, answer in answers.items())
        federation.check(federation.before + step)


@on_tables({}, {"cutoff": 3}, {"cutoff": 0, "weights": "uniform"}, {"normalize": False})
def test_fedau(table: Any, departure: str, options: dict[str, Any]) -> None:
    """Algorithm 2 round by round; M_k omega_k + S_k is the number of rounds as a member."""
    federation = Federation("fedau", table, departure, **options)
    cutoff = options.get("cutoff", 50)
    omega, ended, since, age = (dict.fromkeys(range(N), first) for first in (1.0, 0, 0, 0))
    for answers in federation:
        for client in federation.joined:
            omega[client], ended[client], since[client], age[client] = 1.0, 0, 0, 0
        p = federation.shares(options.get("weights", "n"))
        step = np.zeros(M)
        for k, answer in answers.items():
            work_done = E / answer.steps if options.get("normalize", True) else 1
            step += p[k] * omega[k] * work_done * answer.delta
        federation.check(federation.before + step)
        for k in federation.members:
            since[k] += 1
            age[k] += 1
            if k in answers or since[k] == cutoff:
                omega[k] = since[k] if not ended[k] else (ended[k] * omega[k] + since[k]) / (ended[k] + 1)
                ended[k], since[k] = ended[k] + 1, 0
            assert ended[k] * omega[k] * (ended[k] > 0) + since[k] == pytest.approx(age[k])


@on_tables(
    {},
    {"gradient": "last", "scale": "members", "weights": "uniform", **FILE},
    {"scale": "members", "server_rate": 0.5},
    {"empty": "move"},
)
def test_focus(table: Any, departure: str, options: dict[str, Any]) -> None:
    """w -= eta c sum p_k G_k; G_k is the mean of the steps' gradients, of which each lacked the old G_k."""
    federation = Federation("focus", table, departure, **options)
    last, scale = options.get("gradient") == "last", options.get("scale", "steps")
    G: dict[int, np.ndarray] = {}
    for answers in federation:
        for client in federation.left:
            G.pop(client, None)
        p, rates = federation.shares(options.get("weights", "n")), federation.rates
        for k, a in answers.items():
            change = -a.delta / rates[a.task]
            G[k] = change if last else change / a.steps + G.get(k, 0)
        c = E if scale == "steps" else len(p)
        step = options.get("server_rate", 1.0) * rates[federation.round] * c
        moves = bool(answers) or "empty" in options
        mean = sum((p[k] * g for k, g in G.items() if k in p), np.zeros(M))
        federation.check(federation.before - moves * step * mean)
        strategy = federation.strategy
        for k, g in G.items():
            task = strategy.task(k)
            np.testing.assert_allclose(-task.arrays[0], g, rtol=1e-9, atol=1e-11)


@on_tables({}, {"units": "update"}, {"beta": 0.5, "agg": "prob", "units": "update"}, {"weights": "uniform"})
def test_fedvarp(table: Any, departure: str, options: dict[str, Any]) -> None:
    check_varp(Federation("fedvarp", table, departure, **options), options)


@on_tables({}, {"beta": 0.2}, {"beta": 0.9, "weights": "uniform", "units": "update"}, {"agg": "mean"})
def test_fedstale(table: Any, departure: str, options: dict[str, Any]) -> None:
    """FedVARP with half of the stale updates, and p_k omega_k for those who replied."""
    federation = Federation("fedstale", table, departure, **options)
    check_varp(federation, {"beta": 0.5, "agg": "prob", **options})


def check_varp(federation: Federation, options: dict[str, Any]) -> None:
    """v from the old table; rows replaced afterwards, in gradients by the rate of their task."""
    y: dict[int, np.ndarray] = {}
    omega = np.ones(N)
    for answers in federation:
        omega[federation.joined] = 1
        for client in federation.left:
            y.pop(client, None)
        members, p = federation.members, federation.shares(options.get("weights", "n"))
        beta, rates, t = options.get("beta", 1.0), federation.rates, federation.round
        gradient = options.get("units", "gradient") == "gradient"
        u = {k: a.delta * E / a.steps / (-rates[a.task] if gradient else 1) for k, a in answers.items()}
        expected = federation.before
        if answers:
            weights = p
            if options.get("agg") == "prob":
                weights = {k: p[k] * omega[k] for k in answers}
            total = sum(p[k] for k in answers) if options.get("agg", "mean") == "mean" else 1.0
            zero = np.zeros(M)
            v = beta * sum((p[k] * y.get(k, zero) for k in members), zero)
            v = v + sum(weights[k] / total * (u[k] - beta * y.get(k, zero)) for k in answers)
            expected = federation.before + (-rates[t] if gradient else 1) * v
        federation.check(expected)
        y |= u
        omega = federation.strategy.intervals.means(np.arange(N), t + 1)  # by definition in test_fedau


@on_tables(
    {},
    {"buffer": 3},
    {"buffer": 4, "weights": "n", "renorm": True},
    {"buffer": 2, "max_lag": 1},
    {"normalize": True},
)
def test_fedbuff(table: Any, departure: str, options: dict[str, Any]) -> None:
    """Everything that waits, discounted by the lag that it had when it arrived."""
    federation = Federation("fedbuff", table, departure, **options)
    buffer: list[tuple[int, float, float, np.ndarray]] = []
    for answers in federation:
        buffer = [part for part in buffer if part[0] not in federation.left]
        for k, answer in answers.items():
            q = SIZES[k] if options.get("weights") == "n" else 1
            done = E / answer.steps if options.get("normalize") else 1
            lag = federation.version - answer.version
            buffer.append((k, q, (1 + lag) ** -0.5, done * answer.delta))
        step = np.zeros(M)
        if answers and len(buffer) >= options.get("buffer", 1):
            total = sum(q * (discount if options.get("renorm") else 1) for _, q, discount, _ in buffer)
            step = sum((q / total * discount * d for _, q, discount, d in buffer), step)
            buffer = []
        assert federation.strategy.buffer.clients.tolist() == [k for k, *_ in buffer]
        federation.check(federation.before + step)


@on_tables({}, {"evaluate": "newest"}, {"weights": "n", "normalize": True}, {"clip": 0.5})
def test_fedawe(table: Any, departure: str, options: dict[str, Any]) -> None:
    """Each member's x_k and T_k; the mean of all x_k moves by the echoes over N (double stochasticity)."""
    federation = Federation("fedawe", table, departure, **options)
    start = federation.strategy.weights.copy()
    x = dict.fromkeys(federation.members, start)
    T, echoes, newest = dict.fromkeys(federation.members, 0), dict.fromkeys(federation.members, 0), start
    for answers in federation:
        t, strategy = federation.round, federation.strategy
        for client in federation.left:
            del x[client], T[client], echoes[client]
        for client in federation.joined:
            x[client], T[client], echoes[client] = newest, t - 1, t - 1
        p = federation.shares()
        if answers:
            echo = {k: (t - T[k]) * a.delta for k, a in answers.items()}
            if options.get("weights") == "n":
                echo = {k: len(p) * p[k] * E / answers[k].steps * d for k, d in echo.items()}
            mean = sum(echo.values()) / len(answers)
            if "clip" in options:
                mean = mean * min(1, options["clip"] / np.linalg.norm(mean))
            xbar = sum(x.values()) / len(x)
            newest = sum(x[k] for k in answers) / len(answers) + mean
            for k in answers:
                echoes[k] += t - T[k]
                x[k], T[k] = newest, t
                assert echoes[k] == T[k]  # Proposition 1
            moved = sum(x.values()) / len(x) - xbar
            np.testing.assert_allclose(moved, len(answers) / len(x) * mean, rtol=1e-9, atol=1e-12)
            expected = newest if options.get("evaluate") == "newest" else sum(x.values()) / len(x)
            federation.check(expected)
        for k in federation.members:
            np.testing.assert_allclose(strategy.task(k).weights.vector, x[k], rtol=1e-9, atol=1e-12)
        assert len(strategy.models) <= len({*T.values(), t, 0})


@on_tables({"rate_memory": 0.2}, {"rate_memory": 1.0})
def test_f3ast_rates(table: Any, departure: str, options: dict[str, Any]) -> None:
    """r_k falls in every round and rises with every accepted reply."""
    federation = Federation("f3ast", table, departure, **options)
    b = options["rate_memory"]
    r = dict.fromkeys(federation.members, 1.0)
    for answers in federation:
        r |= dict.fromkeys(federation.joined, 1.0)
        r = {k: (1 - b) * r[k] + b * (k in answers) for k in federation.members}
        found = federation.strategy.rate(np.arange(N))
        np.testing.assert_allclose([found[k] for k in sorted(r)], [r[k] for k in sorted(r)], rtol=1e-12)


CERTAIN = {"tolerance": 1e-9}  # or rounding would decide between clients with the same loss


@on_tables({**CERTAIN}, {"bias": 0.0, **CERTAIN}, {"bias": 20.0, "weights": "uniform", "tolerance": 0.01})
def test_cafed(table: Any, departure: str, options: dict[str, Any]) -> None:
    """q_k = p_k / pi_k, or 0 where the error of Algorithm 1 falls without the client, over all subsets."""
    federation = Federation("cafed", table, departure, **options)
    there: dict[int, list[bool]] = {client: [] for client in range(N - 1)}  # by round of the membership
    loss: dict[int, float] = {}  # a client that reports no final loss has F_k^* = 0
    for answers in federation:
        for client in federation.left:
            loss.pop(client, None)
        there |= {client: [] for client in federation.joined}
        for client in federation.members:
            there[client].append(client in federation.strategy.selected)
        p = federation.shares(options.get("weights", "n"))
        pi = {k: np.mean(there[k]) for k in p}
        out = left_out(p, pi, {k: memory(there[k]) for k in p}, loss, options)
        step = sum((p[k] / pi[k] * E / a.steps * a.delta for k, a in answers.items() if k not in out), 0)
        federation.check(federation.before + step)
        for k in answers:  # `work` reports 1 / (round of the task)
            loss[k] = loss.get(k, 1 / federation.round) * 0.7 + 0.3 / federation.round


def memory(there: list[bool]) -> float:
    """P(there | there before) + P(away | away before) - 1; 0 unless it was both before some round."""
    after = {before: [now for b, now in pairwise(there) if b == before] for before in (True, False)}
    return float(np.mean(after[True]) - np.mean(after[False])) if all(after.values()) else 0.0


def left_out(
    p: dict[int, float], pi: dict[int, Any], correlation: dict[int, float], loss: Any, options: dict[str, Any]
) -> set[int]:
    """Who is left out, one by one, in the order of the paper."""
    if not loss.keys() & p.keys():
        return set()
    f = {k: loss.get(k, np.mean([loss[i] for i in loss.keys() & p.keys()])) for k in p}

    def error(kept: set[int]) -> float:
        share = sum(p[k] for k in kept)
        mean = sum(p[k] * f[k] for k in kept) / share
        return float(mean + options.get("bias", 1.0) * max(f.values()) * (1 - share) ** 2)

    kept = {*p}
    order = [*sorted(p, key=lambda k: (-abs(correlation[k]), k)), *sorted(p, key=lambda k: (pi[k], k))]
    for k in order:
        if k in kept and len(kept) > 1 and error(kept) - error(kept - {k}) > options["tolerance"]:
            kept.remove(k)
    return {*p} - kept
