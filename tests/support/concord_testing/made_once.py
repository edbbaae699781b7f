"""What costs much is made once a session, by whichever worker of xdist needs it first."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of the session that ``make`` fills; tests must not change it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    # The lock says whether the folder is complete: some of what is made cannot be moved to its name afterwards.
    with folder.with_suffix(".lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if lock.seek(0, os.SEEK_END) == 0:
            folder.mkdir(exist_ok=True)
            make(folder)
            lock.write("made")
    return folder
