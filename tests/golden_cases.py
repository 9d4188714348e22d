"""Exact trajectories of an independent reference: those of pytest's `--golden FILE`, or all of ours."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

FILES = sorted((Path(__file__).parent / "golden").glob("*.json"))


def cases(config: pytest.Config) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield each case with its problem, None where it has none."""
    for file in config.getoption("--golden") or FILES:
        golden = json.loads(Path(file).read_text(encoding="utf-8"))
        for case in golden["cases"]:
            yield golden["problems"].get(case.get("problem")), case


def variants(config: pytest.Config, methods: Collection[str], **unless: Any) -> list[Any]:
    """Return (problem, case, name of the variant) of some methods; none with an option of `unless`."""
    return [
        pytest.param((problem, case, name), id=f"{case['id']}-{name}")
        for problem, case in cases(config)
        if case["method"] in methods
        for name, variant in case["variants"].items()
        if not variant["opts"].items() & unless.items()
    ]
