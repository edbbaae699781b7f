"""Ray's authentication mode, and the end of what a Ray that was started on this machine leaves behind.

Ray ends the driver when its GCS is gone, and then nobody ends the agents of the node. A process of its own, which
imports nothing of this package, waits for the end of the driver.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_VARIABLE = "CONCORD_RAY_FOLDER"
_PATIENCE_SECONDS = 5.0


@contextmanager
def leftovers_ended(folder: str) -> Iterator[None]:
    """Have the processes that the block starts ended, and a folder removed, after it or the death of this process."""
    # Interrupts from a terminal go to the whole session; this process has to outlive them.
    watcher = subprocess.Popen(
        [sys.executable, "-I", __file__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.environ[_VARIABLE] = folder
    try:
        yield
    finally:
        del os.environ[_VARIABLE]
        watcher.communicate()


def _watch(folder: str) -> None:
    """Wait for the end of the standard input, and then end the processes of a folder that do not end themselves."""
    sys.stdin.read()
    began = time.monotonic()
    while (left := _processes(folder)) and (waited := time.monotonic() - began) < 2 * _PATIENCE_SECONDS:
        for pid in left if waited > _PATIENCE_SECONDS else ():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: str) -> list[int]:
    """Return the processes that were started, or whose ancestors were, with this folder in their environment."""
    mark, found = f"{_VARIABLE}={folder}\0".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in process.joinpath("environ").read_bytes():
                found.append(int(process.name))
    return found


if __name__ == "__main__":
    _watch(sys.argv[1])


def resolve_auth_mode(address: str | None) -> None:
    """Set ``RAY_AUTH_MODE`` unless the user has; to be called before anything imports Ray.

    Ray's own default differs between starting and joining a cluster. One started here only listens on this machine, and
    only during the run; a cluster gets the token if there is one.

    Args:
        address: of the cluster to join; None if one is started here.
    """
    token = (
        "RAY_AUTH_TOKEN" in os.environ
        or "RAY_AUTH_TOKEN_PATH" in os.environ
        or (Path.home() / ".ray" / "auth_token").exists()
    )
    os.environ.setdefault("RAY_AUTH_MODE", "token" if address and token else "disabled")
