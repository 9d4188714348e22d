"""Lost replies in the engine, and at a client under `flwr run`."""

import numpy as np
from flwr.common import Code, FitIns, ndarrays_to_parameters

from clients.device.node import Node
from clients.memory.stores import FileStore
from clients.torch_client import TorchClient, environment
from fedtide.config import Settings
from fedtide.federation import Federation


def test_a_lost_reply_is_a_named_failure(simulate):
    played = simulate(trace="always+lost:p=0.4", num_rounds=6)
    trace = Federation.of(played.experiment.settings).trace
    for t, record in enumerate(played.rounds, start=1):
        lost = np.flatnonzero(trace.lost(t)).tolist()
        assert record["failed"] == {str(client): "reply lost" for client in lost}
        assert record["active"] == sorted(set(range(6)) - set(lost))
    assert any(record["failed"] for record in played.rounds)


def test_clients_that_drop_out_have_no_reply_to_lose(simulate):
    played = simulate(trace="pools+lost:p=1", num_clients=20, num_rounds=6)
    reasons = [reason for record in played.rounds for reason in record["failed"].values()]
    assert set(reasons) == {"dropped in mid-round", "reply lost"}
    assert len(reasons) == 20 * 6
    np.testing.assert_array_equal(played.weights, played.experiment.initial.vector)


def test_a_client_loses_its_reply_after_its_work(monkeypatch, tmp_path):
    settings = Settings(trace="always+lost:p=1", num_clients=4, model="logistic")
    client = TorchClient(settings, Node(2, FileStore(tmp_path, 1, 2)))
    clients, _ = environment(client.settings)
    weights = np.zeros(clients.model.vector.numel(), np.float32)
    trained = []
    fit = clients.fit
    monkeypatch.setattr(clients, "fit", lambda *args: trained.append(1) or fit(*args))
    config = {"round": 1, "model-arrays": 1, "local-steps": 2, "batch-size": 5, "learning-rate": 0.1}
    config["replay"] = True
    answer = client.fit(FitIns(ndarrays_to_parameters([weights]), config))
    assert (answer.status.code, answer.status.message) == (Code.FIT_NOT_IMPLEMENTED, "reply lost")
    assert trained
