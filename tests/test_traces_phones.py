"""All of FedScale's phones: downloaded and checked, with their capacities; and strata by availability."""

import hashlib
import pickle
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from test_engine_run_folder import no_file_above
from test_traces_files import phone

import sim
from fedtide.base.errors import SettingsError
from traces import TRACES
from traces.recorded import fedscale
from traces.sessions import Online

# Phone d is online for the first 100 d seconds of 1000; phone 0 is never.
PHONES = {d: phone([0] * (d > 0), [100 * d] * (d > 0)) for d in range(10)}
CAPACITIES = {
    d: {"computation": np.float64(10 + d), "communication": np.float64(8 * d + 8)} for d in range(30)
}


class Handler(BaseHTTPRequestHandler):
    """Serves the files of its server; the connection breaks after the first `sent` bytes of each."""

    def do_GET(self) -> None:
        content = self.server.files[self.path.rpartition("/")[2]]  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.sent])  # type: ignore[attr-defined]

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A server of files like FedScale's."""
    contents = (pickle.dumps(data, 3) for data in (PHONES, CAPACITIES))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files = dict(zip(fedscale.SHA256, contents, strict=True))  # type: ignore[attr-defined]
        server.sent = None  # type: ignore[attr-defined]
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in server.files.items()}  # type: ignore[attr-defined]
        monkeypatch.setattr(fedscale, "SHA256", digests)
        monkeypatch.setattr(fedscale, "URL", f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_all_phones_have_their_capacities(server, tmp_path, capfd):
    command = ["--show-trace=phones:all", "--num-clients=10", "--num-rounds=2", f"--run-dir={tmp_path}"]
    assert sim.main([*command, f"--data-dir={tmp_path}"]) == 0
    assert capfd.readouterr().err.count("downloading ") == 2
    server.files = {}  # they are there now
    trace = TRACES["phones"](10, 0, source="all", data_dir=str(tmp_path), upload_bytes=1000.0)
    log, device = trace.read()
    assert sorted(device) == [*range(10)]
    assert log.online.tolist() == pytest.approx([d / 10 for d in range(10)])
    speed, seconds = trace.rates(1, Online(np.arange(9), np.arange(9), np.zeros(9)))  # phones 1 to 9
    assert speed == pytest.approx([1000 / (30 * (10 + d)) for d in range(1, 10)])
    assert seconds == pytest.approx([1 / (d + 1) for d in range(1, 10)])


def refusal(folder: Path) -> str:
    with pytest.raises(SettingsError) as raised:
        TRACES["phones"](2, 0, source="all", data_dir=str(folder))
    assert str(raised.value).startswith(f"trace phones: cannot read the phones of FedScale from '{folder}")
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


def test_only_fedscales_files_are_read_and_only_whole(server, tmp_path):
    server.sent = 100
    assert "the connection broke after 100 of" in refusal(tmp_path)
    server.sent = None
    with no_file_above(100):
        assert "File too large" in refusal(tmp_path)
    name = next(iter(server.files))
    right, server.files[name] = server.files[name], b"other"
    assert "is another file than expected" in refusal(tmp_path)
    assert [*(tmp_path / "fedscale").iterdir()] == []
    (tmp_path / "fedscale" / name).write_bytes(b"other")
    server.files[name] = right
    assert f"{name} is not FedScale's, remove it" in refusal(tmp_path)
    del server.files[name]
    (tmp_path / "fedscale" / name).unlink()
    assert "put client_behave_trace and client_device_capacity of https://" in refusal(tmp_path)
    with pytest.raises(SettingsError, match="all are FedScale's own"):
        TRACES["phones"](2, 0, source="all", file="phones.json")


@pytest.mark.parametrize(
    ("stratum", "devices"), [("most", {7, 8, 9}), ("median", {4, 5, 6}), ("rarest", {1, 2, 3})]
)
def test_strata_are_of_those_ever_online(write, stratum, devices):
    shuffled = {d: PHONES[d] for d in np.random.default_rng(0).permutation(10).tolist()}
    path = write(pickle.dumps(shuffled))
    orders = set()
    for seed in range(8):
        log, device = TRACES["phones"](3, seed, file=path, stratum=stratum).read()
        assert {round(10 * share) for share in log.online[device]} == devices
        orders.add(tuple(device))
    assert len(orders) > 1
    assert len(TRACES["phones"](9, 0, file=path, stratum=stratum).read()[1]) == 9
    with pytest.raises(SettingsError, match="10 clients for 9 devices that are ever online"):
        TRACES["phones"](10, 0, file=path, stratum=stratum)
    named = write(pickle.dumps({f"phone {d}": PHONES[d] for d in PHONES}), "named")
    with pytest.raises(SettingsError, match="but devices are the clients of the same names"):
        TRACES["phones"](2, 0, file=named, stratum=stratum, client_names=["phone 1", "phone 2"])
