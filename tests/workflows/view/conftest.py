"""Chromium and one collection for all tests of ``concord view``."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from concord_testing import finished_runs, viewing
from playwright.sync_api import Browser, BrowserContext, sync_playwright
from starlette.testclient import TestClient

from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.report.html import write_report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium for the tests of a file.

    Playwright keeps an event loop running in this thread, so that other files must find it stopped.
    """
    path = viewing.chromium()
    if path is None:
        pytest.skip("no Chromium found: install it with 'apt-get install chromium', or see .ci/run")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[BrowserContext]:
    """Open a window; each test opens pages of its own, of a server with a port of its own."""
    with browser.new_context(viewport={"width": 1200, "height": 800}) as context:
        yield context


@pytest.fixture(scope="session")
def news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small collection with metadata, a dead letter and a report; tests must not change it."""
    output = finished_runs.write_run(
        tmp_path_factory.mktemp("news") / "out",
        viewing.NEWS,
        dead_letters=[viewing.DEAD_LETTER],
        keep_text=True,
        documents_per_shard=1,
        metas=viewing.METAS,
    )
    write_report(OutputFolder(output))
    return output


@pytest.fixture(scope="session")
def reader(news: Path) -> TestClient:
    """Return a client that reads the small collection."""
    return viewing.open_client(news, news.parent / "cache")


@pytest.fixture
def output(news: Path, tmp_path: Path) -> Path:
    """Return a copy of the small collection, to be changed."""
    return Path(shutil.copytree(news, tmp_path / "out", symlinks=True))


@pytest.fixture
def differing(output: Path) -> Path:
    """Return a collection in which ada and bob differ in two sentences: in a type, and in what a name is."""
    viewing.add_differences(output)
    return output
