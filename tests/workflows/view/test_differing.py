"""The page that lists where two people differ, and settles it: as forms, and in Chromium by mouse and by key."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from concord_testing import finished_runs, viewing
from concord_testing.browsing import Visit, accessibility_faults
from playwright.sync_api import Browser, Page, expect

from concord.pipeline.corrections.correction import Correction, Mark, Seen
from concord.pipeline.corrections.log import append_to_log, log_path, read_log

TEXT = "Baxter closes the yard. Alan Baxter runs Baxter. Baxter is in Goole. Nobody called Goole closed."
ORIGIN = {"Origin": "http://127.0.0.1:7391"}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Write a collection in which ada and bob differ in two sentences: in a type, and in what a name is."""
    output = finished_runs.write_run(tmp_path / "out", viewing.NEWS, keep_text=True)
    lines = []
    for who, old, new in (
        ("ada", ("Baxter", 0, "ORG"), ("Baxter", 0, "ORG")),
        ("bob", ("Baxter", 0, "ORG"), ("Baxter", 0, "PER")),
        ("ada", ("Alan Baxter", 24, "PER"), ("Alan", 24, "PER")),
        ("ada", None, ("Baxter", 29, "ORG")),
        ("bob", ("Alan", 24, "PER"), ("Alan Baxter", 24, "PER")),
    ):
        before, after = (
            None if one is None else Mark(start=one[1], end=one[1] + len(one[0]), type=one[2], text=one[0])
            for one in (old, new)
        )
        seen = Seen(doc_id="yard", tagger="tagger-x", generation=0)
        lines.append(Correction.of(before, after, text=TEXT, seen=seen, who=who))
    append_to_log(log_path(output), lines)
    return output


@pytest.fixture
def address(output: Path, tmp_path: Path) -> Iterator[str]:
    """Serve it to a third person."""
    with viewing.served(output, tmp_path / "cache", who="cleo") as url:
        yield url


def settled(output: Path) -> list[tuple[str, str, str, bool]]:
    return [(one.who, one.action, one.result.text, one.settles) for one in read_log(log_path(output))[5:]]


def test_the_text_is_that_of_the_collection(output: Path, tmp_path: Path) -> None:
    client = viewing.open_client(output, tmp_path / "cache")
    page = client.get("/differences").text
    assert re.sub(r"<[^>]+>", "", page).count("Baxter closes the yard.") == 1
    assert 'method="post"' not in page
    assert client.post("/settle", headers=ORIGIN).status_code == 405


def test_one_name_that_becomes_two_keeps_both(output: Path, tmp_path: Path) -> None:
    client = viewing.open_client(output, tmp_path / "cache", who="cleo")
    page = client.get("/differences").text
    fields = {name: re.findall(rf'name="{name}" value="([^"]*)"', page)[0] for name in ("key", "generation", "seen")}
    for changes, found in (
        (["24 28 PER yard", "29 35 ORG yard"], ["Alan", "Baxter"]),
        (["24 35 PER yard"], ["Alan Baxter"]),
        (["24 35  yard"], []),
    ):
        data = fields | {"change": changes, "back": "/differences"}
        assert client.post("/settle", data=data, headers=ORIGIN, follow_redirects=False).status_code == 303
        shown = client.get("/document?id=yard").text
        names = re.findall(r'data-at="(\d+)-(\d+)" data-label="[A-Z]', shown)
        assert [TEXT[int(start) : int(end)] for start, end in dict.fromkeys(names) if 24 <= int(start) < 36] == found
        fields["seen"] = str(len(read_log(log_path(output))))
    stale = client.post("/settle", data=data | {"seen": "5"}, headers=ORIGIN, follow_redirects=False)
    assert stale.status_code == 409
    assert "since this page was loaded" in stale.text


def test_settling_comes_back_to_where_the_difference_was(tmp_path: Path) -> None:
    sentence, count = "Baxter slept.", 52
    output = finished_runs.write_run(tmp_path / "out", {"long": ("Baxter|B-ORG slept ~.",) * count}, keep_text=True)
    text, seen = " ".join([sentence] * count), Seen(doc_id="long", tagger="tagger-x", generation=0)
    old = Mark(start=0, end=6, type="ORG", text="Baxter")
    marks = [old.moved(number * (len(sentence) + 1)) for number in range(count)]
    news = [("ada", mark, mark) for mark in marks] + [
        ("bob", mark, mark.model_copy(update={"type": "PER"})) for mark in marks
    ]
    lines = [Correction.of(before, after, text=text, seen=seen, who=who) for who, before, after in news]
    append_to_log(log_path(output), lines)
    client = viewing.open_client(output, tmp_path / "cache", who="cleo")
    for expected in ("/differences?page=1#d2", "/differences?page=1"):
        page = client.get("/differences?page=1").text
        form = page.rpartition("<form")[2]
        data = {name: re.findall(rf'name="{name}" value="([^"]*)"', form) for name in ("key", "generation", "seen")}
        change, back = (re.findall(rf'name="{name}" value="([^"]*)"', form) for name in ("change", "back"))
        answer = client.post("/settle", data=data | {"change": change, "back": back}, headers=ORIGIN)
        assert str(answer.url).removeprefix("http://127.0.0.1:7391") == expected
    assert "50 differences to settle" in answer.text
    assert len(re.findall('<section class="card"', answer.text)) == 50


def differences(page: Page) -> int:
    return int(page.locator("h1").inner_text().split()[0])


@pytest.mark.slow
def test_a_difference_is_settled_by_a_click_and_by_a_key(visit: Visit, output: Path) -> None:
    page = visit.open("/corrections")
    page.get_by_role("link", name="Where people differ").click()
    assert differences(page) == 2
    row = page.locator("p", has_text="ada and bob")
    agreed = row.inner_text()
    # A browser changes its tab by these.
    for key in ("Control+2", "Alt+2", "Meta+2"):
        page.keyboard.press(key)
    page.locator("section").last.get_by_role("button", name="This of ada").click()
    expect(page.locator("h1")).to_have_text("1 difference to settle")
    assert settled(output) == [("cleo", "relabel", "Alan", True), ("cleo", "add", "Baxter", True)]
    with page.expect_navigation():
        page.keyboard.press("2")
    expect(page.locator("h1")).to_have_text("0 differences to settle")
    assert settled(output)[2:] == [("cleo", "accept", "Baxter", True)]
    assert row.inner_text() == agreed
    page.keyboard.press("2")
    visit.open("/corrections")
    page.get_by_role("button", name="Undo: Baxter").first.click()
    visit.open("/differences")
    assert differences(page) == 1


@pytest.mark.slow
def test_the_page_is_accessible_at_every_width(visit: Visit) -> None:
    page = visit.open("/differences")
    for width in (390, 1280, 1920):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            assert accessibility_faults(page) == [], (width, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_who_only_reads_sees_the_differences(browser: Browser, output: Path, tmp_path: Path) -> None:
    with viewing.served(output, tmp_path / "cache") as url, browser.new_context() as context:
        page = Visit(context, url).open("/differences")
        assert differences(page) == 2
        assert page.get_by_role("button", name="This").count() == 0
