"""What is set before the heavy imports: environment variables, which libraries read once, and garbage collection."""

import gc
import os
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


@contextmanager
def collection_paused() -> Iterator[None]:
    """Import and load without garbage collection, which would visit again and again what was loaded before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # Both together make all objects old ones, of which the next collections visit none.
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()
