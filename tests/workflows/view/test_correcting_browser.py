"""Correcting as a person does it, in Chromium: by mouse, by keys alone, in two windows, and in hostile documents."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from concord_testing import finished_runs, viewing
from concord_testing.browsing import Visit
from playwright.sync_api import Browser, Page, expect

from concord.pipeline.corrections.log import log_path, read_log

pytestmark = pytest.mark.slow

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


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Write a small collection."""
    return finished_runs.write_run(tmp_path / "out", viewing.NEWS, keep_text=True)


@pytest.fixture
def address(output: Path, tmp_path: Path) -> Iterator[str]:
    """Serve it for correcting."""
    with viewing.served(output, tmp_path / "cache", who="ada") as url:
        yield url


def logged(output: Path) -> list[tuple[str, str]]:
    return [(line.action, "" if line.action == "undo" else line.result.text) for line in read_log(log_path(output))]


def pressed(page: Page, *keys: str) -> None:
    """Press keys; the page that a correction leads to must be there before the next one."""
    for key in keys:
        if key in "ax123uAeEhHlL":
            with page.expect_navigation():
                page.keyboard.press(key)
        else:
            page.keyboard.press(key)


def test_a_name_is_corrected_and_undone_by_mouse(visit: Visit, output: Path) -> None:
    page = visit.open("/document?id=yard")
    page.locator("a.e", has_text="Alan Baxter").click()
    page.locator("#correct").get_by_role("button", name="ORG").click()
    expect(page.locator("a.e", has_text="Alan Baxter")).to_contain_text("ORG corrected")
    expect(page.locator("#correct li")).to_contain_text("Alan Baxter: PER to ORG")
    page.get_by_role("button", name="Undo the last step").click()
    expect(page.locator("a.e", has_text="Alan Baxter")).to_contain_text("PER")
    assert logged(output) == [("relabel", "Alan Baxter"), ("undo", "")]


def test_enter_uses_the_other_type(visit: Visit, output: Path) -> None:
    page = visit.open("/document?id=yard&at=24-35")
    page.get_by_label("Another type").fill("SHIP")
    page.get_by_label("Another type").press("Enter")
    expect(page.locator("a.e", has_text="Alan Baxter")).to_contain_text("SHIP corrected")
    assert logged(output) == [("relabel", "Alan Baxter")]


def dragged(page: Page, first: tuple[str, int], last: tuple[str, int]) -> None:
    """Drag the mouse from the start of some words to the end of others; each is a text and the how manieth it is."""
    left, _, top = page.evaluate(PLACE, first)
    _, right, bottom = page.evaluate(PLACE, last)
    page.mouse.move(left + 1, top)
    page.mouse.down()
    page.mouse.move((left + right) / 2, (top + bottom) / 2, steps=4)
    page.mouse.move(right - 1, bottom, steps=4)
    page.mouse.up()


def test_words_are_dragged_over_from_inside_a_name(visit: Visit, output: Path) -> None:
    page = visit.open("/document?id=yard")
    dragged(page, ("Alan", 0), ("Alan", 0))
    expect(page.locator("#chosen")).to_have_text("Alan no entity")
    pressed(page, "1")
    expect(page.locator("a.e", has_text="Alan")).to_contain_text("LOC corrected")
    # From a dashed box on into plain words, and from there back into it.
    expect(page.locator("a.m", has_text="Goole")).to_have_count(1)
    dragged(page, ("Goole", 1), ("closed", 0))
    expect(page.locator("#chosen")).to_have_text("Goole closed no entity")
    pressed(page, "2")
    assert [(line.action, line.result.text) for line in read_log(log_path(output))] == [
        ("relabel", "Alan"),
        ("add", "Goole closed"),
    ]
    page.locator("a.e", has_text="Goole").first.click()
    expect(page.locator("#chosen")).to_have_text("Goole LOC")


def test_a_name_that_is_touched_is_text_to_select(browser: Browser, address: str, output: Path) -> None:
    with browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 800}) as context:
        page = Visit(context, address).open("/document?id=yard")
        left, right, middle = page.evaluate(PLACE, ["Alan", 0])
        touch = {"x": (left + right) / 2, "y": middle}
        chrome = context.new_cdp_session(page)
        chrome.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [touch]})
        # A long touch opens the menu of a link and selects a word of a text; headless Chromium does neither.
        name = page.locator("a.e", has_text="Alan Baxter")
        expect(name).not_to_have_attribute("href", re.compile("."))
        page.evaluate(SELECT, ["Alan", 4])
        chrome.send("Input.dispatchTouchEvent", {"type": "touchCancel", "touchPoints": []})
        expect(name).to_have_attribute("href", re.compile("at=24-35"))
        expect(page.locator("#chosen b")).to_have_text("Alan")
        page.locator("#correct").get_by_role("button", name="LOC").tap()
        expect(page.locator("a.e", has_text="Alan")).to_contain_text("LOC corrected")
        page.locator("a.e", has_text="Goole").first.tap()
        expect(page.locator("#chosen")).to_have_text("Goole LOC")
    assert logged(output) == [("relabel", "Alan")]


def test_an_entity_is_made_longer_and_shorter_by_one_key(visit: Visit, output: Path) -> None:
    page = visit.open("/document?id=yard")
    page.locator("a.e", has_text="Alan Baxter").focus()
    for key, words in (("L", "Alan"), ("l", "Alan Baxter"), ("l", "Alan Baxter runs"), ("H", "Baxter runs")):
        pressed(page, key)
        expect(page.locator("#chosen")).to_have_text(f"{words} PER")
        expect(page.locator("a.e:focus")).to_contain_text(words)
    pressed(page, "h")
    # Its sentence has no word before it.
    pressed(page, "h")
    expect(page.locator("#chosen")).to_have_text("Alan Baxter runs PER")
    assert [text for _, text in logged(output)] == [
        "Alan",
        "Alan Baxter",
        "Alan Baxter runs",
        "Baxter runs",
        "Alan Baxter runs",
    ]
    page.locator("a.m").first.focus()
    page.keyboard.press("h")
    expect(page.locator("#bounds").get_by_role("button", disabled=True)).to_have_count(4)


def test_shift_and_arrows_go_on_from_a_name_and_from_a_selection(visit: Visit, output: Path) -> None:
    page = visit.open("/document?id=yard")
    chosen = page.locator("#chosen b")
    page.locator("a.e", has_text="Alan Baxter").focus()
    page.keyboard.press("Shift+ArrowLeft")
    expect(chosen).to_have_text("Alan")
    page.locator("a.m", has_text="Goole").focus()
    page.keyboard.press("Shift+ArrowRight")
    expect(chosen).to_have_text("Goole closed")
    dragged(page, ("closes", 0), ("closes", 0))
    expect(chosen).to_have_text("closes")
    page.keyboard.press("Shift+ArrowRight")
    expect(chosen).to_have_text("closes the")


def test_words_are_selected_and_added(visit: Visit, output: Path) -> None:
    page = visit.open("/document?id=yard")
    page.evaluate(SELECT, ["Nobody called", 9])
    expect(page.locator("#chosen")).to_contain_text("Nobody ca")
    page.locator("#correct").get_by_role("button", name="PER").click()
    expect(page.locator("a.e", has_text="Nobody called")).to_contain_text("PER corrected")
    assert logged(output) == [("add", "Nobody called")]


def test_everything_is_corrected_by_keys_alone(visit: Visit, output: Path) -> None:
    page = visit.open("/document?id=yard")
    pressed(page, "j", "a")
    expect(page.locator("a.e").first).to_be_focused()
    pressed(page, "j", "x")
    expect(page.locator("a.e").first).to_contain_text("corrected")
    pressed(page, "u")
    # The words after the first sentence: a cursor, and two words with Shift.
    page.goto(page.url.partition("#")[0] + "#s3")
    pressed(page, "ArrowRight", "Shift+ArrowRight")
    expect(page.locator("#chosen")).to_contain_text("Nobody called")
    pressed(page, "3")
    expect(page.locator("a.e", has_text="Nobody called")).to_contain_text("PER corrected")
    assert [action for action, _ in logged(output)] == ["accept", "drop", "undo", "add"]
    page.locator("a.e", has_text="Baxter").first.focus()
    pressed(page, "e")
    expect(page.get_by_role("heading", level=1)).to_have_text("Baxter as ORG")
    page.get_by_role("button", name="Correct those that are ticked").press("Enter")
    expect(page.get_by_text("not that yet")).to_have_count(0)
    expect(page.get_by_text("1 in longer names")).to_be_visible()


def test_a_place_in_a_longer_name_is_corrected_only_if_it_is_ticked(visit: Visit, output: Path) -> None:
    page = visit.open("/everywhere?text=Baxter&label=ORG")
    whole, within = page.get_by_role("group", name="not that yet"), page.get_by_role("group", name="in longer names")
    ticked = page.locator("input:checked")
    expect(whole.get_by_role("checkbox")).to_have_count(3)
    expect(within.get_by_role("listitem")).to_contain_text("Alan Baxter PER")
    expect(ticked).to_have_count(3)
    whole.get_by_role("checkbox").first.uncheck()
    whole.get_by_role("button", name="Invert").click()
    expect(ticked).to_have_count(1)
    whole.get_by_role("button", name="None").click()
    expect(ticked).to_have_count(0)
    whole.get_by_role("button", name="All").click()
    expect(ticked).to_have_count(3)
    page.get_by_role("button", name="Correct those that are ticked").click()
    expect(whole).to_have_count(0)
    assert [line.result.text for line in read_log(log_path(output))] == ["Baxter"] * 3
    within.get_by_role("button", name="All").click()
    page.get_by_role("button", name="Correct those that are ticked").click()
    expect(page.get_by_text("No other place is left")).to_be_visible()
    line = read_log(log_path(output))[-1]
    assert line.old is not None
    assert (line.old.text, line.result.text) == ("Alan Baxter", "Baxter")


def test_a_key_that_is_held_down_writes_once(visit: Visit, output: Path) -> None:
    page = visit.open("/document?id=yard")
    pressed(page, "j", "a", "j", "a")
    page.dispatch_event("body", "keydown", {"key": "u", "repeat": True, "bubbles": True})
    pressed(page, "u")
    assert [action for action, _ in logged(output)] == ["accept", "accept", "undo"]
    page.dispatch_event("body", "keydown", {"key": "u", "repeat": True, "bubbles": True})
    page.wait_for_timeout(300)
    assert [action for action, _ in logged(output)] == ["accept", "accept", "undo"]


def test_two_windows_see_each_other(browser: Browser, address: str, output: Path) -> None:
    with browser.new_context() as ada, browser.new_context() as bob:
        first, second = (Visit(context, address).open("/document?id=yard") for context in (ada, bob))
        for page in (first, second):
            page.locator("a.e").first.focus()
        pressed(first, "3")
        pressed(second, "x")
        expect(second.get_by_role("heading", level=1)).to_have_text("Not corrected")
        expect(second.get_by_text("ada has changed 'Baxter'")).to_be_visible()
        second.get_by_role("link", name="Back").click()
        expect(second.locator("a.e").first).to_contain_text("PER corrected")
    assert logged(output) == [("relabel", "Baxter")]


def test_a_reader_without_scripts_corrects_entities(browser: Browser, address: str, output: Path) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = Visit(context, address).open("/document?id=yard")
        page.locator("a.e", has_text="Alan Baxter").click()
        page.get_by_role("button", name="Start shorter").click()
        page.get_by_role("button", name="Start longer").click()
        expect(page.locator("#chosen")).to_have_text("Alan Baxter PER")
        page.locator("a.e", has_text="Baxter").first.click()
        page.locator("#correct").get_by_role("button", name="Accept ORG").click()
        page.locator("a.m").first.click()
        page.locator("#correct").get_by_role("button", name="LOC").click()
        page.get_by_label("Words everywhere").fill("Nobody")
        page.get_by_role("button", name="List").click()
        page.get_by_role("button", name="Correct those that are ticked").click()
        expect(page.get_by_text("No other place is left")).to_be_visible()
    assert [action for action, _ in logged(output)] == ["relabel", "relabel", "accept", "add", "add"]


def test_the_queue_is_walked_by_keys(visit: Visit, output: Path) -> None:
    page = visit.open("/review")
    page.get_by_role("link", name="Go on with sentence 1").click()
    expect(page.get_by_text("Sentence 1 of 6")).to_be_visible()
    pressed(page, "A")
    expect(page.get_by_text("Sentence 2 of 6")).to_be_visible()
    page.keyboard.press(" ")
    expect(page.get_by_text("Sentence 3 of 6")).to_be_visible()
    visit.open("/review")
    expect(page.get_by_text("about 1 of 6")).to_be_visible()
    assert {action for action, _ in logged(output)} == {"accept"}


def test_hostile_words_are_corrected_and_run_nothing(browser: Browser, tmp_path: Path) -> None:
    output = viewing.write_hostile(tmp_path / "out")
    with viewing.served(output, tmp_path / "cache", who="ada") as url, browser.new_context() as context:
        visit = Visit(context, url)
        page = visit.page
        page.get_by_role("link", name="On <img").click()
        # A script, right-to-left letters, an override of the direction, and combining characters.
        for words in (
            viewing.SCRIPT,
            "\u05d9\u05e8\u05d5\u05e9\u05dc\u05d9\u05dd",
            "\u202eevil",
            "a\u0301\u0323\u0308",
            "Zu\u0308rich",
        ):
            page.locator("a.e", has_text=words).first.focus()
            pressed(page, "a")
            assert read_log(log_path(output))[-1].result.text == words
        page.evaluate(SELECT, ["\u05e2\u05d9\u05e8", 1])
        expect(page.locator("#chosen b")).to_have_text("\u05e2")
        pressed(page, "2")
        assert logged(output)[-1] == ("add", "\u05e2\u05d9\u05e8")
        page.locator("a.e", has_text=viewing.SCRIPT).first.focus()
        pressed(page, "E")
        assert page.evaluate("document.body.dataset.ran") is None
        assert page.locator("img, marquee").count() == 0
        assert visit.outside == []
        assert visit.messages == []


def test_a_document_of_ten_thousand_entities_is_corrected(browser: Browser, tmp_path: Path) -> None:
    output = viewing.write_long(tmp_path / "out", entities=5_000)
    with viewing.served(output, tmp_path / "cache", who="ada") as url, browser.new_context() as context:
        visit = Visit(context, url)
        context.set_default_timeout(120_000)
        page = visit.open("/document?id=long&sentence=4999")
        page.locator("a.e", has_text="Baxter").last.focus()
        pressed(page, "a")
        expect(page.locator("a.e", has_text="Baxter").last).to_contain_text("corrected")
        page.goto(url.partition("/?")[0] + "/everywhere?text=Baxter&label=LOC&id=long")
        page.get_by_role("button", name="Correct those that are ticked").click()
        expect(page.get_by_text("and more, which are listed when these are done")).to_be_visible()
    assert len(logged(output)) == 501
