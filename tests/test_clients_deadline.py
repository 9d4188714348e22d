"""Clients stop in time for the deadline of their task, and leave when they are asked to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from test_clients_cohort import by_client, config, fit
from test_clients_numpy import CONFIG, START
from test_clients_numpy import make as numpy_client
from test_clients_numpy import task as numpy_task
from test_clients_single import PLAIN, gradient, task

from clients import single, training
from clients.app import client_fn
from clients.device import leave
from clients.simulated.jobs import Job

SEEN: dict[str, Any] = {"num-clients": 3, "model": "logistic", "trace": "bernoulli:p=0.001+lost:p=1"}


class Steps:
    """A clock that shows how often it was read: before the first step, and after every one."""

    def __init__(self) -> None:
        self.shown = 0

    def monotonic(self) -> int:
        self.shown += 1
        return self.shown


@pytest.mark.parametrize(("model", "oracle"), [("mlp", "stacked"), ("cnn", "chain"), ("tanh", "vmap")])
def test_a_client_that_runs_out_of_time_did_the_first_of_its_steps(
    monkeypatch: pytest.MonkeyPatch, model: str, oracle: str
) -> None:
    shares = {0: 1, 1: 0.3, 2: 0.6, 3: 1, 4: 1, 5: 0.15}  # 7, 2, 4, 7, 7 and 1 steps; there is time for 4
    done = {0: 4, 1: 2, 2: 4, 3: 4, 4: 4, 5: 1}
    for k, share in shares.items():
        expected, metrics = by_client(fit(model, [Job(k, [], config(), min(share, 0.6))], oracle, 1))
        monkeypatch.setattr(training, "time", Steps())
        vectors, reported = by_client(fit(model, [Job(k, [], config(), share, until=5)], oracle, 1))
        assert reported[0]["steps"] == done[k]
        np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-6)
        assert reported[0] == pytest.approx(metrics[0], rel=1e-5)


def app_client(folder: Path, run: int = 1) -> Any:
    node = {"client-id": 1, "state-dir": str(folder)}
    return client_fn(Context(run, 0, node, RecordDict(), SEEN))


def app_task(**more: Any) -> FitIns:
    scalars: dict[str, Any] = {"round": 1, "local-steps": 6, "batch-size": 5, "learning-rate": 0.1, **more}
    return FitIns(ndarrays_to_parameters(START), {**scalars, "model-arrays": 2})


def test_our_client_does_all_that_it_has_time_for_unless_it_replays_a_trace(tmp_path: Path) -> None:
    """It is never online in this trace, and its replies are lost.

    MimiC's memory is of the steps that were done: the mean gradient of one, as if asked for one.
    """
    client = app_client(tmp_path)
    free, cut, long = (
        client.fit(app_task(**more)) for more in ({}, {"deadline-seconds": 0.0}, {"deadline-seconds": 1e6})
    )
    assert [reply.metrics["steps"] for reply in (free, cut, long)] == [6, 1, 6]
    assert ["seconds" in reply.metrics for reply in (free, cut, long)] == [False, True, True]
    one, expected = (parameters_to_ndarrays(r.parameters) for r in (long, free))
    np.testing.assert_allclose(one[0], expected[0], rtol=1e-5, atol=1e-7)
    assert client.fit(app_task(replay=True)).status.message == "dropped in mid-round"

    states = []
    for more in ({"deadline-seconds": 0.0}, {"local-steps": 1}):
        more |= {"rule": "corrected-upload", "last-accepted": 0, "per-step": True}
        client.fit(app_task(**more))
        states.append(client.node.store.load().pending["update"])
    np.testing.assert_allclose(states[0], states[1], rtol=1e-5, atol=1e-7)


def test_other_clients_stop_in_time() -> None:
    client = numpy_client()
    reported = client.fit(numpy_task({**CONFIG, "deadline-seconds": 0.0})).metrics
    assert reported["steps"] == 1
    assert reported["seconds"] > 0
    assert client.fit(numpy_task({**CONFIG, "deadline-seconds": 1e6})).metrics["steps"] == 5
    for seconds, steps in ((0.0, 1), (1e6, 5)):
        reply, _ = single.fit(task({**PLAIN, "deadline-seconds": seconds}), gradient, 7)
        assert reply.metrics["steps"] == steps
        assert reply.metrics["seconds"] > 0
        torch.testing.assert_close(parameters_to_ndarrays(reply.parameters)[0], np.array([[1 - 0.9**steps]]))


def test_a_device_leaves_when_it_is_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def departing(number: int, **more: Any) -> bool:
        return app_client(tmp_path, number).fit(app_task(**more)).metrics.get("departing", False)

    assert not departing(1)
    assert leave.main([str(tmp_path)]) == 0
    assert departing(1)
    assert departing(1)  # that reply may have been lost
    assert not departing(2)  # another day, another run
    assert departing(3, run="1")  # which resumes run 1
    assert leave.main([str(tmp_path), "--undo"]) == 0
    assert not departing(1)
    with pytest.raises(SystemExit) as ended:
        leave.main([str(tmp_path / "nowhere")])
    assert ended.value.code == 2
    assert "is not a folder; state-dir of the node config is" in capsys.readouterr().err
    (tmp_path / "leave").mkdir()  # nothing that can be read: the work still counts
    assert not departing(1)
