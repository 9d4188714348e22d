"""Run a module in a process that ends when the one that started it is gone.

python -m clients.device.tied MODULE [arguments]
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time


def end_with(parent: int) -> None:
    """End this process by SIGTERM once its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run the module that the command line names."""
    end_with(os.getppid())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
