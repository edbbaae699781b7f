"""Faults of a disk, injected into this process: the n-th call that would change something fails."""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

CALLS = {"open": 0, "unlink": 0, "link": 1, "symlink": 1, "rename": 1, "replace": 1, "mkdir": 0, "rmdir": 0, "fsync": 0}
"""Functions of the module os: which argument is the path. Opening counts if it creates a file."""


class Faults:
    """Counts calls that change something, and lets one of them fail."""

    def __init__(self, number: int, error: int) -> None:
        self.calls: list[str] = []
        self._number = number
        self._error = error

    def count(self, name: str, place: object) -> None:
        """Count a call; raise if it is the one that fails."""
        self.calls.append(f"{name} {place}")
        if len(self.calls) == self._number:
            raise OSError(self._error, os.strerror(self._error), None if isinstance(place, int) else str(place))


@contextmanager
def failing_call(number: int = 0, *, error: int = errno.EIO) -> Iterator[Faults]:
    """Let the n-th call fail, from 1; none for 0. Yields the calls made so far."""
    faults = Faults(number, error)
    patches = [mock.patch.object(os, name, _counted(getattr(os, name), name, faults)) for name in CALLS]
    patches.append(mock.patch.object(io, "open", _counted_open(io.open, faults)))
    for patch in patches:
        patch.start()
    try:
        yield faults
    finally:
        for patch in patches:
            patch.stop()


def _counted(function: Callable[..., Any], name: str, faults: Faults) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        place = arguments[CALLS[name]]
        if name == "open":
            changes = bool(arguments[1] & os.O_CREAT)
        else:
            changes = name != "mkdir" or not _exists(place, named.get("dir_fd"))
        if changes:
            faults.count(name, place)
        return function(*arguments, **named)

    return call


def _exists(place: Any, folder: int | None) -> bool:
    try:
        os.stat(place, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _counted_open(function: Callable[..., Any], faults: Faults) -> Callable[..., Any]:
    def call(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if set(mode) & set("wxa+"):
            faults.count("open", file)
        return function(file, mode, *arguments, **named)

    return call
