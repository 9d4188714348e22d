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


def main() -> None:
    """Run the module that the command line names, until SIGTERM ends it once its parent is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
