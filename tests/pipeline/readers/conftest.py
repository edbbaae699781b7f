"""Tests of readers extract in their own process, but those of the process for it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers import base, extraction
from concord.pipeline.readers.records import RecordError

Result = TypeVar("Result")


@pytest.fixture(autouse=True)
def extraction_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name != "test_extraction.py":
        monkeypatch.setattr(base, "isolated_each", _here)
        monkeypatch.setattr(extraction, "isolated_each", _here)


def _here(
    function: Callable[..., Result], calls: Sequence[tuple[object, ...]], *, config: ReaderConfig
) -> list[Result | RecordError]:
    return [extraction.outcome(function, *arguments) for arguments in calls]
