"""The page that lists where two people differ, and settles it."""

import re
from pathlib import Path

from concord_testing import finished_runs, viewing

from concord.pipeline.corrections.correction import Correction, Mark, Seen, append_to_log, log_path, read_log

ORIGIN = {"Origin": "http://127.0.0.1:7391"}


def test_the_text_is_that_of_the_collection(differing: Path, tmp_path: Path) -> None:
    client = viewing.open_client(differing, tmp_path / "cache")
    page = client.get("/differences").text
    assert re.sub(r"<[^>]+>", "", page).count("Baxter closes the yard.") == 1
    assert 'method="post"' not in page
    assert client.post("/settle", headers=ORIGIN).status_code == 405


def test_one_name_that_becomes_two_keeps_both(differing: Path, tmp_path: Path) -> None:
    client = viewing.open_client(differing, tmp_path / "cache", who="cleo")
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
        assert [
            viewing.YARD[int(start) : int(end)] for start, end in dict.fromkeys(names) if 24 <= int(start) < 36
        ] == found
        fields["seen"] = str(len(read_log(log_path(differing))))
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
