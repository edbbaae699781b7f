"""What is set before the heavy imports: environment variables, which libraries read once, and garbage collection."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from concord.pipeline.resources import wait_passively


def set_environment() -> None:
    """Turn off usage statistics, needless network calls and spinning threads, unless the user has set the variables.

    Call it before anything imports torch or Ray.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    wait_passively()


class _Pauses:
    """Pauses of garbage collection, which the threads of a process share: the last to end restores what was before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lasting = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if not self._lasting:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._lasting += 1

    def end(self) -> None:
        with self._lock:
            self._lasting -= 1
            if not self._lasting and self._was_enabled:
                gc.enable()


_PAUSES = _Pauses()


@contextmanager
def collection_paused() -> Iterator[None]:
    """Import and load without garbage collection, which would visit again and again what was loaded before."""
    _PAUSES.begin()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # Both together make all objects old ones, of which the next collections visit none.
            gc.freeze()
            gc.unfreeze()
        _PAUSES.end()
