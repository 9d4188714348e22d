"""EFL: nothing is lost by compression, bytes counted are bytes sent, and wrong uploads are refused."""

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from devices import Device
from fakes import SIZES, START, M, N, Rounds, make, reply, work
from flwr.app import Context, RecordDict
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import DEVICE_TABLES, Clients, E
from torch.nn import functional

import clients.rules.elastic
import fedtide.base.contract.ternary
import strategies
from clients.app import client_fn
from clients.gradients.flat import FlatModel
from clients.gradients.oracle import Loop
from clients.rules.elastic import Elastic
from fedtide.base.contract import FitConfig
from fedtide.config import Settings
from fedtide.engine.experiment import prepare
from fedtide.engine.run import virtual_transport
from fedtide.plan import Plan
from strategies import Roster
from strategies.core.parameters import decode

TIES = st.sampled_from(fedtide.base.contract.ternary.TIES)
SPARSITY = st.floats(0.01, 1)

# Nothing is lost


def device(client: int) -> Device:
    """A client whose gradient depends on the weights and on itself.

    Its information is in 0..1: five clients' sum of it still lets the elastic steps of rate 0.1 converge.
    """
    bias = np.random.default_rng(client).normal(size=M)
    return Device(int(SIZES[client]), lambda at: at - bias, lambda at: 1 / (1 + np.exp(-at)))


@settings(max_examples=60, deadline=None)
@given(
    DEVICE_TABLES, SPARSITY, TIES, st.sampled_from(["skip", "literal"]), st.sampled_from(["ternary", "full"])
)
def test_conservation(table: Any, sparsity: float, ties: str, empty: str, apply: str) -> None:
    """sum sent_k + R_k = sum of true updates; sum out + RG = sum of aggregates: with lost replies, too."""
    options = {"local_steps": E, "sparsity": sparsity, "ties": ties, "empty": empty, "apply": apply}
    strategy: Any = make("efl", range(N - 1), **options)
    federation, (sent, updates), aggregates = Clients(strategy, device), np.zeros((2, N, M)), np.zeros(M)
    start = before = federation.rounds.parameters
    for (steps, *_), counted in zip(table, federation.play(table), strict=True):
        for client, result in counted.items():
            packed, _, _ = decode(result.parameters, strategy.rule, before)
            sent[client] += packed
            updates[client] += federation.devices[client].update
            aggregates += E / steps[client] * strategy.roster.shares[client] * packed
        gone = np.flatnonzero(strategy.roster.departed)  # what compression held back at them is lost
        sent[gone] = updates[gone] = 0
        held = [federation.kept(client).get("residual", np.zeros(M)) for client in range(N)]
        np.testing.assert_allclose(sent + held, updates, rtol=1e-9, atol=1e-9)
        moved = strategy.weights - start.vector
        np.testing.assert_allclose(moved + strategy.residual, aggregates, rtol=1e-9, atol=1e-9)
        before = federation.rounds.parameters


@settings(max_examples=40, deadline=None)
@given(DEVICE_TABLES, st.sampled_from(["include", "exclude"]))
def test_without_compression_and_elasticity_it_is_scheme_c(table: Any, departure: str) -> None:
    own = {"efl": {"compress": False, "elasticity": 0.0}, "scheme-c": {"reboot": "off"}}
    efl, scheme = (make(k, range(N - 1), local_steps=E, departure=departure, **own[k]) for k in own)
    for _ in zip(Clients(efl, device).play(table), Clients(scheme, device).play(table), strict=True):
        np.testing.assert_allclose(scheme.weights, efl.weights, rtol=1e-12)


def task(own: dict[str, Any]) -> FitConfig:
    return FitConfig(round=1, learning_rate=0.1, batch_size=1, local_steps=E, own=own)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_ties_stay_exact(dtype: Any) -> None:
    """Entries to which all clients sent the same are equal in the sum: the lowest index is kept.

    With 37 clients of different coefficients and 999 entries, neither rounding to the weights nor the order
    in which a matrix product adds may tell them apart.
    """
    size, count = 999, 37
    rng = np.random.default_rng(0)
    start = ndarrays_to_parameters([rng.normal(size=size).astype(dtype)])
    sizes = rng.integers(1, 1000, count)
    strategy = strategies.make("efl", start, Roster(sizes), sparsity=0.1, elasticity=0.0, local_steps=7)
    rounds = Rounds(strategy)
    for number in range(3):
        before, replies = strategy.weights.copy(), []
        for client, instruction in rounds.ask(range(count)).items():
            packed = fedtide.base.contract.ternary.pack(np.full(size, rng.normal() ** 2, dtype))
            steps = int(rng.integers(1, 8))
            replies.append((client, reply(instruction, None, int(sizes[client]), [packed], steps=steps)))
        moved = np.flatnonzero(rounds.hear(*replies) != before)
        # What was not sent yet is larger, and of that the lowest indices come first.
        np.testing.assert_array_equal(moved, np.arange(99 * number, 99 * (number + 1)))
        assert strategy.report.rejected == []


# What is refused


def uploads() -> dict[str, tuple[list[Any], str]]:
    """Arrays that a client may not send in round 2, and why."""
    good = clients.rules.elastic.pack(torch.tensor([0.5, 0, 0, -0.5, 0, 0, 0, 0, 0.5])).numpy()
    magnitude = {value: good.copy() for value in (np.nan, np.inf, -1.0, 1e30)}
    for value, packed in magnitude.items():
        packed[:8] = np.array([value], "<f8").view(np.uint8)
    padding = good.copy()
    padding[9] |= 1
    ones = np.ones(M)
    return {
        "nan": ([magnitude[np.nan]], "packed update with magnitude nan"),
        "infinite": ([magnitude[np.inf]], "packed update with magnitude inf"),
        "negative": ([magnitude[-1.0]], r"packed update with magnitude -1\.0"),
        "huge": ([magnitude[1e30]], r"update of norm .*, more than 1e\+12"),
        "empty": ([good[:0]], "packed update of 0 bytes where at least 10 are expected"),
        "short": ([good[:-1]], "packed update of 10 bytes where 11 are expected"),
        "long": ([np.append(good, good[:1])], "packed update of 12 bytes where 11 are expected"),
        "padding": ([padding], "packed update of 11 bytes where 11 are expected"),
        "one-more": ([good, ones], "2 arrays where 1 or 3 are expected"),
        "three-more": ([*START, ones, ones, ones], "7 arrays where 4 or 6 are expected"),
        "fisher-shape": ([good, ones, ones[:-1]], r"an array of shape \(8,\)"),
        "fisher-type": ([good, ones, np.ones(M, int)], "type int64 after the weights"),
        "fisher-nan": ([good, ones, ones * np.nan], "numbers beside the weights are not finite"),
        "fisher-negative": ([good, -ones, ones], "negative Fisher information"),
    }


@pytest.mark.parametrize("kind", uploads())
def test_wrong_upload_is_refused_by_name(kind: str) -> None:
    sent, reason = uploads()[kind]
    ends = []
    for silent in (False, True):
        rounds = Rounds(make("efl"))
        asked = rounds.ask(range(N))
        bad = work(2, asked[2])
        bad.parameters = ndarrays_to_parameters(sent)
        rounds.hear(*((k, work(k, asked[k])) for k in (0, 1)), *([] if silent else [(2, bad)]))
        rejected = rounds.strategy.report.rejected
        assert silent or (len(rejected) == 1 and re.search(reason, rejected[0][1]))
        ends.append(rounds.strategy.state_dict())
    for key, value in ends[0].items():
        np.testing.assert_array_equal(value, ends[1][key], err_msg=key)


def test_client_with_a_diverged_update_fails() -> None:
    """A NaN would be lost among the entries that are kept, and stay in the residual."""
    config = task({"lambda": 0.0, "compress": True, "kept": 2, "ties": "exact"})
    w = torch.zeros(4)
    rule = Elastic(w, [], config, {})
    with pytest.raises(ValueError, match="update is not finite"):
        rule.finish(torch.tensor([1.0, 2.0, torch.nan, 3.0]), 1, 0.1)


# Fisher information


class Signs(torch.autograd.Function):
    """Signs with the derivative of the identity, as `torch.func` does not take them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        return outputs[0]


class Binary(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        signs: torch.Tensor = Signs.apply(super().forward(x))  # type: ignore[no-untyped-call]
        return signs


def test_fisher_of_a_model_that_cannot_be_vectorised() -> None:
    """It is computed example by example, and the model goes on in the mode in which it was."""
    layers = [torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), Binary(4, 4), torch.nn.Dropout(0.5)]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(4, 2))
    x, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 1, 0, 1])
    by_hand, expected = deepcopy(module).eval(), []
    for k in range(5):
        loss = functional.cross_entropy(by_hand(x[[k]]), labels[[k]])
        gradients = torch.autograd.grad(loss, [*by_hand.parameters()])
        expected.append(torch.cat([gradient.ravel() for gradient in gradients]).square())
    model = FlatModel(module)
    before = model.vector.clone()
    found = Loop(model).fisher(model.vector, (x, labels))
    torch.testing.assert_close(found[: model.num_trainable], torch.stack(expected).mean(0))
    assert not found[model.num_trainable :].any()
    assert torch.equal(model.vector, before)
    assert all(part.training for part in module.modules())


def test_fisher_of_a_weight_with_a_hook() -> None:
    """Only autograd calls it."""
    layer = torch.nn.Linear(3, 2)
    x, labels = torch.ones(4, 3), torch.tensor([0, 1, 1, 0])
    unhooked = FlatModel(deepcopy(layer))
    plain = Loop(unhooked).fisher(unhooked.vector, (x, labels))
    layer.weight.register_hook(lambda gradient: 3 * gradient)
    model = FlatModel(layer)
    factors = torch.tensor([9.0] * 6 + [1.0] * 2)
    torch.testing.assert_close(Loop(model).fisher(model.vector, (x, labels)), factors * plain)


def test_fisher_changes_no_weights() -> None:
    """Even where `forward` limits them, which is for training to do."""

    class Limited(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.data.clamp_(-0.1, 0.1)
            return super().forward(x)

    x, labels = torch.ones(4, 3), torch.tensor([0, 1, 1, 0])
    model = FlatModel(Limited(3, 2))
    y = torch.ones(8)
    found = Loop(model).fisher(y, (x, labels))
    assert torch.equal(y, torch.ones(8))
    torch.testing.assert_close(found, model.fisher_by_example(y, (x, labels)))
    assert torch.equal(y, torch.ones(8))


def test_fisher_is_the_mean_of_squared_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Example by example; a buffer has none; in blocks as at once; the model is as before."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    model = FlatModel(module)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(7, 3)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(2, size=7))
    before = model.vector.clone()
    got = model.fisher(model.vector, (x, labels))
    assert torch.equal(model.vector, before)
    assert module.training
    monkeypatch.setattr("clients.gradients.flat._BLOCK", 3 * len(before))
    np.testing.assert_allclose(model.fisher(before, (x, labels)), got, rtol=1e-5)
    module.eval()
    squares = torch.zeros_like(before)
    for i in range(7):
        module.zero_grad()
        functional.cross_entropy(module(x[i : i + 1]), labels[i : i + 1]).backward()
        squares[:-8] += torch.cat([p.grad.reshape(-1) for p in module.parameters()]).square() / 7
    np.testing.assert_allclose(got, squares, rtol=1e-4, atol=1e-9)
    assert not got[-8:].any()


# End to end


def test_bytes_counted_are_bytes_sent(simulate: Callable[..., Any]) -> None:
    run: dict[str, Any] = {"strategy": "efl", "num_clients": 6, "num_rounds": 4}
    run["trace"] = "bernoulli:p=0.8+lost:p=0.2"
    compressed = simulate(**run)
    size = len(compressed.weights)
    for record in compressed.rounds:
        uploads = record["bytes_up"] - record["fisher_bytes_up"]
        assert record["fisher_bytes_up"] == len(record["active"]) * 2 * 4 * size
        assert uploads == len(record["active"]) * (8 + -(-size // 8) + -(-int(0.3 * size) // 8))
    plain = simulate(**run, option=("elasticity=0",))
    assert plain.rounds[-1]["fisher_bytes_up"] == 0
    assert plain.rounds[-1]["bytes_up"] * 20 < plain.rounds[-1]["bytes_down"]


def test_flower_client_sends_the_same_bytes() -> None:
    """One packed array, then u and v; the server reads them as those of a virtual client."""
    run = Settings(strategy="efl", num_clients=4, model="logistic", trace="always", engine="inline")
    experiment = prepare(Plan.of(run))
    rounds = Rounds(experiment.strategy)
    inline = virtual_transport(experiment)
    known: dict[str, Any] = {"strategy": "efl", "num-clients": 4, "model": "logistic", "trace": "always"}
    context = Context(0, 0, {"partition-id": 2}, RecordDict(), known)
    for _ in range(2):
        instruction = rounds.ask([2])[2]
        table, _ = inline.fit(rounds.number, [(inline.proxy(2), instruction)], None)
        expected = table.result(0)
        reply = client_fn(context).fit(instruction)
        assert [a.dtype.name for a in parameters_to_ndarrays(reply.parameters)] == ["uint8", *["float32"] * 2]
        assert reply.parameters.tensors == expected.parameters.tensors
        rounds.hear((2, reply))
        assert rounds.metrics["active"] == 1
