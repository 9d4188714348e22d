"""A client's memory: in Flower's Context, in files, beyond a limit of RAM, and in a Flower client."""

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from flwr.app import Context, RecordDict
from flwr.common import Code, EvaluateIns, FitIns, ndarrays_to_parameters, serde
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from test_engine_run_folder import no_file_above

from clients.app import client_fn
from clients.memory.handshake import Memory
from clients.memory.spill import Memories, Spilled
from clients.memory.stores import ContextStore, FileStore, from_bytes, to_bytes
from clients.simulated.virtual import VirtualClients

ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STATES = st.dictionaries(NAMES, ARRAYS, max_size=4)
MEMORIES = st.builds(Memory, STATES, st.integers(0, 10**9), st.none() | STATES, st.integers(0, 10**9))


def assert_same_memory(got: Memory | None, expected: Memory) -> None:
    assert got is not None
    assert (got.tag, got.pending_tag) == (expected.tag, expected.pending_tag)
    assert (got.pending is None) == (expected.pending is None)
    for one, other in ((got.committed, expected.committed), (got.pending or {}, expected.pending or {})):
        assert [*one] == [*other]
        for key, array in other.items():
            assert (one[key].dtype, one[key].shape) == (array.dtype, array.shape)
            assert one[key].tobytes() == array.tobytes()


SETTINGS: dict[str, Any] = {"model": "logistic", "num_clients": 6, "local_steps": 3, "trace": "always"}
START = [np.zeros((10, 64), np.float32), np.zeros(10, np.float32)]


def context(run: int = 7, client: int = 2, settings: dict[str, Any] = SETTINGS, **node: Any) -> Context:
    config = {key.replace("_", "-"): value for key, value in settings.items()}
    return Context(run, 1, {"partition-id": client, **node}, RecordDict(), config)


@pytest.mark.parametrize("kind", ["context", "file"])
@settings(max_examples=60)
@given(memory=MEMORIES, other=MEMORIES)
def test_a_memory_is_loaded_as_it_was_saved(kind: str, tmp_path: Path, memory: Memory, other: Memory) -> None:
    """Whatever the names and shapes, from another object, and the newest one only."""
    node = context()
    for saved in (other, memory):
        (FileStore(tmp_path, 7, 2) if kind == "file" else ContextStore(node)).save(saved)
    if kind == "context":  # as Flower sends it from process to process
        node = serde.context_from_proto(serde.context_to_proto(node))
    assert_same_memory((FileStore(tmp_path, 7, 2) if kind == "file" else ContextStore(node)).load(), memory)
    if kind == "file":
        assert os.listdir(tmp_path) == ["run-7-client-2.safetensors"]


HUGE = b'{"x": {"dtype": "F64", "shape": [1000000000000], "data_offsets": [0, 8000000000000]}}'
BROKEN: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "something else": lambda path: safetensors.numpy.save_file({"x": np.zeros(3)}, path),
    "an impossible array": lambda path: path.write_bytes(len(HUGE).to_bytes(8, "little") + HUGE),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_no_memory(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FileStore(tmp_path, 7, 2)
    store.save(Memory({"v": np.ones(3)}, 1, {"v": np.zeros(3)}, 2))
    BROKEN[kind](store.path)
    with caplog.at_level(logging.WARNING):
        assert store.load() is None
    assert f"{store.path} is not a client memory" in caplog.text
    assert os.listdir(tmp_path) == [f"{store.path.name}.bad"]
    store.save(Memory({}, 3))
    caplog.clear()
    assert store.load() is not None
    assert caplog.text == ""  # said once


@given(st.binary(max_size=60), MEMORIES, st.data())
def test_other_bytes_are_no_memory(noise: bytes, memory: Memory, data: st.DataObject) -> None:
    """Whatever is cut off, added or replaced."""
    content = to_bytes(memory)
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    changed = content[:first] + noise + content[last:]
    if changed != content:
        with pytest.raises(ValueError, match=r"^it"):
            from_bytes(changed)


def test_kills_leave_one_temporary_file_at_most(tmp_path: Path) -> None:
    """And the memory is the old one or the new one."""
    program = """
import sys
import numpy as np
from clients.memory.handshake import Memory
from clients.memory.stores import FileStore
store = FileStore(sys.argv[1], 7, 2)
for tag in range(10**9):
    store.save(Memory({"v": np.full(300_000, float(tag))}, tag))
    print(tag, flush=True)
"""
    command = [sys.executable, "-c", program, tmp_path]
    for saved in (1, 3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as process:
            assert process.stdout is not None
            for _ in range(saved):
                process.stdout.readline()
            process.kill()
        memory = FileStore(tmp_path, 7, 2).load()
        assert memory is not None
        assert (memory.committed["v"] == memory.tag).all()
    assert len(os.listdir(tmp_path)) <= 2


def test_files_of_old_runs_are_removed(tmp_path: Path) -> None:
    """All but the newest few that are not too old, and none of another client."""
    now = time.time()
    ages = {1: 9, 2: 8, 3: 7, 4: 2, 5: 3, 6: 40, 7: 1}  # run -> days
    for run, days in ages.items():
        for name in (f"run-{run}-client-2.safetensors", f"run-{run}-client-12.safetensors"):
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (now - days * 86400,) * 2)
    for name in ("run-1-client-2.npz", ".run-1-client-2.safetensors.tmp", "run-1-client-2.safetensors.bad"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - 50 * 86400,) * 2)
    for tag in (1, 2):
        FileStore(tmp_path, 8, 2).save(Memory({}, tag))
    left = [f"run-{run}-client-2.safetensors" for run in (3, 4, 5, 7, 8)]
    others = [f"run-{run}-client-12.safetensors" for run in ages]
    assert sorted(os.listdir(tmp_path)) == sorted(left + others)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "state", Path("/proc/state")):
        store = FileStore(folder, 7, 2)
        assert store.load() is None
        with pytest.raises(OSError, match=rf"{folder} \(state-dir\): .*; it must be a folder with free"):
            store.save(Memory({}, 1))


def test_a_full_disk_leaves_the_old_memory(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 7, 2)
    store.save(Memory({}, 1))
    with no_file_above(0), pytest.raises(OSError, match="it must be a folder with free space"):
        store.save(Memory({}, 2))
    loaded = store.load()
    assert loaded is not None
    assert loaded.tag == 1
    assert os.listdir(tmp_path) == [store.path.name]


# The Flower client


class Device:
    """Client 2 of a run: a new client object handles each message, as if in a new process."""

    run = ""

    def __init__(self, state_dir: Path | None) -> None:
        self.node = {} if state_dir is None else {"state-dir": str(state_dir)}
        self.context = context(**self.node)
        self.parameters = ndarrays_to_parameters(START)

    def config(self, number: int, accepted: int) -> dict[str, Any]:
        return {
            **{"round": number, "last-accepted": accepted, "model-arrays": 2, "rule": "apfl"},
            **{"local-steps": 3, "batch-size": 5, "learning-rate": 0.1},
            **{"alpha": 0.5, "alpha-mode": "step", "gradient": "chain-rule"},
            **({"run": self.run} if self.run else {}),
        }

    def fit(self, number: int, accepted: int) -> bool:
        """Train; whether the client has lost its memory."""
        reply = client_fn(self.context).fit(FitIns(self.parameters, self.config(number, accepted)))
        assert reply.status.code == Code.OK, reply.status.message
        return bool(reply.metrics.get("resync", False))

    def loss(self, number: int, accepted: int) -> float:
        instruction = EvaluateIns(self.parameters, self.config(number, accepted))
        result = client_fn(self.context).evaluate(instruction)
        assert result.status.code == Code.OK
        return result.loss


@pytest.fixture(params=["context", "file"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Device:
    return Device(tmp_path if request.param == "file" else None)


def test_a_client_keeps_the_state_that_was_accepted(device: Device) -> None:
    """A lost reply changes nothing."""
    start = device.loss(0, accepted=0)
    assert not device.fit(1, accepted=0)
    after_one = device.loss(1, accepted=1)
    for number in (2, 3):  # the replies are lost
        assert not device.fit(number, accepted=1)
        assert device.loss(number, accepted=1) == after_one
    assert not device.fit(4, accepted=1)
    assert device.loss(4, accepted=4) < after_one < start


def test_a_client_that_was_reinstalled_reports_it(device: Device, tmp_path: Path) -> None:
    start = device.loss(0, accepted=0)
    device.fit(1, accepted=0)
    device.context = context(**device.node)
    for file in tmp_path.iterdir():
        file.unlink()
    assert device.loss(1, accepted=1) == start
    assert device.fit(2, accepted=1)
    assert not device.fit(3, accepted=2)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_device_with_a_folder_keeps_its_memory_over_a_restart(tmp_path: Path, resumed: bool) -> None:
    """Also in a run that the server resumes, to which Flower gives another number.

    A reply that came after the server's last checkpoint is then as if lost.
    """
    device = Device(tmp_path)
    device.fit(1, accepted=0)
    expected = device.loss(1, accepted=1)
    if resumed:
        device.fit(2, accepted=1)
        device.run = str(device.context.run_id)
    device.context = context(99 if resumed else 7, **device.node)
    assert device.loss(1, accepted=1) == expected
    assert not device.fit(2, accepted=1)
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize(
    "stored",
    [
        {"v": np.zeros(3, np.float32), "alpha": np.zeros(1, np.float32)},
        {"v": np.zeros(650), "alpha": np.zeros(1)},
        {"theta": np.zeros(650, np.float32)},
    ],
    ids=["another model", "another type", "another rule"],
)
@pytest.mark.parametrize("version", ["committed", "pending"])
def test_a_memory_of_something_else_is_none(
    device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str, stored: Any
) -> None:
    """The client resyncs once."""
    state: dict[str, Any] = {version: stored} | ({"pending_tag": 1} if version == "pending" else {"tag": 1})
    kept = FileStore(tmp_path, 7, 2) if device.node else ContextStore(device.context)
    kept.save(Memory(**state))
    assert device.fit(2, accepted=1)
    assert "the client continues without one" in caplog.text
    caplog.clear()
    assert not device.fit(3, accepted=2)
    assert caplog.text == ""


def test_a_client_that_cannot_save_does_not_reply(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AssertionError, match="cannot keep the client's memory"):
        Device(tmp_path / "file").fit(1, accepted=0)


def test_methods_without_client_memory_store_nothing(tmp_path: Path) -> None:
    device = Device(tmp_path)
    config = {key: v for key, v in device.config(1, 0).items() if key not in ("rule", "last-accepted")}
    assert client_fn(device.context).fit(FitIns(device.parameters, config)).status.code == Code.OK
    assert os.listdir(tmp_path) == []


# Memories beyond a limit of RAM are stored in a file, which changes no result


@given(table=st.lists(st.tuples(st.integers(0, 3), MEMORIES), max_size=12), limit=st.integers(0, 400))
def test_the_memory_that_was_stored_last_is_loaded(table: list[tuple[int, Memory]], limit: int) -> None:
    memories, stored, expected = Memories(limit), {}, {}
    for client, memory in table:
        stored[client], expected[client] = memories.store(client, memory), memory
        in_ram = [m for m in stored.values() if isinstance(m, Memory)]
        states = [state for m in in_ram for state in (m.committed, m.pending or {})]
        assert sum(array.nbytes for state in states for array in state.values()) <= limit
    for client, memory in expected.items():
        assert_same_memory(VirtualClients.load(None, stored[client]), memory)  # it uses no clients


def test_the_file_does_not_grow_from_round_to_round() -> None:
    memories = Memories(0)
    for number in range(50):
        for client in range(3):
            state = {"v": np.full(1000, number, np.float32)}
            stored = memories.store(client, Memory(state, number, state, number + 1))
            assert isinstance(stored, Spilled)
    assert stored.file.size == 3 * 2 * 4000


@pytest.mark.parametrize("method", ["mimic:memory=client", "apfl", "efl"])
def test_a_run_is_the_same_with_its_memories_in_a_file(
    simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    run = {"strategy": method, "trace": "bernoulli:p=0.6+lost:p=0.2", "num_rounds": 5, "departures": "1=3"}
    expected = simulate(**run)
    made: list[Memories] = []

    def small(*_: Any) -> Memories:
        made.append(Memories(20_000))
        return made[-1]

    monkeypatch.setattr("fedtide.engine.transports.inline.Memories", small)
    found = simulate(**run)
    assert made[0]._file is not None
    np.testing.assert_array_equal(found.weights, expected.weights)
    for one, other in zip(found.rounds, expected.rounds, strict=True):
        assert one["active"] == other["active"]
        assert one.get("personal_accuracy") == other.get("personal_accuracy")


def test_a_full_disk_for_memories_is_a_clear_error() -> None:
    with no_file_above(0), pytest.raises(OSError, match="free space or set TMPDIR") as raised:
        Memories(0).store(0, Memory({"v": np.ones(3)}, 1))
    assert raised.value.errno == errno.EFBIG
