"""What devices need of Flower beyond its public interface is there, and a version without it is named."""

import inspect
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.superexec import run_superexec
from flwr.supernode import start_client_internal as loop
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.runtime import run_clientapp
from message_grid import identify

from clients.device import flower_internals, supernode
from clients.device.flower_internals import CLIENT_APP, SUPERNODE, TASK_POLL
from fedtide.base.errors import SettingsError, described
from fedtide.devices.flower_compat import reason_of


@pytest.mark.parametrize("name", [SUPERNODE, CLIENT_APP])
def test_a_program_can_be_called(name: str) -> None:
    assert callable(flower_internals.program(name))


@pytest.mark.parametrize(
    "error", [SettingsError("no\n<digits>"), ValueError("x"), KeyError(3), RuntimeError()]
)
def test_an_exception_in_a_client_is_described_as_elsewhere(error: Exception) -> None:
    reason = str(type(error)) + ":<'" + str(error) + "'>"
    assert 'reason = str(type(ex)) + ":<\'" + str(ex) + "\'>"' in inspect.getsource(run_clientapp)
    assert reason_of(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)) == described(error)


def test_the_program_for_a_message_is_started_by_its_name() -> None:
    assert TaskType.CLIENT_APP == CLIENT_APP


def test_the_wait_for_a_task_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TASK_POLL, "0.25")
    assert run_superexec._get_task_poll_interval() == 0.25


def test_the_loop_waits_by_calls_of_one_sleep() -> None:
    waits = [line.strip() for line in inspect.getsource(loop).splitlines() if "time." in line]
    assert {wait for wait in waits if "sleep" in wait} == {"time.sleep(3)", "time.sleep(0.5)"}


def test_waits_are_shorter_and_a_node_without_work_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("time", "subprocess"):
        monkeypatch.setattr(loop, name, getattr(loop, name))  # is replaced below
    slept, ended = list[float](), list[int]()
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(supernode.signal, "raise_signal", ended.append)
    stop, departing = tmp_path / "stop", tmp_path / "departing"
    supernode.shorten_waits(0.2, str(stop), str(departing))
    for wait, expected in ((3, 0.2), (0.5, 0.1)):
        loop.time.sleep(wait)
        assert slept.pop() == pytest.approx(expected, abs=0.05)
    stop.touch()
    departing.write_text("farewell")  # one more task will come
    loop.time.sleep(3)
    departing.write_text("")
    loop.time.sleep(3)  # the server has time to fetch the last reply
    assert (len(slept), ended) == (2, [])
    monkeypatch.setattr(supernode, "SETTLE", 0)
    loop.time.sleep(3)
    assert ended == [supernode.signal.SIGTERM]


def test_a_node_whose_superexec_has_ended_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be online, take every task, and do none."""
    for name in ("time", "subprocess"):
        monkeypatch.setattr(loop, name, getattr(loop, name))  # is replaced below
    assert "        subprocess.Popen(command)\n" in inspect.getsource(loop)
    ended = list[int]()
    monkeypatch.setattr(supernode.signal, "raise_signal", ended.append)
    supernode.shorten_waits(0.01, str(tmp_path / "stop"), str(tmp_path / "departing"))
    started = loop.subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    loop.time.sleep(3)
    assert not ended
    started.kill()
    started.wait()
    loop.time.sleep(0.5)  # while a task is in work
    assert ended == [supernode.signal.SIGTERM]
    assert capsys.readouterr().err.endswith("Flower's SuperExec has ended (exit code -9)\n")
    started.stdin.close()


@pytest.mark.parametrize("refused", ["pull_object", "confirm_message_received"])
def test_a_task_whose_run_is_stopped_meanwhile_is_discarded(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's own loop would keep it, and from then on be one reply behind."""
    monkeypatch.setattr(loop, "_pull_and_store_message", loop._pull_and_store_message)  # is replaced below
    identify(monkeypatch, run=7)
    flower_internals.discard_tasks_of_stopped_runs()
    objects = ObjectStoreFactory()
    state = NodeStateFactory(objects).state()
    state.set_node_id(1)
    state.store_run(Run.create_empty(7))
    task = Message(RecordDict({"config": ConfigRecord({"round": 1})}), dst_node_id=1, message_type="train")
    task.metadata.__dict__["_message_id"] = task.object_id
    content = {name: each.deflate() for name, each in get_all_nested_objects(task).items()}
    tree = get_object_tree(task)

    def stopped(*arguments: Any) -> Any:
        raise RunNotRunningException

    calls: dict[str, Any] = dict.fromkeys(("get_run", "get_fab", "trusted_entities", "node_config"))
    calls |= {"state": state, "object_store": objects.store(), "receive": lambda: (task, tree)}
    calls |= {"pull_object": lambda run, name: content[name], "confirm_message_received": lambda *ids: None}
    assert loop._pull_and_store_message(**calls | {refused: stopped}) is None
    assert not state.get_messages_legacy()
    assert [task.status.sub_status for task in state.get_tasks()] == [SubStatus.FAILED]
    assert loop._pull_and_store_message(**calls) == 7


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *((loop, name) for name in ("time", "subprocess", "_pull_and_store_message")),
        (None, "RunNotRunningException"),
    ],
)
def test_a_flower_without_a_name_is_named(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for changed in ("time", "subprocess", "_pull_and_store_message"):
        monkeypatch.setattr(loop, changed, getattr(loop, changed))
    monkeypatch.delattr(module or inspect.getmodule(RunNotRunningException), name)
    monkeypatch.setattr("sys.argv", ["supernode", "1", "stop", "departing"])
    assert supernode.main() == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f":{name}, on which devices rely: install flwr 1.41 or 1.42" in line


def test_a_flower_without_a_program_is_named() -> None:
    with pytest.raises(flower_internals.FlowerChangedError, match="has no program flower-none, on which"):
        flower_internals.program("flower-none")
