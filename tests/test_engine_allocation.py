"""Memory that is freed and taken again costs no page faults."""

import json
import os
import platform
import subprocess
import sys

import pytest

# Frees and allocates 16 MB a hundred times, and tells how many page faults that took.
COUNT = """
import json, resource
import numpy as np
from fedtide.base.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        blocks = [np.ones(1 << 17) for _ in range(16)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
kept = keep_freed_memory()
faults()
print(json.dumps([kept, before, faults()]))
"""


def count(**chosen: str) -> tuple[bool, int, int]:
    env = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"} | chosen
    done = subprocess.run([sys.executable, "-c", COUNT], env=env, capture_output=True, text=True, check=True)
    kept, before, after = json.loads(done.stdout)
    return kept, before, after


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_freed_memory_is_kept_unless_the_user_has_set_otherwise():
    kept, before, after = count()
    assert kept
    assert after < before / 10
    assert not count(MALLOC_TRIM_THRESHOLD_="100000")[0]
