"""Tests of readers extract in their own process, but those of the process for it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from concord.pipeline.readers.extraction import Isolation, outcome
from concord.pipeline.readers.records import RecordError

Result = TypeVar("Result")


@pytest.fixture(autouse=True)
def extraction_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name != "test_extraction.py":
        monkeypatch.setattr(Isolation, "each", _here)


def _here(
    _kind: Isolation, function: Callable[..., Result], calls: Sequence[tuple[object, ...]], **_: object
) -> list[Result | RecordError]:
    return [outcome(function, *arguments) for arguments in calls]
