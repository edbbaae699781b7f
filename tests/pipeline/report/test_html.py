import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest
from concord_testing import stores
from concord_testing.viewing import DEAD_LETTER, chromium
from typing_extensions import override

from concord.pipeline.documents import DeadLetter
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.report.html import write_report
from concord.pipeline.report.statistics import DEFAULT_LIMITS, Limits

FinishRun = Callable[..., Path]

SCRIPT = "<script>document.title='run';document.body.dataset.ran='yes'</script>"
IMAGE = "<img/src=x/onerror=document.body.dataset.ran='yes'>"
NEWS = {
    "yard": (
        "Baxter|B-ORG|B-PER|0.9 closes the|O|O|0.4 yard",
        "Alan|B-PER Baxter|I-PER runs Baxter|B-ORG|B-ORG|0.4",
        "Baxter|B-PER is in Goole|B-LOC",
    ),
    "fair": ("Goole|B-LOC|O|0.6 waits", "Nobody came to Goole|B-LOC"),
}


class Page(HTMLParser):
    """A parsed page: its elements, and its text by the id of the section."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})
    APART = frozenset({"p", "b", "td", "th", "li", "br", "code"})

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {"": ""}
        self.section = ""
        self.feed(content)
        self.close()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.part(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
            self.text[self.section] = ""

    @override
    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.part(tag)
        if tag == "section":
            self.section = ""

    @override
    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text[self.section] += data

    def part(self, tag: str) -> None:
        if tag in self.APART:
            self.text[self.section] += " "

    def words(self, section: str) -> str:
        return " ".join(self.text[section].split())


def page_of(output: Path, limits: Limits = DEFAULT_LIMITS) -> Page:
    return Page(stores.local(write_report(OutputFolder(output), limits)).read_text(encoding="utf-8"))


def test_report_states_the_equation(finish_run: FinishRun) -> None:
    page = page_of(finish_run(NEWS, dead_letters=[DEAD_LETTER]))
    assert "3 records read = 2 annotated + 0 unchanged + 1 dead letter" in page.words("")
    assert "entities_multi 3 222222222222" in page.words("")


def test_report_names_location_and_reason_of_a_dead_letter(finish_run: FinishRun) -> None:
    words = page_of(finish_run(NEWS, dead_letters=[DEAD_LETTER])).words("dead-letters")
    assert "invalid_json" in words
    assert "the line breaks off /data/a.jsonl, byte 812" in words
    assert "document cut" in words


def test_report_shows_changes_in_context_and_names_that_deviate(finish_run: FinishRun) -> None:
    page = page_of(finish_run(NEWS))
    assert "B-PER B-ORG 1 word Baxter closes the yard yard" in page.words("stage-two")
    assert "Baxter ORG 2 PER 1 yard" in page.words("names")
    assert "Baxter\u00a0ORG was PER" in page.text["sentences"]


def test_report_without_trees_says_so(finish_run: FinishRun) -> None:
    content = stores.local(write_report(OutputFolder(finish_run(NEWS, left_out=["trees", "tags"])))).read_text(
        encoding="utf-8"
    )
    assert content.count("No tree: this document was annotated without trees") == 5
    assert "words by <b>parser_en" in content
    assert "Open a sentence" not in content


def test_report_draws_entities_and_trees_of_whole_documents(finish_run: FinishRun) -> None:
    page = page_of(finish_run(NEWS))
    assert "On yard yard, 12 words, 5 entities" in page.words("documents")
    trees = [attributes for tag, attributes in page.elements if tag == "svg" and "width" in attributes]
    assert len(trees) == 5


def test_report_says_how_many_sentences_of_a_long_document_are_not_shown(finish_run: FinishRun) -> None:
    page = page_of(finish_run(NEWS), Limits(document_sentences=1))
    assert "2 more sentences are not shown" in page.words("documents")


def test_report_counts_the_rarer_changes_without_examples(finish_run: FinishRun) -> None:
    assert "1 more word changed in rarer ways" in page_of(finish_run(NEWS), Limits(changes=1)).words("stage-two")


@pytest.mark.parametrize(
    ("own", "chosen", "line"),
    [({"threshold": 0.35}, None, "threshold 0.35"), ({"threshold": 0.35}, 0.5, "threshold 0.50"), ({}, 0.5, None)],
)
def test_report_draws_the_threshold_of_the_run(
    finish_run: FinishRun, tmp_path: Path, own: dict[str, float], chosen: float | None, line: str | None
) -> None:
    output = finish_run(NEWS)
    plan_path = output / "_run" / "plans" / "0.json"
    plan = json.loads(plan_path.read_bytes())
    plan["config"]["tagger"]["threshold"] = chosen
    plan_path.write_bytes(orjson.dumps(plan))
    (tmp_path / "tagger").mkdir()
    saved = {"format_version": 1, "tagger": "crf", "config": own, "vocabulary": {}, "trees": None}
    (tmp_path / "tagger" / "tagger.json").write_text(json.dumps(saved))
    words = page_of(output).words("uncertainty")
    assert (line in words) if line else ("threshold" not in words)


def test_report_shows_rates_when_times_were_recorded(finish_run: FinishRun) -> None:
    output = finish_run(NEWS)
    assert "No times were recorded" in page_of(output).words("speed")
    stats = {"seconds": {"read": 0.0, "parse": 0.5}, "words": 1200, "wall_seconds": 2.0}
    (output / "_run" / "stats.json").write_text(json.dumps(stats))
    assert "read 0.0 \u2013 parse 0.5 2 400 whole run 2.0 600" in page_of(output).words("speed")


@pytest.mark.parametrize("documents", [{}, {"empty": ()}, {"certain": ("One|O|O|0.0 word",)}])
def test_report_is_complete_for_a_nearly_empty_run(finish_run: FinishRun, documents: dict[str, Sequence[str]]) -> None:
    page = page_of(finish_run(documents, dead_letters=[DEAD_LETTER]))
    assert page.open == []
    assert "No entity was found" in page.words("entities")
    assert "There is no such name" in page.words("names")


def test_report_makes_no_network_requests(finish_run: FinishRun) -> None:
    page = page_of(finish_run(NEWS, dead_letters=[DEAD_LETTER]))
    assert page.open == []
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object", "base", "form"}
    targets = [
        value for _, attributes in page.elements for name, value in attributes.items() if name in {"src", "href"}
    ]
    assert all(value and value.startswith("#") for value in targets)
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {value[1:] for value in targets if value} <= ids


def test_report_escapes_markup_in_the_input(finish_run: FinishRun) -> None:
    page = page_of(hostile(finish_run))
    assert page.open == []
    assert not {tag for tag, _ in page.elements} & {"script", "img", "marquee"}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    for section in ("dead-letters", "entities", "stage-two", "names", "sentences", "documents"):
        assert SCRIPT in page.text[section] or IMAGE in page.text[section], section


def test_report_replaces_an_earlier_one_and_leaves_no_staged_file(finish_run: FinishRun) -> None:
    output = finish_run(NEWS)
    path = write_report(OutputFolder(output))
    first = path.read_bytes()
    assert write_report(OutputFolder(output)) == path
    assert path.read_bytes() == first
    assert [entry.name for entry in (output / "_run" / "staging").iterdir()] == []


def hostile(finish_run: FinishRun) -> Path:
    """Write a run with markup wherever the input's text can appear."""
    dead_letter = DeadLetter(
        doc_id=IMAGE, source_uri=SCRIPT, position=0, stage="read", error="invalid_json", message=f"got {SCRIPT}"
    )
    sentences = (f"{SCRIPT}|B-PER|B-LOC|0.9 met {IMAGE}|B-{IMAGE}|O|0.8", f"{SCRIPT}|B-LOC left")
    return finish_run({IMAGE: sentences, '"><marquee>': (f"{SCRIPT} alone",)}, dead_letters=[dead_letter])


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="no Chromium found: install chromium to see a browser read the report")
def test_report_runs_no_script_in_a_browser_when_names_are_markup(finish_run: FinishRun, tmp_path: Path) -> None:
    path = stores.local(write_report(OutputFolder(hostile(finish_run))))
    # Without the content security policy only the escaping prevents scripts.
    bare = tmp_path / "bare.html"
    bare.write_text(re.sub(r"<meta http-equiv=[^>]+>", "", path.read_text(encoding="utf-8")), encoding="utf-8")
    canary = tmp_path / "canary.html"
    canary.write_text(f"<body><h1>{SCRIPT}</h1></body>")
    assert "data-ran" in dump_dom(canary, tmp_path)
    for page in (path, bare):
        dom = dump_dom(page, tmp_path)
        assert "data-ran" not in dom
        assert "<title>invented.jsonl: annotation report</title>" in dom
        assert "&lt;script&gt;" in dom


def dump_dom(path: Path, folder: Path) -> str:
    command = [
        str(chromium()),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    return done.stdout
