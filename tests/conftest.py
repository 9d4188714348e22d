import os
from pathlib import Path

import pytest

# Flower neither reports home nor installs packages while tests run.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")

GOLDEN = Path(__file__).parent / "golden" / "golden.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", default=str(GOLDEN), help="file of golden trajectories to check")
