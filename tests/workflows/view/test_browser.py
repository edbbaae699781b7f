"""``concord view`` as a person uses it, in Chromium: reading, searching, keys, hostile text, and no outside request."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from concord_testing import finished_runs, viewing
from concord_testing.browsing import Visit
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a small collection; tests must not change it."""
    folder = tmp_path_factory.mktemp("news")
    output = finished_runs.write_run(
        folder / "out",
        viewing.NEWS,
        dead_letters=[viewing.DEAD_LETTER],
        keep_text=True,
        documents_per_shard=1,
        metas=viewing.METAS,
    )
    with viewing.served(output, folder / "cache") as url:
        yield url


def test_a_reader_finds_a_document_and_every_place_of_a_name(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("link", name="On yard").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("On yard")
    page.locator("a.e", has_text="Baxter").first.hover()
    expect(page.locator("a.same")).to_have_count(4)
    page.locator("a.e", has_text="Baxter").first.click()
    expect(page.get_by_role("heading", name="Baxter", exact=True)).to_be_visible()
    page.locator("#names").get_by_role("link", name="All documents").click()
    expect(page.locator(".lines li")).to_have_count(2)
    page.get_by_role("link", name="Alan Baxter").first.click()
    expect(page.locator(".lines li")).to_have_count(2)


def test_the_page_that_the_command_opens_leads_to_the_collection(
    browser: Browser, address: str, tmp_path: Path
) -> None:
    (tmp_path / "open.html").write_text(f'<meta http-equiv="refresh" content="0; url={address}">')
    with browser.new_context() as context:
        page = context.new_page()
        page.goto((tmp_path / "open.html").as_uri())
        expect(page.get_by_role("link", name="On yard")).to_be_visible()
        assert "token" not in page.url


@pytest.mark.parametrize("path", ["/", "/names"])
def test_columns_are_below_their_headings(visit: Visit, path: str) -> None:
    table = visit.open(path).locator("table")
    ends = "cells => cells.map((cell) => Math.round(cell.getBoundingClientRect().right))"
    headings = table.locator("thead th").evaluate_all(ends)
    assert table.locator("tbody tr").first.locator("th, td").evaluate_all(ends) == headings


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


def test_an_analyst_goes_from_a_year_to_the_entity_that_matched(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("link", name="2031: 2").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 documents of 3")
    page.get_by_role("link", name="LOC", exact=True).click()
    page.get_by_role("link", name="On yard").click()
    expect(page.locator(".e:target")).to_have_text(re.compile("Goole"))
    page.get_by_role("link", name="2031-03-09").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("1 document of 3")
    page.get_by_role("link", name="remove 2031-03-09").click()
    page.get_by_role("link", name="date", exact=True).click()
    expect(page.locator("tbody th a").first).to_have_text("On yard")
    page.get_by_role("link", name="reverse").click()
    expect(page.locator("tbody th a").first).to_have_text("On fair")


def test_an_analyst_reads_who_a_name_is_by_keys_alone(visit: Visit) -> None:
    page = visit.open("/names")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Alan Baxter")
    expect(page.locator("#h-variants ~ ul li")).to_have_text(["Alan Baxter 1", "Baxter 1"])
    page.get_by_role("link", name="2031: 1").press("Enter")
    expect(page.locator(".lines li")).to_have_count(2)
    with page.expect_download() as download:
        page.get_by_role("link", name="This list as CSV").press("Enter")
    assert download.value.suggested_filename == "name.csv"
    page.keyboard.press("/")
    page.keyboard.type('"people came" OR closes')
    page.keyboard.press("Enter")
    expect(page.locator("mark")).to_have_text(["closes", "People came"])
    page.get_by_label("In entities of type").select_option("LOC")
    page.get_by_label("Words").fill("goole")
    page.keyboard.press("Enter")
    expect(page.locator(".lines .said")).to_have_text([re.compile("LOC")] * 3)


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


def test_marks_of_confidence_are_shown_by_one_switch_that_is_remembered(visit: Visit) -> None:
    page = visit.open("/document?id=yard")
    shown, uncertain = page.locator(".raw .mk:visible"), page.locator(".u").first
    line = "(word) => getComputedStyle(word).textDecorationLine"
    expect(page.get_by_text("7 marks on this page")).to_be_visible()
    expect(shown).to_have_count(0)
    assert uncertain.evaluate(line) == "none"
    page.keyboard.press("m")
    expect(shown).to_have_count(3)
    assert uncertain.evaluate(line) == "underline"
    page = visit.open("/name?name=Baxter")
    expect(page.locator(".said", has_text="0.60").first).to_be_visible()
    page.get_by_role("checkbox", name="Marks").uncheck()
    expect(page.locator(".mk:visible")).to_have_count(0)
    page = visit.open("/document?id=yard")
    expect(shown).to_have_count(0)
    page.get_by_text("7 marks on this page").click()
    expect(shown).to_have_count(3)


def test_pages_work_without_scripts(browser: Browser, address: str) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        visit = Visit(context, address)
        page = visit.open("/document?id=yard")
        page.locator("a.e", has_text="Baxter").first.click()
        expect(page.locator(".chosen")).to_have_count(3)
        page.locator("a.no").first.click(position={"x": 5, "y": 10})
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
            links = page.locator("main a:not([href$='csv=1'])").evaluate_all(
                "links => links.map(link => link.pathname + link.search)"
            )
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
