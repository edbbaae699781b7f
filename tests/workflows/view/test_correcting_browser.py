"""Correcting as a person does it, in Chromium: by mouse, by keys alone, in two windows, and in hostile documents."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from concord_testing import finished_runs, viewing
from concord_testing.browsing import Visit
from playwright.sync_api import Browser, Page, Route, expect

from concord.pipeline.corrections.log import log_path, read_log
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.report.type_colours import COLOURS
from concord.workflows.view.correcting import review_queue

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
        if key in "ax123uAeEhHlL" or key.removeprefix("Shift+").startswith(("Digit", "Enter")):
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
        page.get_by_role("button", name="In all").click()
        page.get_by_role("button", name="Correct those that are ticked").click()
        expect(page.get_by_text("No other place is left")).to_be_visible()
    assert [action for action, _ in logged(output)] == ["relabel", "relabel", "accept", "add", "add"]


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


def test_the_queue_is_worked_through_by_keys_alone(visit: Visit, output: Path) -> None:
    page = open_card(visit)
    expect(page.locator("a.asked")).to_be_focused()
    expect(page.get_by_role("button", name="Accept it, go on")).to_be_in_viewport(ratio=1)
    assert page.evaluate("scrollY") == 0
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


def test_the_queue_is_worked_through_by_mouse_alone(visit: Visit, output: Path) -> None:
    page = open_card(visit)
    page.locator("#correct").get_by_role("button", name="PER").click()
    expect(page.locator("a.asked")).to_contain_text("PER corrected")
    page.get_by_role("button", name="Accept it, go on").click()
    expect_card(page, 2, 1)
    page.get_by_role("button", name="Undo the last step").click()
    expect_card(page, 1, 0)
    page.get_by_role("link", name="3 Alan Baxter runs").click()
    expect_card(page, 3, 0)
    page.locator("a.e", has_text="Alan Baxter").click()
    expect(page.locator("#chosen")).to_have_text("Alan Baxter PER")
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
    assert [action for action, _ in logged(output)] == ["relabel", "undo", "relabel", "flag"]


def test_the_last_step_is_undone_while_it_is_written(visit: Visit, output: Path) -> None:
    page = open_card(visit)
    page.keyboard.press("3")
    expect(page.locator("a.asked")).to_contain_text("PER corrected")
    page.evaluate("""() => {
      const send = window.fetch;
      const later = (...request) => new Promise((resolve) => setTimeout(() => resolve(send(...request)), 500));
      window.fetch = (address, options) => (options ? later : send)(address, options);
    }""")
    # The next card is fetched ahead.
    page.wait_for_load_state("networkidle")
    page.get_by_role("button", name="Accept it, go on").click()
    page.get_by_role("button", name="Undo the last step").click()
    expect_card(page, 1, 0)
    # Nothing is accepted in a sentence whose only name was corrected.
    assert [action for action, _ in logged(output)] == ["relabel", "undo"]


PACE = """async () => {
  const main = document.getElementById("main");
  const send = window.fetch;
  const later = (address, options) => new Promise((resolve) => setTimeout(() => resolve(send(address, options)), 300));
  window.fetch = (address, options) => (options ? later : send)(address, options);
  const times = [];
  for (let card = 0; card < 20; card += 1) {
    // Nobody decides faster.
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const start = performance.now();
    const isThere = new Promise((resolve) => new MutationObserver(resolve).observe(main, { childList: true }));
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "A", bubbles: true }));
    await isThere;
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b);
}"""


def test_the_next_card_is_there_in_a_tenth_of_a_second(browser: Browser, tmp_path: Path) -> None:
    sentence = "Baxter|B-ORG|B-PER|0.9|0.6 closes the yard that Alan|B-PER Baxter|I-PER of Goole|B-LOC runs ~."
    documents = {f"d{number}": (sentence,) * 60 for number in range(20)}
    output = finished_runs.write_run(tmp_path / "out", documents, keep_text=True)
    with viewing.served(output, tmp_path / "cache", who="ada") as url, browser.new_context() as context:
        page = Visit(context, url).open("/review")
        expect(page.get_by_text("0 of 100 sentences done")).to_be_visible(timeout=20_000)
        times = page.evaluate(PACE)
        expect(page.get_by_text("20 of 100 sentences done")).to_be_visible()
        print(f"accept to next card: median {times[10]:.0f} ms, slowest {times[-1]:.0f} ms")
        # Not the time of the machine's other work: no answer is there before 300 ms.
        assert times[0] < 100
    assert len(logged(output)) == 60


def test_further_types_have_the_same_keys_with_shift(browser: Browser, tmp_path: Path) -> None:
    types = [f"TYPE{number:02}" for number in range(1, 71)]
    words = [f"Word{number}|B-{kind}" for number, kind in enumerate(types)]
    output = finished_runs.write_run(
        tmp_path / "out", {"many": (" ".join(words), "Baxter|B-TYPE01 left ~.")}, keep_text=True
    )
    with viewing.served(output, tmp_path / "cache", who="ada") as url, browser.new_context() as context:
        page = Visit(context, url).open("/document?id=many")
        expect(page.locator("#correct [data-number]")).to_have_count(18)
        page.locator("a.e", has_text="Baxter").focus()
        for key, kind in (("Shift+Digit9", "TYPE18"), ("Digit9", "TYPE09"), ("Shift+Digit1", "TYPE10")):
            pressed(page, key)
            expect(page.locator("a.e:focus")).to_contain_text(f"{kind} corrected")
        page.keyboard.press("t")
        page.keyboard.type("TYPE70")
        pressed(page, "Enter")
        expect(page.locator("a.e", has_text="Baxter")).to_contain_text("TYPE70 corrected")
        colours = page.locator(".legend .e").evaluate_all("all => all.map((one) => one.className)")
        assert len(set(colours)) == COLOURS
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert len(logged(output)) == 4


def test_on_a_phone_the_card_is_a_sheet_at_the_bottom(browser: Browser, address: str, output: Path) -> None:
    with browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 800}) as context:
        visit = Visit(context, address)
        page = visit.open("/document?id=yard")
        sheet = page.locator("#correct")
        bounds = "(sheet) => { const { top, bottom } = sheet.getBoundingClientRect(); return [top, bottom]; }"
        top, bottom = sheet.evaluate(bounds)
        # Low until something is chosen.
        assert (top > 700, bottom) == (True, 800)
        page.locator("a.e", has_text="Alan Baxter").tap()
        expect(page.locator("#chosen")).to_have_text("Alan Baxter PER")
        top, bottom = sheet.evaluate(bounds)
        assert (400 < top < 700, bottom) == (True, 800)
        sheet.get_by_role("button", name="ORG").tap()
        expect(page.locator("a.e", has_text="Alan Baxter")).to_contain_text("ORG corrected")
        page = open_card(visit)
        page.get_by_role("button", name="Accept it, go on").tap()
        # Whether the sentence corrected before counts as done depends on when the queue was selected.
        expect(page.get_by_text(re.compile(r"2 of 6(, \w+)?: the least certain is"))).to_be_visible()
        expect(page.get_by_text("2 steps of yours today")).to_be_visible(timeout=20_000)
        top, bottom = sheet.evaluate(bounds)
        assert bottom == 800
        # The question and its words are above the sheet.
        assert page.locator("#asked").evaluate(bounds)[0] > -1
        assert page.locator("a.asked").evaluate(bounds)[1] < top
    assert [action for action, _ in logged(output)] == ["relabel", "accept"]


def test_a_server_that_is_gone_is_said_to_be(visit: Visit, output: Path) -> None:
    page = open_card(visit)
    page.context.set_offline(True)
    page.keyboard.press("A")
    expect(page.locator("#chosen")).to_contain_text("The server does not answer: the last step was not written.")
    page.context.set_offline(False)
    visit.open("/review")
    page.keyboard.press("A")
    expect(page.get_by_text("1 of 6 sentences done")).to_be_visible()
    visit.messages.clear()
    assert [action for action, _ in logged(output)] == ["accept"]


def answer_fetches(page: Page, path: str, *, status: int, body: str) -> None:
    """Answer what scripts ask of a path instead of the server."""

    def answer(route: Route) -> None:
        if route.request.resource_type == "fetch":
            route.fulfill(status=status, body=body, content_type="text/html")
        else:
            route.continue_()

    page.route(lambda url: path in url, answer)


def test_an_answer_that_is_no_page_of_the_server_is_said_to_be(visit: Visit, output: Path) -> None:
    answer_fetches(visit.page, "/review", status=403, body="403: open the address that was printed.\n")
    page = open_card(visit)
    page.keyboard.press("Space")
    expect(page.locator("#chosen")).to_have_text(
        "403: open the address that was printed: the next sentence is not shown."
    )
    answer_fetches(page, "/correct-places", status=200, body="<h1>Sign in</h1>")
    page.keyboard.press("A")
    expect(page.locator("#chosen")).to_have_text(
        "Something else than this server answers: the last step was not written."
    )
    page.unroute_all()
    page.keyboard.press("A")
    expect_card(page, 2, 1)
    visit.messages.clear()
    assert [action for action, _ in logged(output)] == ["accept"]


def test_the_queue_goes_on_in_a_generation_that_is_published_meanwhile(
    visit: Visit, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_card(visit)
    folder = OutputFolder(output)
    current = folder.generations.current()
    assert current is not None
    folder.generations.publish(replace(current.manifest(), generation=1), current.plan_path)
    monkeypatch.setattr("concord.workflows.view.index.opened._LOOK_SECONDS", -1.0)
    select, may_go_on = review_queue._select, Event()
    monkeypatch.setattr(review_queue, "_select", lambda *queue: may_go_on.wait(60) and select(*queue))
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
