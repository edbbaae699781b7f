"""Finished runs of invented documents."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from concord_testing import written

FinishRun = Callable[..., Path]


@pytest.fixture
def finish_run(tmp_path: Path) -> FinishRun:
    """Give a function that writes a run and gives its output folder; see written.write_run."""

    def finish(documents: Mapping[str, Sequence[str]], **arguments: Any) -> Path:
        return written.write_run(tmp_path / "out", documents, **arguments)

    return finish
