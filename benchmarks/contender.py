"""Runs one job of a benchmark in its own process: `python -m benchmarks.contender`, see `measure`."""

import importlib
import json
import os

from benchmarks.measure import JOB, Clock

if __name__ == "__main__":
    job = json.loads(os.environ[JOB])
    importlib.import_module(f"benchmarks.{job['module']}").run(job, Clock(job))
