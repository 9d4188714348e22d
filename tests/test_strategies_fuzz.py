"""No reply raises, breaks the weights, is unpickled or ends learning, whatever clients send.

Part of the contract of every strategy, see test_contract.py. `FEDTIDE_FUZZ_EXAMPLES=1000 pytest -k hostile`
plays that many federations with each of them. What it has found is in test_strategies_outliers.py.
"""

import os
from pathlib import Path
from random import Random

import pytest
from hostile_rounds import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies import STRATEGIES

EXAMPLES = int(os.environ.get("FEDTIDE_FUZZ_EXAMPLES", "8"))
checks = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=checks)
@given(rng=st.randoms(use_true_random=False))
def test_hostile_rounds(name: str, rng: Random, tmp_path: Path) -> None:
    run(name, rng, tmp_path / "unpickled")
