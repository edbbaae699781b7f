"""Fixtures that several folders share: finished runs, and a collection with the bytes of its undisturbed run."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
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


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("source")
    source = runs.write_collection(folder / "in.jsonl", extra=("PARSERFAULT",))
    # Old enough for its hash to be kept.
    os.utime(source, (1e9, 1e9))
    runs.run_job(runs.job(source, folder / "undisturbed"))
    return source, runs.committed_bytes(folder / "undisturbed")


@pytest.fixture
def source(_shared: tuple[Path, dict[str, bytes]]) -> Iterator[Path]:
    """Give a file of twelve documents and one that becomes a dead letter; no test may change it."""
    yield _shared[0]
    _shared[0].with_name("fakes.json").unlink(missing_ok=True)


@pytest.fixture
def undisturbed(_shared: tuple[Path, dict[str, bytes]]) -> dict[str, bytes]:
    """Return the bytes of an undisturbed local run over that file."""
    return _shared[1]


@pytest.fixture
def output(_shared: tuple[Path, dict[str, bytes]], tmp_path: Path) -> Path:
    """Copy the output of that run: three shards or more, with a dead letter."""
    copied = shutil.copytree(_shared[0].with_name("undisturbed"), tmp_path / "out", symlinks=True)
    return Path(copied)
