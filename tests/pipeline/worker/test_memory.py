"""A worker's memory: caches are bounded, and freed memory is returned to the system."""

import os
import platform
import subprocess
import sys
from functools import cache

import pytest

pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="measures the heap of glibc"),
    pytest.mark.slow,
]

# Prints by how many MB the resident set grows over 400 different shapes of a convolution; then by how many MB it
# shrinks when every other one of 2,000 blocks is freed, before and after the heap is trimmed: each hole lies below a
# block as large as itself, so that the top of the heap stays where it is.
SCRIPT = """
import os, sys
import torch
from concord.pipeline.worker.memory import bound_caches, trim_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

if sys.argv[1] == "bounded":
    bound_caches()
torch.set_num_threads(1)
network = torch.nn.Conv1d(25, 40, 3)
with torch.inference_mode():
    for shapes in (range(20, 40), range(40, 440)):
        trim_heap()
        before = resident()
        for words in shapes:
            network(torch.zeros(words, 25, 12))
    trim_heap()
    print(resident() - before)
blocks = [torch.ones(15_000) for _ in range(2_000)]
before = resident()
del blocks[::2]
print(before - resident())
trim_heap()
print(before - resident())
"""


@cache
def measured(caches: str) -> tuple[float, float, float]:
    """Run the script in a new process, since torch reads the bounds of its caches once per process."""
    # Another test of this session may have bounded the caches in the environment.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, caches], capture_output=True, text=True, check=True, env=environment
    )
    growth, before_return, after_return = map(float, done.stdout.split())
    return growth, before_return, after_return


def test_new_batch_shapes_cost_no_memory_when_caches_are_bounded() -> None:
    assert measured("bounded")[0] < 3
    assert measured("unbounded")[0] > 10, "torch bounds its caches by itself: bound_caches is not needed"


def test_trim_heap_returns_freed_memory_to_the_system() -> None:
    _, before_return, after_return = measured("bounded")
    assert after_return > 50
    assert before_return < 30, "glibc returns holes by itself: trim_heap is not needed"
