"""The newer methods against their definitions, client by client, under everything that clients may do.

Random participation with incomplete work, replies that are lost or late, arrivals and departures.
"""

from typing import Any

import numpy as np
import pytest
from fakes import SIZES, M, N, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import TABLES, E, Federation, on_tables


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


@on_tables({}, {"units": "update"}, {"beta": 0.5, "agg": "prob", "units": "update"}, {"weights": "uniform"})
def test_fedvarp(table: Any, departure: str, options: dict[str, Any]) -> None:
    """v from the old table; rows replaced afterwards, in gradients by the rate of their task."""
    federation = Federation("fedvarp", table, departure, **options)
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


@pytest.mark.parametrize(
    "name", ["fedau", "fedvarp", "fedawe", "f3ast", "fedbuff", "mifa", "fedlaavg", "mimic"]
)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(table=TABLES, departure=st.sampled_from(["include", "exclude"]), after=st.integers(0, 11))
def test_state_is_all_that_matters(name: str, table: Any, departure: str, after: int) -> None:
    """Saved after any round and loaded into a new object, whose table may be elsewhere: the same bits."""
    whole, stopped = Federation(name, table, departure), Federation(name, table, departure)
    for number, _ in enumerate(zip(whole, stopped, strict=True)):
        if number == after:
            elsewhere = {"table_memory": 0.0} if hasattr(whole.strategy.options, "table_memory") else {}
            fresh = Federation(name, table, departure, **elsewhere).strategy
            fresh.load_state_dict(stored(stopped.strategy.state_dict()))
            stopped.resume(fresh)
        np.testing.assert_array_equal(stopped.strategy.weights, whole.strategy.weights)
