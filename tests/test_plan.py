"""The plan of a run: each spec is parsed and bound once, whoever uses it later."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedtide.plan
from fedtide.api.functions import run
from fedtide.base import specs
from fedtide.tasks import TASKS, DatasetTask

SPECS = 9  # by default: strategy, task, model, partition, sizes, two traces, schedule, selection


def test_a_default_run_binds_each_spec_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it makes the task once, and divides its data once."""
    counts = Counter[str]()

    def counting(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            counts[what] += 1
            return function(*args, **options)

        return counted

    for name in ("parse", "Part"):
        counted = counting(name, getattr(specs, name))
        monkeypatch.setattr(specs, name, counted)
        monkeypatch.setattr(fedtide.plan, name, counted)
    monkeypatch.setitem(TASKS, "digits", counting("task", TASKS["digits"]))
    monkeypatch.setattr(DatasetTask, "federate", counting("federate", DatasetTask.federate))
    run(num_rounds=1, engine="inline", run_dir=str(tmp_path), progress=False, report=False)
    assert counts == {"parse": SPECS, "Part": SPECS, "task": 1, "federate": 1}
