"""Processes of this machine: descendants of a process, and the workers of a Ray cluster."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ACTOR = b"ray::ShardActor"


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


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        threads = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    return []
