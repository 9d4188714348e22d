"""Which clients are asked, and what for."""

from typing import Any

import numpy as np
import pytest
from fakes import SIZES, START, M, N, Rounds, reply
from flwr.common import ndarrays_to_parameters

import strategies
from strategies import Replies, Roster, Task
from strategies.fedbuff import FedBuff


class OwnWork(FedBuff):
    """Asks client k for k + 1 steps, and notes what a method may know of a round."""

    def setup(self) -> None:
        super().setup()
        self.seen: list[list[int]] = []

    def observe(self, available: Any) -> None:
        self.seen.append(available.tolist())

    def task(self, client: int) -> Task:
        return Task(local_steps=client + 1)

    def update(self, replies: Replies) -> None:
        self.heard = replies
        super().update(replies)


@pytest.mark.parametrize("amount", [{"local_steps": 9}, {"local_epochs": 2}])
def test_each_client_has_its_own_work(amount: dict[str, int]) -> None:
    """More steps than it was asked for are impossible; fewer are incomplete."""
    start = ndarrays_to_parameters(START)
    rounds = Rounds(strategies.make(OwnWork, start, Roster(SIZES), clients_per_round=4, **amount))
    strategy: Any = rounds.strategy
    asked = rounds.ask(range(N))
    assert strategy.seen == [[*range(N)]]  # not only those selected
    assert {c: (i.config["local-steps"], i.config.get("local-epochs", 0)) for c, i in asked.items()} == {
        c: (c + 1, 0) for c in asked
    }
    first, second, *_, last = asked
    told = {second: {"steps": 1}, last: {"steps": last + 2}}
    rounds.hear(*((c, reply(i, np.ones(M), **told.get(c, {}))) for c, i in reversed(asked.items())))
    assert strategy.report.rejected == [(str(last), f"impossible number of steps {last + 2} of {last + 1}")]
    counted = [client for client in asked if client != last]
    assert strategy.heard.planned.tolist() == [client + 1 for client in counted]
    assert strategy.heard.steps[:2].tolist() == [first + 1, 1]
    assert strategy.heard.order.tolist() == [3, 2, 1]  # of arrival
    assert [sent.local_steps for sent in strategy.heard.sent] == strategy.heard.planned.tolist()
