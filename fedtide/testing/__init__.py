"""What methods are tested with: rounds without an engine, and the contract that every method keeps."""

from contextlib import suppress

with suppress(ImportError):  # a broken promise then shows its values, as in a test of one's own
    import pytest

    pytest.register_assert_rewrite("fedtide.testing.contract")

from fedtide.testing.contract import PROMISES, contract
from fedtide.testing.rounds import Rounds, reply

__all__ = ["PROMISES", "Rounds", "contract", "reply"]
