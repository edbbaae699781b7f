"""Tests of readers extract in their own process, but those of the process for it."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers import base, mail

Result = TypeVar("Result")


@pytest.fixture(autouse=True)
def extraction_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name != "test_extraction.py":
        monkeypatch.setattr(base, "isolated", _here)
        monkeypatch.setattr(mail, "isolated", _here)


def _here(function: Callable[..., Result], *arguments: object, config: ReaderConfig) -> Result:
    return function(*arguments)
