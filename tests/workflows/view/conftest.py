"""Chromium for the tests of ``concord view``."""

from collections.abc import Iterator

import pytest
from concord_testing import viewing
from concord_testing.browsing import Visit
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start Chromium once for all tests."""
    path = viewing.chromium()
    if path is None:
        pytest.skip("no Chromium found: install it with 'apt-get install chromium', or see .ci/run")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    """Open a window on the collection of a module; it must request nothing else, and report no fault."""
    with browser.new_context(viewport={"width": 1200, "height": 800}) as context:
        made = Visit(context, address)
        yield made
        assert made.outside == []
        assert made.messages == []
