"""Feeds bytes that atheris chooses to all strategies: `python tests/fuzz_replies.py [libFuzzer's options]`.

Not part of the tests. Each input is read twice: as the arrays of a reply, and as the choices of a federation
of hostile clients (tests/hostile_rounds.py).
"""

import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

try:
    import atheris
except ImportError:
    sys.exit(
        "fuzz_replies.py needs atheris: pip install atheris (it has wheels for few versions of Python only)"
    )

with atheris.instrument_imports(include=["strategies", "numpy.lib"]):
    from fakes import START
    from flwr.common import Parameters
    from hostile_rounds import run

    from strategies import STRATEGIES, Layout
    from strategies.core.parameters import read_parameters

MARKER = Path(tempfile.mkdtemp()) / "unpickled"
NAMES = [*STRATEGIES]


class Bytes(Random):
    """Makes its choices from bytes, and the first of each choice when they are used up."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self.data = data

    def getrandbits(self, k: int) -> int:
        count = -(-k // 8)
        part, self.data = self.data[:count], self.data[count:]
        return int.from_bytes(part.ljust(count, b"\0"), "little") % (1 << k)

    def random(self) -> float:
        return self.getrandbits(53) / (1 << 53)


def test(data: bytes) -> None:
    """Raise where something does not hold."""
    pieces = data.split(b"\xff\xff")
    with suppress(ValueError):
        read_parameters(Parameters(pieces, "numpy.ndarray"), Layout.of(START))
    run(NAMES[data[0] % len(NAMES)] if data else NAMES[0], Bytes(data[1:]), MARKER, rounds=2)


if __name__ == "__main__":
    atheris.Setup(sys.argv, test)
    atheris.Fuzz()
