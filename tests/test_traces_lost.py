"""Lost replies in the engine, and at a client under `flwr run`."""

import numpy as np
from flwr.common import Code, FitIns, ndarrays_to_parameters

from clients.device.node import Node
from clients.memory.stores import FileStore
from clients.torch_client import TorchClient, environment
from fedtide.config import Settings
from fedtide.federation import Federation


def test_a_lost_reply_is_a_named_failure(simulate):
    """Clients that drop out have none to lose."""
    played = simulate(trace="pools+lost:p=0.4", num_clients=20, num_rounds=6)
    trace = Federation.of(played.experiment.settings).trace
    for t, record in enumerate(played.rounds, start=1):
        dropped, lost = trace.round(t).completion == 0, trace.lost(t)
        why = np.where(dropped, "dropped in mid-round", np.where(lost, "reply lost", "")).tolist()
        assert record["failed"] == {str(client): reason for client, reason in enumerate(why) if reason}
        assert record["active"] == np.flatnonzero(~dropped & ~lost).tolist()
    reasons = {reason for record in played.rounds for reason in record["failed"].values()}
    assert reasons == {"dropped in mid-round", "reply lost"}
    all_lost = simulate(trace="always+lost:p=1")
    np.testing.assert_array_equal(all_lost.weights, all_lost.experiment.initial.vector)


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
