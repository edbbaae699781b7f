"""A fixture that writes finished runs of invented documents."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from concord_testing import finished_runs

FinishRun = Callable[..., Path]


@pytest.fixture
def finish_run(tmp_path: Path) -> FinishRun:
    """Return a function that writes a run and returns its output folder; see finished_runs.write_run."""

    def finish(documents: Mapping[str, Sequence[str]], **arguments: Any) -> Path:
        return finished_runs.write_run(tmp_path / "out", documents, **arguments)

    return finish
