"""Processes of this machine: descendants of a process, the workers of a Ray cluster, and one that imports torch."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from concord_testing.checkout import CHECKOUT

ACTOR = b"ray::ShardActor"
_UNTIL_TORCH = """
import os, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print(os.environ["OMP_WAIT_POLICY"], flush=True)
            os._exit(0)
sys.meta_path.insert(0, Finder())
"""


def ray_workers(head: int) -> list[int]:
    """Return the process ids of the workers of a Ray cluster, from that of its head."""
    return sorted(pid for pid in descendants(head) if command_of(pid).startswith(ACTOR))


def descendants(pid: int) -> Iterator[int]:
    """Yield the ids of a process's children, their children and so on."""
    for child in _children(pid):
        yield child
        yield from descendants(child)


def command_of(pid: int) -> bytes:
    """Return a process's command line; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def policy_at_import_of_torch(code: str) -> str:
    """Run code in a new process until it imports torch, and return OMP_WAIT_POLICY, which torch reads then."""
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    command = [sys.executable, "-c", _UNTIL_TORCH + code]
    done = subprocess.run(command, cwd=CHECKOUT, env=inherited, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        threads = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    return []
