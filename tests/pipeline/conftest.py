"""Fixtures that several folders share: finished runs, and a collection with the bytes of its undisturbed run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from concord_testing import finished_runs, runs

FinishRun = Callable[..., Path]


@pytest.fixture
def finish_run(tmp_path: Path) -> FinishRun:
    """Return a function that writes a run and returns its output folder; see finished_runs.write_run."""

    def finish(documents: Mapping[str, Sequence[str]], **arguments: Any) -> Path:
        return finished_runs.write_run(tmp_path / "out", documents, **arguments)

    return finish


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write a file of twelve documents and one that becomes a dead letter."""
    return runs.write_collection(tmp_path / "in.jsonl", extra=("PARSERFAULT",))


@pytest.fixture
def undisturbed(source: Path, tmp_path: Path) -> dict[str, bytes]:
    """Return the bytes of an undisturbed local run."""
    runs.run_job(runs.job(source, tmp_path / "undisturbed"))
    return runs.committed_bytes(tmp_path / "undisturbed")
