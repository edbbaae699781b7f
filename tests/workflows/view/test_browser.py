"""``concord view`` as people use it, in Chromium: ten flows, of which one looks at a page of each kind with axe-core.

What a server does without a browser is tested in the files beside this one.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from urllib.parse import quote

import pytest
from concord_testing import fakes, finished_runs, viewing
from concord_testing.browsing import Visit, accessibility_faults, rule_faults
from concord_testing.languages import write_languages
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from concord.pipeline.corrections.correction import log_path, read_log
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.report.html import COLOURS, write_report
from concord.workflows.view import viewer

pytestmark = pytest.mark.slow(reason="Chromium loads some twenty pages")

SELECT = """([from, to]) => {
  const node = [...document.querySelectorAll("article.raw .s")].flatMap((sentence) => {
    const walker = document.createTreeWalker(sentence, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) found.push(walker.currentNode);
    return found;
  }).find((node) => node.data.includes(from));
  const start = node.data.indexOf(from);
  document.getSelection().setBaseAndExtent(node, start, node, start + to);
}"""
PLACE = """([words, nth]) => {
  const nodes = [];
  const walker = document.createTreeWalker(document.querySelector("article.raw"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) if (walker.currentNode.data.includes(words)) nodes.push(walker.currentNode);
  const range = document.createRange();
  const start = nodes[nth].data.indexOf(words);
  range.setStart(nodes[nth], start);
  range.setEnd(nodes[nth], start + words.length);
  const { left, right, top, bottom } = range.getBoundingClientRect();
  return [left, right, (top + bottom) / 2];
}"""
BOUNDS = "(sheet) => { const { top, bottom } = sheet.getBoundingClientRect(); return [top, bottom]; }"
FITS = "document.documentElement.scrollWidth <= innerWidth"
HEBREW, DIRECTION = "\u05d9\u05e8\u05d5\u05e9\u05dc\u05d9\u05dd", "\u202eevil"
READING = (
    "/?label=ORG&order=meta.date&meta.section=yards",
    "/document?id=yard&name=Baxter&tree=0",
    "/document?id=cut",
    "/names",
    "/name?name=Goole&meta.date=2031",
    "/search?q=goole&label=LOC",
    "/sql?q=SELECT+*+FROM+entities",
    "/why?id=yard&name=Baxter",
    "/dead-letters",
)
CORRECTING = (
    "/document?id=yard&at=24-35",
    "/review",
    "/everywhere?text=Baxter&label=PER",
    "/corrections",
    "/differences",
)
WIDTHS = (360, 800, 1920)
TYPES = [f"TYPE_{number:02}" for number in range(1, 70)] + ["TYPE_" + "OF_A_VERY_LONG_NAME_" * 4]


@contextmanager
def visited(context: BrowserContext, output: Path, cache: Path, *, who: str | None = None) -> Iterator[Visit]:
    """Serve a collection to a window; it must request nothing else, and report no fault that is not cleared."""
    with viewing.served(output, cache, who=who) as url:
        visit = Visit(context, url)
        yield visit
        visit.page.close()
        assert visit.outside == []
        assert visit.messages == []


def logged(output: Path) -> list[tuple[str, str]]:
    return [(line.action, "" if line.action == "undo" else line.result.text) for line in read_log(log_path(output))]


def pressed(page: Page, *keys: str) -> None:
    """Press keys; the page that a correction leads to must be there before the next one."""
    for key in keys:
        if key in "ax123uAeEhHlL" or key.removeprefix("Shift+").startswith(("Digit", "Enter")):
            with page.expect_navigation():
                page.keyboard.press(key)
        else:
            page.keyboard.press(key)


def dragged(page: Page, first: tuple[str, int], last: tuple[str, int]) -> None:
    """Drag the mouse from the start of some words to the end of others; each is a text and the how manieth it is."""
    left, _, top = page.evaluate(PLACE, first)
    _, right, bottom = page.evaluate(PLACE, last)
    page.mouse.move(left + 1, top)
    page.mouse.down()
    page.mouse.move((left + right) / 2, (top + bottom) / 2, steps=4)
    page.mouse.move(right - 1, bottom, steps=4)
    page.mouse.up()


def look_at(page: Page, name: str, *, with_axe: bool = True) -> None:
    """Check a page in light with all marks, its contrasts in dark, and whether it fits a phone and wider screens."""
    page.set_viewport_size({"width": 1200, "height": 800})
    if page.locator("#marks").count():
        page.locator("#marks").check()
    assert (accessibility_faults(page) if with_axe else rule_faults(page)) == [], name
    page.emulate_media(color_scheme="dark")
    assert rule_faults(page) == [], name
    page.emulate_media(color_scheme="light")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(FITS), (name, width)


def test_a_reader_by_mouse(window: BrowserContext, news: Path, tmp_path: Path) -> None:
    with visited(window, news, tmp_path) as visit:
        # The page that the command opens leads to the collection.
        (tmp_path / "open.html").write_text(f'<meta http-equiv="refresh" content="0; url={visit.base}/">')
        page = visit.page
        assert "token" not in page.url
        ends = "cells => cells.map((cell) => Math.round(cell.getBoundingClientRect().right))"
        for path in ("/names", "/"):
            table = visit.open(path).locator("table")
            headings = table.locator("thead th").evaluate_all(ends)
            assert table.locator("tbody tr").first.locator("th, td").evaluate_all(ends) == headings
        page.get_by_role("link", name="2031: 1").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("1 document of 3")
        page.get_by_role("link", name="LOC", exact=True).click()
        page.get_by_role("link", name="On yard").click()
        expect(page.locator(".e:target")).to_have_text(re.compile("Goole"))
        page.locator("a.e", has_text="Baxter").first.hover()
        expect(page.locator("a.same")).to_have_count(4)
        page.locator("a.e", has_text="Baxter").first.click()
        page.locator("#names").get_by_role("link", name="All documents").click()
        expect(page.locator(".lines li")).to_have_count(2)
        page.get_by_role("searchbox", name="Search the texts").fill("goole")
        page.keyboard.press("Enter")
        page.get_by_role("radio", name="lemma").check()
        page.get_by_role("main").get_by_role("button", name="Search").click()
        expect(page.locator("mark")).to_have_count(4)
        page.get_by_role("link", name="On fair").first.click()
        expect(page.locator("#s0")).to_be_in_viewport()
        # One switch shows the marks on every page, and is remembered.
        page = visit.open("/document?id=yard")
        shown, uncertain = page.locator(".raw .mk:visible"), page.locator(".u").first
        line = "(word) => getComputedStyle(word).textDecorationLine"
        expect(shown).to_have_count(0)
        assert uncertain.evaluate(line) == "none"
        page.get_by_text("7 marks on this page").click()
        expect(shown).to_have_count(3)
        assert uncertain.evaluate(line) == "underline"
        page = visit.open("/name?name=Baxter")
        expect(page.locator(".said", has_text="0.60").first).to_be_visible()
        page.get_by_role("checkbox", name="Marks").uncheck()
        expect(page.locator(".mk:visible")).to_have_count(0)


def test_a_reader_by_keys_alone(window: BrowserContext, news: Path, tmp_path: Path) -> None:
    with visited(window, news, tmp_path) as visit:
        page, heading = visit.page, visit.page.get_by_role("heading", level=1)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        for key in ("j", "j", "k", "Enter"):
            page.keyboard.press(key)
        expect(heading).to_have_text("On yard")
        page.keyboard.press("m")
        expect(page.locator(".raw .mk:visible")).to_have_count(3)
        page.keyboard.press("j")
        expect(page.locator("a.same").first).to_be_visible()
        page.keyboard.press("n")
        expect(heading).to_have_text("On fair")
        page.keyboard.press("/")
        page.keyboard.type("Baxter j k")
        expect(page.get_by_role("searchbox", name="Search the texts")).to_have_value("Baxter j k")
        page.keyboard.press("Escape")
        page.keyboard.press("p")
        expect(heading).to_have_text("On yard")
        page = visit.open("/names")
        for key in ("j", "j", "Enter"):
            page.keyboard.press(key)
        expect(heading).to_have_text("Alan Baxter")
        with page.expect_download() as download:
            page.get_by_role("link", name="This list as CSV").press("Enter")
        assert download.value.suggested_filename == "name.csv"
        page.keyboard.press("/")
        page.keyboard.type('"people came" OR closes')
        page.keyboard.press("Enter")
        expect(page.locator("mark")).to_have_text(["closes", "People came"])


def test_a_document_is_corrected_by_mouse_and_touch(browser: Browser, output: Path, tmp_path: Path) -> None:
    with (
        browser.new_context() as ada,
        browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 800}) as phone,
        visited(ada, output, tmp_path / "cache", who="ada") as visit,
    ):
        page = visit.open("/document?id=yard")
        second = Visit(phone, f"{visit.base}/?token={viewing.TOKEN}").open("/document?id=yard")
        page.locator("a.e", has_text="Alan Baxter").click()
        page.locator("#correct").get_by_role("button", name="ORG").click()
        expect(page.locator("#correct li")).to_contain_text("Alan Baxter: PER to ORG")
        # On a phone the card is a sheet at the bottom: low until words are chosen.
        sheet, name = second.locator("#correct"), second.locator("a.e", has_text="Alan Baxter")
        top, bottom = sheet.evaluate(BOUNDS)
        assert (top > 700, bottom) == (True, 800)
        name.tap()
        expect(second.locator("#chosen")).to_have_text("Alan Baxter ORG")
        second.go_back()
        page.get_by_role("button", name="Undo the last step").click()
        expect(page.locator("a.e", has_text="Alan Baxter")).to_contain_text("PER")
        # A name that is touched is text to select; headless Chromium opens no menu and selects no word by itself.
        second.reload()
        left, right, middle = second.evaluate(PLACE, ["Alan", 0])
        chrome = phone.new_cdp_session(second)
        touch = {"x": (left + right) / 2, "y": middle}
        chrome.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [touch]})
        expect(name).not_to_have_attribute("href", re.compile("."))
        second.evaluate(SELECT, ["Alan", 4])
        chrome.send("Input.dispatchTouchEvent", {"type": "touchCancel", "touchPoints": []})
        expect(name).to_have_attribute("href", re.compile("at=24-35"))
        expect(second.locator("#chosen b")).to_have_text("Alan")
        top, bottom = sheet.evaluate(BOUNDS)
        assert (400 < top < 700, bottom) == (True, 800)
        sheet.get_by_role("button", name="LOC").tap()
        expect(second.locator("a.e", has_text="Alan")).to_contain_text("LOC corrected")
        # The first window has not seen that.
        page.locator("a.e", has_text="Alan Baxter").click()
        page.locator("#correct").get_by_role("button", name="LOC").click()
        expect(page.get_by_text("ada has changed 'Alan Baxter' since this page was loaded")).to_be_visible()
        visit.messages.clear()
        page.get_by_role("link", name="Back").click()
        expect(page.locator("a.e", has_text="Alan")).to_contain_text("LOC corrected")
        # From a dashed box on into plain words.
        page = visit.open("/document?id=yard")
        dragged(page, ("Goole", 1), ("closed", 0))
        expect(page.locator("#chosen")).to_have_text("Goole closed no entity")
        page.locator("#correct").get_by_role("button", name="ORG").click()
        expect(page.locator("a.e", has_text="Goole closed")).to_contain_text("ORG corrected")
        page = visit.open("/everywhere?text=Baxter&label=ORG")
        whole, within = page.get_by_role("group", name="not that yet"), page.get_by_role("group", name="longer names")
        ticked = page.locator("input:checked")
        whole.get_by_role("checkbox").first.uncheck()
        whole.get_by_role("button", name="Invert").click()
        expect(ticked).to_have_count(1)
        whole.get_by_role("button", name="None").click()
        expect(ticked).to_have_count(0)
        whole.get_by_role("button", name="All").click()
        expect(within.get_by_role("checkbox", checked=True)).to_have_count(0)
        page.get_by_role("button", name="Correct those that are ticked").click()
        expect(whole).to_have_count(0)
    lines = logged(output)
    assert lines[:3] == [("relabel", "Alan Baxter"), ("undo", ""), ("relabel", "Alan")]
    assert ("add", "Goole closed") in lines
    assert ("accept", "Baxter") in lines


def test_a_document_is_corrected_by_keys_alone(window: BrowserContext, tmp_path: Path) -> None:
    words = " ".join(f"Word{number}|B-{kind}" for number, kind in enumerate(TYPES))
    documents = {**viewing.NEWS, "many": (words, "Baxter|B-TYPE_01 left ~.")}
    output = finished_runs.write_run(tmp_path / "out", documents, keep_text=True)
    with visited(window, output, tmp_path / "cache", who="ada") as visit:
        page = visit.open("/document?id=yard")
        pressed(page, "j", "a")
        expect(page.locator("a.e").first).to_be_focused()
        pressed(page, "j", "x")
        # A key that is held down writes once.
        page.dispatch_event("body", "keydown", {"key": "u", "repeat": True, "bubbles": True})
        pressed(page, "u")
        # The words after the first sentences: a cursor, and two words with Shift.
        page.goto(page.url.partition("#")[0] + "#s3")
        pressed(page, "ArrowRight", "Shift+ArrowRight")
        expect(page.locator("#chosen")).to_contain_text("Nobody called")
        pressed(page, "3")
        assert [action for action, _ in logged(output)] == ["accept", "drop", "undo", "add"]
        page.locator("a.e", has_text="Alan Baxter").focus()
        for key, chosen in (("L", "Alan"), ("l", "Alan Baxter"), ("l", "Alan Baxter runs"), ("H", "Baxter runs")):
            pressed(page, key)
            expect(page.locator("#chosen")).to_have_text(re.compile(f"^{chosen} "))
            expect(page.locator("a.e:focus")).to_contain_text(chosen)
        page.locator("a.m").first.focus()
        expect(page.locator("#bounds").get_by_role("button", disabled=True)).to_have_count(4)
        page.locator("a.e", has_text="Goole").first.focus()
        page.keyboard.press("Shift+ArrowLeft")
        expect(page.locator("#chosen b")).to_have_text("in Goole")
        # Types beyond the first nine have the same keys with Shift; others are named.
        page = visit.open("/document?id=many")
        expect(page.locator("#correct [data-number]")).to_have_count(18)
        baxter = page.locator("a.e", has_text="Baxter")
        baxter.focus()
        number = page.locator("#correct [data-number='18']").get_attribute("value")
        pressed(page, "Shift+Digit9")
        expect(page.locator("a.e:focus")).to_contain_text(f"{number} corrected")
        page.keyboard.press("t")
        page.keyboard.type("TYPE_69")
        pressed(page, "Enter")
        expect(baxter).to_contain_text("TYPE_69 corrected")
        looks = page.locator(".legend .e").evaluate_all("all => all.map((one) => one.className)")
        assert len(set(looks)) == COLOURS
        look_at(page, "many types", with_axe=False)
        pressed(page, "e")
        expect(page.get_by_role("heading", level=1)).to_have_text("Baxter as TYPE_69")


def open_card(visit: Visit) -> Page:
    """Show the first card of the queue, and count the pages that are loaded from then on."""
    page = visit.open("/review")
    expect(page.get_by_role("heading", name="Is Baxter ORG?")).to_be_visible()
    page.evaluate("window.isSamePage = true")
    return page


def expect_card(page: Page, rank: int, done: int) -> None:
    expect(page.get_by_text(re.compile(rf"{rank} of 6(, \w+)?: the least certain is"))).to_be_visible()
    expect(page.get_by_text(f"{done} of 6 sentences done")).to_be_visible(timeout=20_000)
    assert page.evaluate("window.isSamePage")


def test_the_queue_is_worked_through_by_keys_alone(window: BrowserContext, output: Path, tmp_path: Path) -> None:
    with visited(window, output, tmp_path / "cache", who="ada") as visit:
        page = open_card(visit)
        expect(page.locator("a.asked")).to_be_focused()
        expect(page.get_by_role("button", name="Accept it, go on")).to_be_in_viewport(ratio=1)
        page.keyboard.press("3")
        expect(page.get_by_role("heading", name="Is Baxter PER?")).to_be_visible()
        expect_card(page, 1, 1)
        page.keyboard.press("A")
        expect_card(page, 2, 1)
        page.keyboard.press("u")
        # What is undone is asked again, and what was accepted first is undone first.
        expect_card(page, 1, 0)
        page.keyboard.press("1")
        expect_card(page, 1, 1)
        page.keyboard.press("Space")
        expect_card(page, 2, 1)
        # A flag with a comment, then two words that are an entity, then a name that is made shorter.
        page.keyboard.press("c")
        page.keyboard.type("where is it? u x")
        page.keyboard.press("Enter")
        expect_card(page, 3, 2)
        expect(page.get_by_role("link", name="2 flagged Goole waits.")).to_be_visible()
        page.keyboard.press("L")
        expect(page.locator("#chosen")).to_have_text("Alan PER")
        page.keyboard.press("A")
        expect_card(page, 4, 3)
        for key in ("ArrowRight", "Shift+ArrowRight"):
            page.keyboard.press(key)
        expect(page.locator("#chosen")).to_have_text("Nobody called no entity")
        page.keyboard.press("t")
        page.keyboard.type("Ghost")
        page.keyboard.press("Enter")
        expect(page.locator("a.e", has_text="Nobody called")).to_contain_text("Ghost corrected")
        page.keyboard.press("p")
        expect_card(page, 3, 4)
        for rank in (5, 6):
            page.keyboard.press("A")
            expect_card(page, rank, rank - 1)
        page.keyboard.press("A")
        expect(page.get_by_text("People have said something about every sentence.")).to_be_visible()
        page.get_by_role("button", name="Undo the last step").press("Enter")
        expect_card(page, 6, 5)
    assert [action for action, _ in logged(output)] == [
        *("relabel", "undo", "relabel", "flag", "relabel", "accept", "add"),
        *("accept", "accept", "accept", "undo"),
    ]


def test_differences_and_the_queue_are_worked_through_by_mouse_alone(
    window: BrowserContext, differing: Path, tmp_path: Path
) -> None:
    with visited(window, differing, tmp_path / "cache", who="cleo") as visit:
        page = visit.open("/corrections")
        page.get_by_role("link", name="Where people differ").click()
        page.locator("section").last.get_by_role("button", name="This of ada").click()
        expect(page.locator("h1")).to_have_text("1 difference to settle")
        # A browser changes its tab by this.
        page.keyboard.press("Control+2")
        with page.expect_navigation():
            page.keyboard.press("2")
        expect(page.locator("h1")).to_have_text("0 differences to settle")
        page = visit.open("/corrections")
        page.get_by_role("button", name="Undo: Baxter").first.click()
        expect(page.get_by_role("button", name="Undo: Baxter").first).to_be_visible()
        settled = [(one.who, one.action, one.settles) for one in read_log(log_path(differing))[5:]]
        assert settled[:3] == [("cleo", "relabel", True), ("cleo", "add", True), ("cleo", "accept", True)]
        log_path(differing).unlink()
        page = open_card(visit)
        page.locator("#correct").get_by_role("button", name="PER").click()
        expect(page.locator("a.asked")).to_contain_text("PER corrected")
        # The last step is undone while it is written, and the next card, fetched ahead, does not wait for it.
        page.evaluate("""() => {
          const send = window.fetch;
          const later = (...request) => new Promise((resolve) => setTimeout(() => resolve(send(...request)), 500));
          window.fetch = (address, options) => (options ? later : send)(address, options);
        }""")
        page.wait_for_load_state("networkidle")
        page.get_by_role("button", name="Accept it, go on").click()
        expect(page.get_by_text(re.compile("2 of 6"))).to_be_visible()
        page.get_by_role("button", name="Undo the last step").click()
        expect_card(page, 1, 0)
        # Nothing is accepted in a sentence whose only name was corrected.
        assert [action for action, _ in logged(differing)] == ["relabel", "undo"]
        page.get_by_role("link", name="3 Alan Baxter runs").click()
        expect_card(page, 3, 0)
        dragged(page, ("Alan", 0), ("Alan", 0))
        expect(page.locator("#chosen")).to_have_text("Alan no entity")
        page.locator("#correct").get_by_role("button", name="LOC").click()
        expect(page.locator("a.e", has_text="Alan")).to_contain_text("LOC corrected")
        page.get_by_role("link", name="Space Skip").click()
        expect_card(page, 4, 1)
        page.get_by_role("textbox", name="Comment").fill("who?")
        page.get_by_role("button", name="Flag, go on").click()
        expect_card(page, 5, 2)
        page.locator("a.e", has_text="Goole").click()
        page.get_by_role("button", name="In all").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Goole as LOC")
    assert [action for action, _ in logged(differing)] == ["relabel", "undo", "relabel", "flag"]


def answer_fetches(page: Page, path: str, *, status: int, body: str) -> None:
    """Answer what scripts ask of a path instead of the server."""

    def answer(route: Route) -> None:
        if route.request.resource_type == "fetch":
            route.fulfill(status=status, body=body, content_type="text/html")
        else:
            route.continue_()

    page.route(lambda url: path in url, answer)


def test_the_queue_says_what_is_not_written(
    window: BrowserContext, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with visited(window, output, tmp_path / "cache", who="ada") as visit:
        page, chosen = open_card(visit), visit.page.locator("#chosen")
        page.context.set_offline(True)
        page.keyboard.press("A")
        expect(chosen).to_contain_text("The server does not answer: the last step was not written.")
        page.context.set_offline(False)
        # Something else answers: a proxy that asks who it is, or a server that was started again.
        answer_fetches(page, "/review", status=403, body="403: open the address that was printed.\n")
        open_card(visit)
        page.keyboard.press("Space")
        expect(chosen).to_have_text("403: open the address that was printed: the next sentence is not shown.")
        answer_fetches(page, "/correct-places", status=200, body="<h1>Sign in</h1>")
        page.keyboard.press("A")
        expect(chosen).to_have_text("Something else than this server answers: the last step was not written.")
        page.unroute_all()
        assert logged(output) == []
        # Another generation is published meanwhile.
        folder = OutputFolder(output)
        current = folder.generations.current()
        assert current is not None
        folder.generations.publish(replace(current.manifest(), generation=1), current.folder / "plan.json")
        monkeypatch.setattr("concord.workflows.view.index.opened._LOOK_SECONDS", -1.0)
        select, may_go_on = viewer._select, Event()
        monkeypatch.setattr(viewer, "_select", lambda *queue: may_go_on.wait(60) and select(*queue))
        # Until the server has seen the new generation, it still writes what is said of the one before.
        seen = "fetch('/names').then((answer) => answer.text()).then((html) => html.includes('Generation 1 of'))"
        page.wait_for_function(f"() => {seen}")
        page.keyboard.press("A")
        expect(page.get_by_text("the collection has changed since this page was loaded")).to_be_visible()
        page.get_by_role("link", name="Back").click()
        expect(page.get_by_text("The sentences are being selected.")).to_be_visible()
        may_go_on.set()
        expect(page.get_by_text(re.compile("^2 of 6: the least certain is"))).to_be_visible()
        page.keyboard.press("A")
        expect(page.get_by_text("1 of 6 sentences done")).to_be_visible()
        visit.messages.clear()
    assert [action for action, _ in logged(output)] == ["accept"]


def test_hostile_text_is_read_and_corrected_and_runs_nothing(window: BrowserContext, tmp_path: Path) -> None:
    output = viewing.write_hostile(tmp_path / "out")
    with visited(window, output, tmp_path / "cache", who="ada") as visit:

        def check(page: Page) -> None:
            assert page.evaluate("document.body.dataset.ran") is None
            assert page.locator("img, marquee").count() == 0

        for path in ("/names", "/dead-letters", "/search?q=met", "/"):
            page = visit.open(path)
            check(page)
        page.get_by_role("link", name="On <img").click()
        # A script, right-to-left letters, an override of the direction, and combining characters.
        for words in (viewing.SCRIPT, HEBREW, DIRECTION, "a\u0301\u0323\u0308", "Zu\u0308rich"):
            page.locator("a.e", has_text=words).first.focus()
            pressed(page, "a")
            assert read_log(log_path(output))[-1].result.text == words
        page.evaluate(SELECT, ["\u05e2\u05d9\u05e8", 1])
        expect(page.locator("#chosen b")).to_have_text("\u05e2")
        pressed(page, "2")
        assert logged(output)[-1] == ("add", "\u05e2\u05d9\u05e8")
        page.locator("a.e", has_text=viewing.SCRIPT).first.focus()
        pressed(page, "E")
        check(page)
    # The report has no script that a policy would stop: without the policy only the escaping does.
    report = write_report(OutputFolder(output))
    bare = re.sub(r"<meta http-equiv=[^>]+>", "", Path(str(report)).read_text(encoding="utf-8"))
    (tmp_path / "bare.html").write_text(bare, encoding="utf-8")
    (tmp_path / "canary.html").write_text(f"<body><h1>{viewing.SCRIPT}</h1></body>")
    with window.new_page() as page:
        page.goto((tmp_path / "canary.html").as_uri())
        assert page.evaluate("document.body.dataset.ran") == "yes"
        page.goto((tmp_path / "bare.html").as_uri())
        check(page)


def look_at_all(visit: Visit, paths: Sequence[str]) -> None:
    for path in paths:
        page = visit.open(path)
        expect(page.get_by_text("are being selected")).to_have_count(0, timeout=20_000)
        look_at(page, path)


@pytest.mark.slow(reason="axe-core reads fifteen pages in Chromium")
def test_every_page_is_accessible_and_fits(
    window: BrowserContext, news: Path, differing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "_load", lambda plan: fakes.AttentiveTagger())
    with visited(window, news, tmp_path / "news") as visit:
        look_at_all(visit, READING)
    with visited(window, differing, tmp_path / "differing", who="cleo") as visit:
        look_at_all(visit, CORRECTING)
    with window.new_page() as page:
        page.goto((news / "_run" / "report.html").as_uri())
        look_at(page, "report.html")


def test_text_from_right_to_left_starts_at_the_right_edge(window: BrowserContext, tmp_path: Path) -> None:
    languages = write_languages(tmp_path / "languages")
    with visited(window, languages, tmp_path / "scripts", who="ada") as visit:
        visit.page.set_viewport_size({"width": WIDTHS[0], "height": 800})
        for path in (f"/search?q={quote('שלום')}", "/document?id=ar-maktaba"):
            assert visit.open(path).evaluate(FITS), path
        direction, right, left = visit.page.locator(".par").first.evaluate(
            """par => {
                const box = par.getBoundingClientRect(), number = par.querySelector(".no").getBoundingClientRect();
                return [getComputedStyle(par).direction, box.right - number.right, number.left - box.left];
            }"""
        )
        assert (direction, abs(right) < 20 < left) == ("rtl", True)
