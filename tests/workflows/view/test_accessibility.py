"""Every kind of HTML page passes axe-core in light and dark, and fits a phone: those of ``concord view`` and files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from concord_testing import fakes, finished_runs, viewing
from concord_testing.browsing import Visit, accessibility_faults
from playwright.sync_api import Browser, BrowserContext, Page, expect

from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.report.html import write_report
from concord.workflows.view import viewer

pytestmark = pytest.mark.slow

READING = (
    "/",
    "/?label=ORG&order=meta.date&meta.section=yards",
    "/document?id=yard&name=Baxter&tree=0",
    "/document?id=empty",
    "/document?id=cut",
    "/document?id=none",
    "/names",
    "/name?name=Baxter&meta.date=2031",
    "/search?q=goole&label=LOC",
    "/search?q=goole+AND",
    "/sql?q=SELECT+*+FROM+entities",
    "/corrections",
    "/differences",
    "/review",
    "/review?rank=2",
    "/why?id=yard&name=Baxter",
    "/dead-letters",
)
CORRECTING = (
    "/document?id=yard&at=24-35",
    "/review",
    "/review?rank=7",
    "/everywhere?text=Baxter&label=PER",
    "/corrections",
)
SIZES: tuple[tuple[int, Literal["light", "dark"]], ...] = ((1200, "light"), (1920, "dark"), (360, "light"))


@pytest.fixture(scope="module")
def news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run with its report; tests must not change it."""
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


@pytest.fixture
def window(browser: Browser) -> Iterator[BrowserContext]:
    """Open a window."""
    with browser.new_context() as context:
        yield context


def check(page: Page, name: str) -> None:
    """Check a page in light and dark, and on a phone, which must not scroll it sideways."""
    for width, scheme in SIZES:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        assert accessibility_faults(page) == [], (name, width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
        if page.locator("#marks").count():
            page.locator("#marks").check()
            assert accessibility_faults(page) == [], (name, width, scheme, "marks")
            page.locator("#marks").uncheck()


def open_page(visit: Visit, path: str) -> Page:
    """Go to a page when the server has made it: a queue is made in the background."""
    page = visit.open(path)
    expect(page.get_by_text("are being selected")).to_have_count(0, timeout=20_000)
    return page


def test_pages_for_reading_are_accessible(
    window: BrowserContext, news: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "_load", lambda plan: fakes.AttentiveTagger())
    with viewing.served(news, tmp_path) as url:
        visit = Visit(window, url)
        for path in READING:
            check(open_page(visit, path), path)


def test_pages_for_correcting_are_accessible(window: BrowserContext, tmp_path: Path) -> None:
    output = finished_runs.write_run(tmp_path / "out", viewing.NEWS, keep_text=True)
    with viewing.served(output, tmp_path / "cache", who="ada") as url:
        visit = Visit(window, url)
        open_page(visit, "/review")
        page = visit.open("/document?id=yard&at=0-6")
        page.locator("#correct").get_by_role("button", name="PER").click()
        for path in CORRECTING:
            check(open_page(visit, path), path)


@pytest.mark.parametrize("name", ["saved", "report"])
def test_files_are_accessible(window: BrowserContext, name: str, news: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.html"
    if name == "saved":
        client = viewing.open_client(news, tmp_path / "cache")
        path.write_text(client.get("/document?id=yard&name=Baxter&tree=0&save=1").text, encoding="utf-8")
    else:
        path = news / "_run" / "report.html"
    page = window.new_page()
    page.goto(path.as_uri())
    check(page, name)
