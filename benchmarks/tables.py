"""All tables of docs/speed.md, one after the other; on a quiet machine, about an hour.

    python benchmarks/tables.py --data-dir data
    python benchmarks/tables.py throughput 2nn          # some of them

Each is another benchmark with the flags that are printed above its output. What is not installed, such as
BlazeFL, is named and left out.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import ROOT

MODELS = "--contenders bare-busy,inline,ray,flower-tuned,blazefl-threads,blazefl"
STOCK = "flower-message,flower-tuned"
FEW = f"{MODELS} --num-clients 100 --clients-per-round"
TABLES = {
    "startup": "startup.py",
    "throughput": "throughput.py",
    "1000-clients": f"throughput.py --contenders inline,ray,{STOCK} --clients-per-round 1000 --turns 2",
    "2nn": f"throughput.py --workload 2nn {MODELS}",
    "lenet": f"throughput.py --workload lenet {MODELS}",
    "tutorial": f"throughput.py --workload tutorial {FEW} 10",
    "resnet18": f"throughput.py --workload resnet18 {FEW} 4",
    "limits": "limits.py",
    "scaling": "scaling.py",
    "server-step": "server_step.py",
    "server-step-large": "server_step.py --large",
}
WITHOUT_DATA = ("startup",)


def command_of(name: str, data_dir: str) -> list[str]:
    """Return the command of a table, without the interpreter."""
    script, *flags = shlex.split(TABLES[name])
    return [f"benchmarks/{script}", *flags, *([] if name in WITHOUT_DATA else ["--data-dir", data_dir])]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return how many have failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--data-dir", default="data", help="directory of MNIST, downloaded if missing")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.names if name not in TABLES]:
        parser.error(f"no table {unknown[0]!r}; there are {', '.join(TABLES)}")
    failed = 0
    for name in arguments.names or TABLES:
        command = command_of(name, str(Path(arguments.data_dir).resolve()))
        print(f"## {name}\n\n    python {shlex.join(command)}\n", flush=True)
        failed += bool(subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode)
        print(flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
