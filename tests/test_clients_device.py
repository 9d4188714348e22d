"""Devices: what `python -m clients.device` refuses, deadlines, leaving, and a federation of real ones."""

import json
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import certifi
import numpy as np
import pytest
import torch
from flower import BIN, ROOT, flwr_run, free_ports, processes_of, wait_for_port
from flwr.app import Context, RecordDict
from flwr.common import Code, FitIns, GetPropertiesIns, ndarrays_to_parameters, parameters_to_ndarrays
from sklearn.datasets import load_digits
from waiting import PATIENCE, wait_until

from clients.app import client_fn
from clients.device import leave
from clients.device.__main__ import check, main, own_data, parse

GOOD = ["--superlink", "127.0.0.1:8000", "--client-id", "0"]


def refused(*arguments: str) -> str:
    with pytest.raises(ValueError, match=r".+") as raised:
        check(parse([*GOOD, *arguments]))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_bad_values_get_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(parse([*GOOD, "--state-dir", str(tmp_path / "made")]))
    assert (tmp_path / "made").is_dir()
    (tmp_path / "file").write_text("x")
    for address in ("lab", "lab:", ":80", "lab:http", "lab:70000"):
        assert refused("--superlink", address).startswith(f"--superlink is {address!r}; give HOST:PORT")
    assert refused("--client-id", "-1") == "--client-id is -1; give a whole number, 0 or more"
    assert "--poll is 0; give 0.05 to 3600 seconds" in refused("--poll", "0")
    assert "--state-dir" in refused("--state-dir", str(tmp_path / "file"))
    assert "must be writable" in refused("--record-trace", str(tmp_path / "no" / "log.csv"))
    assert "--key needs --root-certificates" in refused("--key", str(tmp_path / "file"))
    certificate = tmp_path / "ca.crt"
    assert "ca.crt: No such file or directory" in refused("--root-certificates", str(certificate))
    certificate.write_text("hello")
    assert "it is not a certificate in PEM format" in refused("--root-certificates", str(certificate))
    both = ["--root-certificates", certifi.where(), "--key", str(tmp_path / "file")]
    assert "Flower cannot use it; make one with ssh-keygen -t ecdsa -b 384" in refused(*both)
    assert "give it, too" in refused("--classes", "cat+dog")
    assert "--device cuda: NumPy trains on the CPU" in refused("--device", "cuda", "--numpy")
    assert refused("--device", "meta").startswith("--device meta: PyTorch cannot use it: ")
    assert main([*GOOD, "--client-id", "-1"]) == 2
    assert capsys.readouterr().err == (
        "fedtide-device: error: --client-id is -1; give a whole number, 0 or more\n"
    )


def test_closed_streams_are_open_in_what_it_starts() -> None:
    started = "import sys; sys.exit(None in (sys.stdin, sys.stdout, sys.stderr))"
    program = (
        "import subprocess, sys; from clients.device.__main__ import open_streams; open_streams(); "
        f"sys.stderr.flush(); sys.exit(subprocess.call([sys.executable, '-c', {started!r}]))"
    )
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert subprocess.call([*closed, sys.executable, "-c", started]) == 1
    assert subprocess.call([*closed, sys.executable, "-c", program], cwd=ROOT) == 0


def test_data_are_read_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder becomes a file that every message's process reads fast, and a CSV file with the first task."""
    copy = str(tmp_path / "data-client-0.npz")
    for number in (0, 1):
        (tmp_path / "own" / str(number)).mkdir(parents=True)
        np.savez(tmp_path / "own" / str(number) / "some.npz", x=np.zeros((2, 3)))
    assert own_data(parse([*GOOD, "--data", str(tmp_path / "own")]), tmp_path) == {
        "data": str(tmp_path / "own"),
        "fast-copy": copy,
    }
    with np.load(copy) as arrays:
        assert arrays["y"].tolist() == [0, 0, 1, 1]
    (tmp_path / "own.csv").write_text("a,kind\n1,dog\n2,cat\n")
    config = own_data(parse([*GOOD, "--data", str(tmp_path / "own.csv"), "--classes", "cat+dog"]), tmp_path)
    assert config == {"data": str(tmp_path / "own.csv"), "classes": "cat+dog", "fast-copy": copy}
    assert f"2 rows in {tmp_path / 'own.csv'}" in capsys.readouterr().err
    (tmp_path / "own.csv").write_text("a,kind\n1\n")
    with pytest.raises(ValueError, match="line 2: 1 values for 2 columns"):
        own_data(parse([*GOOD, "--data", str(tmp_path / "own.csv")]), tmp_path)
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 3)), y=np.zeros(2, int))
    assert own_data(parse([*GOOD, "--data", str(tmp_path / "own.npz")]), tmp_path) == {
        "data": str(tmp_path / "own.npz")
    }


NEVER = "bernoulli:p=0.001+lost:p=1"


def app_client(folder: Path, run: int = 1, trace: str = NEVER, device: str = "cpu") -> Any:
    node = {"client-id": 1, "state-dir": str(folder), "device": device}
    seen = {"num-clients": 3, "model": "logistic", "trace": trace}
    return client_fn(Context(run, 0, node, RecordDict(), seen))


def app_task(**more: Any) -> FitIns:
    weights = [np.zeros((10, 64), np.float32), np.zeros(10, np.float32)]
    scalars = {"round": 1, "local-steps": 6, "batch-size": 5, "learning-rate": 0.1, "model-arrays": 2}
    return FitIns(ndarrays_to_parameters(weights), scalars | more)


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

    kept = {"rule": "corrected-upload", "last-accepted": 0, "per-step": True}
    client = app_client(tmp_path, 2, "always+lost:p=1")
    answer = client.fit(app_task(replay=True, **kept))
    assert (answer.status.code, answer.status.message) == (Code.FIT_NOT_IMPLEMENTED, "reply lost")
    assert client.node.store.load().pending_tag == 1  # after its work

    states, client = [], app_client(tmp_path)
    for more in ({"deadline-seconds": 0.0}, {"local-steps": 1}):
        client.fit(app_task(**kept, **more))
        states.append(client.node.store.load().pending["update"])
    np.testing.assert_allclose(states[0], states[1], rtol=1e-5, atol=1e-7)


def test_pytorch_trains_where_the_node_says(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        assert app_client(tmp_path, device="cuda").fit(app_task()).metrics["steps"] == 6
    else:
        with pytest.raises((AssertionError, RuntimeError), match=r"NVIDIA|CUDA"):
            app_client(tmp_path, device="cuda").fit(app_task())


def test_a_device_leaves_when_it_is_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def departing(number: int, **more: Any) -> bool:
        return app_client(tmp_path, number).fit(app_task(**more)).metrics.get("departing", False)

    assert not departing(1)
    assert leave.main([str(tmp_path)]) == 0
    assert departing(1)
    assert departing(1)  # that reply may have been lost
    assert departing(3, run="1")  # which resumes run 1
    assert departing(2)  # another day, another run
    asked = GetPropertiesIns({})
    assert app_client(tmp_path, 1).get_properties(asked).properties == {"client-id": 1}
    assert app_client(tmp_path, 2).get_properties(asked).properties == {"departing": True}
    assert leave.main([str(tmp_path), "--undo"]) == 0
    assert app_client(tmp_path, 2).get_properties(asked).properties == {"client-id": 1}
    assert not departing(1)
    with pytest.raises(SystemExit) as ended:
        leave.main([str(tmp_path / "nowhere")])
    assert ended.value.code == 2
    assert "is not a folder; state-dir of the node config is" in capsys.readouterr().err
    (tmp_path / "leave").mkdir()  # nothing that can be read: the work still counts
    assert not departing(1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_devices_train_on_their_own_data_until_they_are_ended(flower: dict[str, str], tmp_path: Path) -> None:
    """One with PyTorch and two without, two of them resident; one is ended while it works, and departs.

    Their tables have other separators than the server's, and the columns in another order.
    """
    table = load_digits(as_frame=True).frame
    table.to_csv(tmp_path / "digits.csv", index=False)
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    connection = f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "{address}"\n'
    (Path(flower["FLWR_HOME"]) / "config.toml").write_text(connection + "insecure = true\n")
    link = ["--insecure", "--host", "127.0.0.1", "--port", str(port)]
    log = (tmp_path / "link.log").open("wb")
    subprocess.Popen([BIN / "flower-superlink", *link], cwd=tmp_path, env=flower, stdout=log, stderr=log)
    wait_for_port(port)
    devices, marks = [], []
    kinds = (["--resident", "--device", "cpu"], ["--numpy", "--resident", "--grace", "300"], ["--numpy"])
    for k, kind in enumerate(kinds):
        state = tmp_path / f"state-{k}"
        table.iloc[k::3, ::-1].to_csv(tmp_path / f"{k}.csv", sep=",;\t"[k], index=False)
        options = ["--client-id", str(k), "--state-dir", str(state), "--data", str(tmp_path / f"{k}.csv")]
        options += ["--superlink", address, "--record-trace", str(state), *kind]
        marks.append(f"DEVICE={k}-{tmp_path}")
        name, _, value = marks[-1].partition("=")
        with (tmp_path / f"{k}.log").open("wb") as output:
            command = [sys.executable, "-m", "clients.device", *options]
            env = {**flower, name: value}
            devices.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output))
    settings = {"strategy": "feddyn", "model": "logistic", "num-clients": 3, "num-rounds": 3, "min-nodes": 3}
    settings |= {"local-steps": 2000, "learning-rate": 0.1, "run-dir": str(tmp_path / "runs")}
    settings["task"] = f"csv:file={tmp_path / 'digits.csv'},target=target"
    settings |= {"round-deadline": 60.0, "connect-timeout": 240.0, "cohort": "stacked"}

    def has_the_task_of_round_2() -> bool:
        log = (tmp_path / "1.log").read_text()
        return bool(re.search(r"ROUND 2\]\s.*?Receiving", log, re.DOTALL))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(flwr_run, flower, settings, "lab", app=ROOT, patience=550)
        wait_until(has_the_task_of_round_2, devices[1])
        devices[1].send_signal(signal.SIGTERM)
        assert devices[1].wait(PATIENCE) == 0
        assert not [pid for pid in processes_of(Path(flower["FLWR_HOME"])) if has(pid, marks[1])]
        printed = running.result()
    (metrics,) = (tmp_path / "runs").glob("*/metrics.jsonl")
    start, *rounds = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert len(rounds) == 3, printed
    first, second, last = rounds
    assert first["active"] == second["active"] == [0, 1, 2]
    assert first["steps"] == [2000] * 3
    assert 1 <= second["steps"][1] < 2000  # what it had done by then
    events = [{"event": "departure", "client": 1}, {"event": "farewell", "client": 1, "received": True}]
    happened = [event for record in rounds for event in record["events"]]
    assert [{key: event.get(key) for key in e} for e, event in zip(events, happened, strict=True)] == events
    assert last["active"] == [0, 2]
    assert last["loss"] < 0.5 * start["loss"]
    for k in (0, 1, 2):
        (memory,) = (tmp_path / f"state-{k}").glob("run-*-client-*.safetensors")
        assert memory.stat().st_size > 0
        notes = (tmp_path / f"state-{k}" / f"client-{k}.csv").read_text()
        assert len(re.findall(r"steps in", notes)) == (2 if k == 1 else 3)
    for device in (devices[0], devices[2]):
        device.send_signal(signal.SIGTERM)
    assert [device.wait(PATIENCE) for device in devices] == [0, 0, 0]
    assert not [pid for pid in processes_of(Path(flower["FLWR_HOME"])) if any(has(pid, m) for m in marks)]
    assert "insecure: no --root-certificates" in (tmp_path / "0.log").read_text()


def has(pid: int, variable: str) -> bool:
    try:
        return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
