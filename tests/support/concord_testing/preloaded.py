"""What processes that tests start find imported (runs.in_child). Nothing here may start a thread; a test sees to it."""
# ruff: noqa: E402, F401

import sys

import hypothesis
import pytest

# MLflow imports polars where it is installed, which starts threads.
sys.modules["polars"] = None  # type: ignore[assignment]
import mlflow.store.tracking.sqlalchemy_store

del sys.modules["polars"]

import concord.workflows.cli.main
import concord.workflows.promotion
import concord_testing.runs
from concord.pipeline.names.language import load_languages
from concord.pipeline.readers.read_file import readers

# What takes each process the longest at its first document.
load_languages()
readers()
