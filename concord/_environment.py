"""Environment variables that torch, Ray, MLflow and Hugging Face read once, when they are imported."""

import os

from concord.pipeline.threads import wait_passively


def set_environment() -> None:
    """Turn off usage statistics, needless network calls and spinning threads, unless the user has set the variables.

    Call it before anything imports torch or Ray.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    wait_passively()
