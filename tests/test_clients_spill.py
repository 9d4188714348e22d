"""Memories beyond a limit of RAM are stored in a file, which changes no result."""

import errno
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memories import MEMORIES, assert_same_memory
from test_engine_run_folder import no_file_above

from clients.memory.handshake import Memory
from clients.memory.spill import Memories, Spilled
from clients.simulated.virtual import VirtualClients


def load(stored: Memory | Spilled) -> Memory:
    memory = VirtualClients.load(None, stored)  # type: ignore[arg-type]  # it uses no clients
    assert memory is not None
    return memory


@given(table=st.lists(st.tuples(st.integers(0, 3), MEMORIES), max_size=12), limit=st.integers(0, 400))
def test_the_memory_that_was_stored_last_is_loaded(table: list[tuple[int, Memory]], limit: int) -> None:
    memories, stored, expected = Memories(limit), {}, {}
    for client, memory in table:
        stored[client], expected[client] = memories.store(client, memory), memory
        in_ram = [m for m in stored.values() if isinstance(m, Memory)]
        states = [state for m in in_ram for state in (m.committed, m.pending or {})]
        assert sum(array.nbytes for state in states for array in state.values()) <= limit
    for client, memory in expected.items():
        assert_same_memory(load(stored[client]), memory)


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


def test_a_full_disk_is_a_clear_error() -> None:
    with no_file_above(0), pytest.raises(OSError, match="free space or set TMPDIR") as raised:
        Memories(0).store(0, Memory({"v": np.ones(3)}, 1))
    assert raised.value.errno == errno.EFBIG
