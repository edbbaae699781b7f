"""``concord view`` as a person uses it, in Chromium: reading, searching, keys, hostile text, and no outside request."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from concord_testing import finished_runs, viewing
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

pytestmark = pytest.mark.slow

PAGES = (
    "/",
    "/document?id=yard&name=Baxter&tree=0",
    "/names",
    "/name?name=Baxter",
    "/search?q=goole",
    "/changes",
    "/dead-letters",
    "/document?id=cut",
    "/document?id=none",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium once for all tests."""
    path = viewing.chromium()
    if path is None:
        pytest.skip("no Chromium found: install it with 'apt-get install chromium', or see .ci/run")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a small collection; tests must not change it."""
    folder = tmp_path_factory.mktemp("news")
    output = finished_runs.write_run(
        folder / "out", viewing.NEWS, dead_letters=[viewing.DEAD_LETTER], keep_text=True, documents_per_shard=1
    )
    with viewing.served(output, folder / "cache") as url:
        yield url


class Visit:
    """A window with the token, and the requests and messages that it made."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        context.set_default_timeout(20_000)
        self.page: Page = context.new_page()
        self.base = url.partition("/?")[0]
        self.outside: list[str] = []
        self.messages: list[str] = []
        self.page.on("request", self._see)
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.goto(url)

    def open(self, path: str) -> Page:
        """Go to a page."""
        self.page.goto(self.base + path)
        return self.page

    def _see(self, request: Any) -> None:
        if not request.url.startswith(self.base):
            self.outside.append(request.url)


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    """Open a window on the small collection; it must request nothing else, and report no fault."""
    with browser.new_context(viewport={"width": 1200, "height": 800}) as context:
        made = Visit(context, address)
        yield made
        assert made.outside == []
        assert made.messages == []


def test_a_reader_finds_a_document_and_every_place_of_a_name(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("link", name="On yard").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("On yard")
    page.locator("a.e", has_text="Baxter").first.hover()
    expect(page.locator("a.same")).to_have_count(4)
    page.locator("a.e", has_text="Baxter").first.click()
    expect(page.get_by_role("heading", name="Baxter", exact=True)).to_be_visible()
    page.locator("#names").get_by_role("link", name="All documents").click()
    expect(page.locator(".lines li")).to_have_count(3)


def test_a_search_leads_to_the_sentence(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("searchbox", name="Search the texts").fill("goole")
    page.keyboard.press("Enter")
    expect(page.locator("mark")).to_have_count(4)
    page.get_by_role("radio", name="lemma").check()
    page.get_by_role("main").get_by_role("button", name="Search").click()
    expect(page.locator("mark")).to_have_count(4)
    page.get_by_role("link", name="On fair").first.click()
    expect(page.locator("#s0")).to_be_in_viewport()


def test_everything_can_be_reached_by_keys(visit: Visit) -> None:
    page = visit.page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="On yard")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("On yard")
    page.keyboard.press("j")
    expect(page.locator("a.same").first).to_be_visible()
    page.keyboard.press("n")
    expect(page.get_by_role("heading", level=1)).to_have_text("On fair")
    page.keyboard.press("/")
    page.keyboard.type("Baxter j k")
    expect(page.get_by_role("searchbox", name="Search the texts")).to_have_value("Baxter j k")
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", level=1)).to_have_text("On yard")


def test_pages_work_without_scripts(browser: Browser, address: str) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        visit = Visit(context, address)
        page = visit.open("/document?id=yard")
        page.locator("a.e", has_text="Baxter").first.click()
        expect(page.locator(".chosen")).to_have_count(3)
        page.locator("a.no").first.click()
        expect(page.locator("svg")).to_have_count(1)


def test_a_stranger_sees_nothing(browser: Browser, address: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        answer = page.goto(address.partition("?")[0])
        assert answer is not None
        assert answer.status == 403


def test_hostile_text_runs_nothing(browser: Browser, tmp_path: Path) -> None:
    output = viewing.write_hostile(tmp_path / "out")
    with viewing.served(output, tmp_path / "cache") as url, browser.new_context() as context:
        visit = Visit(context, url)
        for path in ("/", "/names", "/dead-letters", "/search?q=met"):
            page = visit.open(path)
            links = page.locator("main a").evaluate_all("links => links.map(link => link.pathname + link.search)")
            for link in [path, *links][:12]:
                page = visit.open(link)
                assert page.evaluate("document.body.dataset.ran") is None
                assert page.locator("img, marquee").count() == 0
        assert visit.outside == []
        assert visit.messages == []


def test_a_document_of_three_megabytes_is_read_in_pages(browser: Browser, tmp_path: Path) -> None:
    output = viewing.write_long(tmp_path / "out")
    with viewing.served(output, tmp_path / "cache") as url, browser.new_context() as context:
        page = Visit(context, url).open("/document?id=long")
        assert page.locator("a.e").count() > 500
        page.keyboard.press("n")
        expect(page.get_by_text("page 2 of").first).to_be_visible()
        page.goto(page.url.partition("/document")[0] + "/document?id=long&sentence=9999#s9999")
        expect(page.locator("#s9999")).to_be_in_viewport()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_pages_are_accessible_in_both_schemes_and_on_a_phone(
    browser: Browser, address: str, scheme: Any, width: int
) -> None:
    with browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}) as context:
        visit = Visit(context, address)
        for path in PAGES:
            page = visit.open(path)
            assert page.evaluate(RULES) == [], path
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path


RULES = """() => {
  const faults = [];
  const one = (selector) => document.querySelectorAll(selector).length === 1;
  for (const selector of ["main", "h1", "title"]) if (!one(selector)) faults.push(`expected one ${selector}`);
  if (!document.documentElement.lang) faults.push("no language");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(ids).size !== ids.length) faults.push("an id twice");
  const navs = [...document.querySelectorAll("nav, aside, [role=region]")];
  for (const nav of navs) if (!nav.ariaLabel) faults.push(`a ${nav.tagName} without a name`);
  for (const field of document.querySelectorAll("input:not([type=hidden]), select")) {
    if (![...field.labels].some((label) => label.textContent.trim())) faults.push(`no label: ${field.outerHTML}`);
  }
  for (const link of document.querySelectorAll("a, button")) {
    if (!(link.ariaLabel || link.textContent.trim())) faults.push(`no name: ${link.outerHTML}`);
  }
  const channels = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+(e-?\\d+)?/g).map(Number);
    const scale = colour.startsWith("color(") ? 255 : 1;
    return [r * scale, g * scale, b * scale, a];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const luminance = (colour) => {
    const [r, g, b] = colour.map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    if (!element) return [255, 255, 255];
    return over(channels(getComputedStyle(element).backgroundColor), ground(element.parentElement));
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    if (["SCRIPT", "STYLE", "OPTION"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const text = over(channels(element.namespaceURI.includes("svg") ? style.fill : style.color), below);
    const [high, low] = [luminance(text), luminance(below)].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(2)}: ${element.outerHTML.slice(0, 120)}`);
  }
  return faults;
}"""
