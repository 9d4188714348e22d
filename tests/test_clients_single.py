"""A client with its own model: the example of its documentation, and what it sends and stores."""

import textwrap
from pathlib import Path
from typing import Any

import flwr.client
import numpy as np
import pytest
import torch
from devices import BY_RULE
from fakes import SIZES, M, N, Rounds, make
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters, parameters_to_ndarrays

from clients import single
from clients.memory.handshake import Memory
from clients.memory.stores import FileStore

OPTIONS = {"efl": {"elasticity": 0.0}}  # the example computes no Fisher information


def example() -> Any:
    """The class in the documentation of `clients.single`."""
    _, _, rest = str(single.__doc__).partition("least-squares problem:\n\n")
    code, end, _ = rest.partition("\n\nIts `store`")
    assert end
    names: dict[str, Any] = {"flwr": flwr, "single": single, "torch": torch}
    exec(textwrap.dedent(code), names)
    return names["LeastSquares"]


@pytest.mark.parametrize(("name", "options"), BY_RULE, ids=str)
def test_the_example_trains_with_every_rule(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    solution = torch.randn(M, generator=generator, dtype=torch.float64)
    clients = []
    for client in range(N):
        x = torch.randn((int(SIZES[client]), M), generator=generator, dtype=torch.float64)
        clients.append(example()(x, x @ solution, FileStore(tmp_path, 1, client)))
    rounds = Rounds(make(name, learning_rate=0.05, **options, **OPTIONS.get(name, {})))
    start = np.linalg.norm(rounds.strategy.weights - solution.numpy())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for _ in range(15):
            asked = rounds.ask(range(N))
            end = rounds.hear(*((client, clients[client].fit(ins)) for client, ins in asked.items()))
            assert rounds.strategy.report.rejected == []
    assert np.linalg.norm(end - solution.numpy()) < 0.7 * start


# One client with one weight, whose loss is (y - 1)^2 / 2

PLAIN: dict[str, Any] = {"round": 1, "learning-rate": 0.1, "batch-size": 1, "local-steps": 5}
APFL: dict[str, Any] = {
    **{**PLAIN, "local-steps": 1, "rule": "apfl"},
    **{"alpha": 0.5, "alpha-mode": "fixed", "gradient": "chain-rule"},
}


def gradient(y: torch.Tensor) -> torch.Tensor:
    return y - 1


def task(config: dict[str, Any], weight: float = 0.0, kind: Any = FitIns) -> Any:
    return kind(ndarrays_to_parameters([np.array([[weight]])]), config)


def test_it_does_the_steps_that_it_has_time_for() -> None:
    """From 0, y = 1 - 0.9^s after s steps. A memory of another method does not count."""
    for steps, done in ((None, 5), (5, 5), (9, 5), (2, 2)):
        reply, memory = single.fit(task(PLAIN), gradient, 7, Memory({"v": np.ones(1)}, 3), steps=steps)
        assert reply.metrics == {"round": 1, "rule": "sgd", "steps": done}
        assert reply.num_examples == 7
        assert memory is None
        (sent,) = parameters_to_ndarrays(reply.parameters)
        np.testing.assert_allclose(sent, [[1 - 0.9**done]])
    for seconds, done in ((0.0, 1), (1e6, 5)):
        reply, _ = single.fit(task({**PLAIN, "deadline-seconds": seconds}), gradient, 7)
        assert reply.metrics["steps"] == done
        assert reply.metrics["seconds"] > 0
        np.testing.assert_allclose(parameters_to_ndarrays(reply.parameters)[0], [[1 - 0.9**done]])
    for steps in (0, -1):
        with pytest.raises(ValueError, match=f"^{steps} local steps; a client that does none has no reply"):
            single.fit(task(PLAIN), gradient, 7, steps=steps)


def test_a_personal_model_depends_on_whether_the_reply_was_accepted() -> None:
    """APFL: both models start at 0 with gradient -1, so v = 0.1 * 0.5 = 0.05 after the first step.

    In round 2 the global weight is 0.2, and the personal one 0.5 * 0.05 + 0.5 * 0.2 = 0.125.
    """
    _, memory = single.fit(task({**APFL, "last-accepted": 0}), gradient, 7)

    def personal(last_accepted: int, memory: Memory | None) -> float:
        config = {**APFL, "round": 2, "last-accepted": last_accepted}
        (weight,) = single.personal_weights(task(config, 0.2, EvaluateIns), memory)
        assert weight.shape == (1, 1)
        return float(weight[0, 0])

    assert personal(1, memory) == pytest.approx(0.125)
    assert personal(0, memory) == 0.2  # the reply was lost
    assert personal(0, None) == 0.2
    assert single.personal_weights(task(PLAIN, 0.2, EvaluateIns)) == [np.array([[0.2]])]  # of no method


def test_a_farewell_sends_the_state_without_training() -> None:
    def fail(y: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no gradient is needed")

    memory = Memory({"update": np.array([3.0])}, 1)
    config = {**PLAIN, "round": 2, "rule": "corrected-upload", "last-accepted": 1, "farewell": True}
    reply, kept = single.fit(task(config), fail, 7, memory)
    assert parameters_to_ndarrays(reply.parameters) == [np.array([3.0])]
    assert reply.metrics == {"round": 2, "rule": "corrected-upload"}
    assert kept is memory


def test_efl_says_what_to_do_without_fisher_information() -> None:
    config = Rounds(make("efl")).ask([0])[0]
    with pytest.raises(
        ValueError, match="cannot compute Fisher information; set the method's elasticity to 0"
    ):
        single.fit(config, gradient, 7)
