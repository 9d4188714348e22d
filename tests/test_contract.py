"""What every strategy has to keep to; a new one joins by being in `strategies.STRATEGIES`.

Sequential SGD, which has no clients, is in test_strategies_sequential.py.
Replies that do not count are in test_strategies_rejections.py, options in test_strategies_options.py,
resuming in test_strategies_state.py.
What a method deliberately does otherwise is named here, beside the promise that it does not make.
"""

from typing import Any

import numpy as np
import pytest
from fakes import AT_ONCE, FEDERATED, SIZES, N, Rounds, delta, make, play, work

import strategies
from fedtide.testing.contract import PROMISES, changed_weights, contract, maker

# Differ from FedAvg even where all clients finish all of their steps; FOCUS, as these steps are corrected.
NOT_FEDAVG = {"efl", "fedacg", "fedasync", "feddyn", "fedexp", "focus"}
# Count all clients alike, not by their shares p_k.
UNIFORM = {"apfl", "fedawe", "fedbuff", "fedgate", "mifa", "mimic", "pfedme", "vrl-sgd"}
UNIFORM |= {"scaffold", "amplified-scaffold"}

three_methods = pytest.mark.parametrize("name", ["mifa", "feddyn", "efl"])  # of what the base decides


@pytest.mark.parametrize("name", sorted(set(FEDERATED) - NOT_FEDAVG))
def test_full_participation_is_fedavg(name: str) -> None:
    """w + sum_k p_k delta_k with p_k = n_k / n, or 1 / N."""
    rounds = Rounds(make(name, local_steps=1))
    expected = rounds.strategy.weights.copy()
    shares = np.full(N, 1 / N) if name in UNIFORM else SIZES / SIZES.sum()
    for number in (1, 2):
        expected += sum(p * delta(k, number) for k, p in enumerate(shares))
        np.testing.assert_allclose(play(rounds), expected, rtol=1e-12)


NOT_PROMISED = {
    "any order": {"fedasync"},  # takes one reply after the other
    "selection by seed": {"fedlaavg", "f3ast"},  # choose clients by something else
    "changed weights": {"fedawe"},  # exactly: clients start from models of their own
}
KEPT = [
    (name, promise) for promise in PROMISES for name in FEDERATED if name not in NOT_PROMISED.get(promise, ())
]


@pytest.mark.parametrize(("name", "promise"), KEPT)
def test_a_method_keeps_its_promises(name: str, promise: str) -> None:
    PROMISES[promise](maker(name, **AT_ONCE.get(name, {})))


def test_a_change_of_the_weights_reaches_each_clients_own_start() -> None:
    changed_weights(maker("fedawe"), rounding=1e-12)


class Forgets(strategies.FlexibleStrategy):
    """Keeps the mean of the last updates, which no checkpoint has."""

    def setup(self) -> None:
        self.last = np.zeros(self.layout.size)

    def update(self, replies: strategies.Replies) -> None:
        mean = replies.weighted_sum(replies.mean_coefficients("n"))
        self.weights += mean + self.last
        self.last = mean


def test_the_contract_names_the_promise_that_a_method_breaks() -> None:
    contract(type("Remembers", (Forgets,), {"saved": ("last",)}))
    with pytest.raises(AssertionError, match="not equal") as broken:
        contract(Forgets)
    assert broken.value.__notes__ == ["the contract of Forgets: resuming"]
    contract(Forgets, skip=["resuming"])


@three_methods
@pytest.mark.parametrize(("metrics", "gone"), [({"steps": 0}, True), ({"round": 1}, False)])
def test_goodbye_without_work(name: str, metrics: dict[str, Any], gone: bool) -> None:
    """Nothing to hand in is no reason to stay; a late goodbye may be from before an arrival."""
    rounds = Rounds(make(name))
    play(rounds)
    asked = rounds.ask(range(N))
    rounds.hear((1, work(1, asked[1], departing=True, **metrics)))
    asked_to_train = [k for k, i in rounds.ask(range(N)).items() if not i.config.get("farewell")]
    assert (1 in asked_to_train) is not gone


@three_methods
def test_local_epochs_plan_the_steps(name: str) -> None:
    """2 epochs of 10 examples in batches of 8 are 4 steps, of 20 are 6: one more is impossible."""
    rounds = Rounds(make(name, local_epochs=2, batch_size=8))
    asked = rounds.ask([0, 1])
    assert asked[0].config["local-epochs"] == 2
    assert "local-steps" not in asked[0].config
    rounds.hear((0, work(0, asked[0], steps=5)), (1, work(1, asked[1], steps=6)))
    assert rounds.strategy.report.rejected == [("0", "impossible number of steps 5 of 4")]
