"""Tests of readers extract in their own process, but those of the process for it."""

from collections.abc import Iterator
from typing import Any

import pytest

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers import read_file
from concord.pipeline.readers.extraction import Work


@pytest.fixture(autouse=True)
def extraction_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name != "test_extraction.py":
        monkeypatch.setattr(read_file, "isolated", _here)


def _here(work: Work, config: ReaderConfig, *, start: int = 0, stop: int | None = None) -> Iterator[Any]:
    return work(start, stop)
