"""The report of a run: what it says, that it holds all it shows, and that nothing in the input becomes markup."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import orjson
import pytest
from concord_testing import runs, stores
from concord_testing.viewing import DEAD_LETTER, IMAGE, NEWS, SCRIPT, write_hostile
from typing_extensions import override

from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import PlanError, ReconciliationError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.report import html
from concord.pipeline.report.html import COLOURS, type_colours, write_report

pytestmark = pytest.mark.slow

FinishRun = Callable[..., Path]
NAMES = """
PERSON NORP FAC ORG GPE LOC PRODUCT EVENT WORK_OF_ART LAW LANGUAGE DATE TIME PERCENT MONEY QUANTITY ORDINAL CARDINAL
"""
SPACY = NAMES.split()


class Page(HTMLParser):
    """A parsed page: its elements, and its text by the id of the section."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})
    APART = frozenset({"p", "b", "td", "th", "li", "br", "code", "h3", "dd", "small"})

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {"": ""}
        self.section = ""
        self.feed(content)
        self.close()
        assert self.open == []

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


def page_of(output: Path) -> Page:
    return Page(stores.local(write_report(OutputFolder(output))).read_text(encoding="utf-8"))


def dead_letter(position: int, error: str) -> DeadLetter:
    return DeadLetter(
        doc_id=None, source_uri="/data/a.jsonl", position=position, stage="read", error=error, message=f"at {position}"
    )


def test_report_states_counts_names_and_dead_letters(finish_run: FinishRun) -> None:
    letters = [DEAD_LETTER, *(dead_letter(place, "invalid_utf8") for place in range(5))]
    page = page_of(finish_run(NEWS, dead_letters=letters))
    assert "9 records read = 3 annotated + 0 unchanged + 6 dead letters" in page.words("")
    assert "entities_multi 3 222222222222" in page.words("")
    assert "Sentences 6 Words 28 Entities 7 Decided by stage two 5 3 changed" in page.words("")
    assert page.words("entities").endswith(
        "LOC 3 Name Entities Goole 3 ORG 2 Name Entities Baxter 2 PER 2 Name Entities Alan Baxter 1 Baxter 1"
    )
    dead = page.words("dead-letters")
    assert "read invalid_utf8 5 records at 0" in dead
    assert "at 2 /data/a.jsonl, byte 2 and 2 more read invalid_json 1 record" in dead
    assert "the line breaks off /data/a.jsonl, byte 812 document cut" in dead


def test_report_shows_rates_when_times_were_recorded(finish_run: FinishRun) -> None:
    output = finish_run(NEWS, left_out=["trees", "tags"])
    assert "No times were recorded" in page_of(output).words("speed")
    assert "words by parser_en" in page_of(output).words("")
    stats = {"seconds": {"read": 0.0, "parse": 0.5}, "words": 1200, "wall_seconds": 2.0}
    (output / "_run" / "stats.json").write_text(json.dumps(stats))
    assert "read 0.0 \u2013 parse 0.5 2 400 whole run 2.0 600" in page_of(output).words("speed")


def test_rare_names_are_dropped_when_there_are_too_many(finish_run: FinishRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "DISTINCT_NAMES", 2)
    words = page_of(finish_run(NEWS, documents_per_shard=1)).words("entities")
    assert "rare ones were dropped" in words
    assert words.endswith("LOC 3 Name Entities Goole 2 ORG 2 Name Entities Baxter 2 PER 2 Name Entities")


def test_report_of_a_run_without_a_document(finish_run: FinishRun) -> None:
    assert "No entity was found" in page_of(finish_run({}, dead_letters=[DEAD_LETTER])).words("entities")


def test_report_makes_no_network_requests(finish_run: FinishRun) -> None:
    page = page_of(finish_run(NEWS, dead_letters=[DEAD_LETTER]))
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object", "base", "form"}
    targets = [
        value for _, attributes in page.elements for name, value in attributes.items() if name in {"src", "href"}
    ]
    ids = {f"#{attributes['id']}" for _, attributes in page.elements if "id" in attributes}
    assert set(targets) <= ids


def test_report_escapes_markup_in_the_input(tmp_path: Path) -> None:
    page = page_of(write_hostile(tmp_path / "out"))
    assert not {tag for tag, _ in page.elements} & {"script", "img", "marquee"}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert SCRIPT in page.text["dead-letters"]
    assert SCRIPT in page.text["entities"]
    assert IMAGE in page.text["entities"]


def test_report_replaces_an_earlier_one_and_leaves_no_staged_file(finish_run: FinishRun) -> None:
    output = finish_run(NEWS)
    path = write_report(OutputFolder(output))
    first = path.read_bytes()
    assert write_report(OutputFolder(output)) == path
    assert path.read_bytes() == first
    assert [entry.name for entry in (output / "_run" / "staging").iterdir()] == []


def test_report_refuses_a_run_that_is_unfinished_or_lacks_a_record(finish_run: FinishRun, tmp_path: Path) -> None:
    path = finish_run(NEWS) / "current" / "manifest.json"
    manifest = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps(manifest | {"annotated": 2}))
    with pytest.raises(ReconciliationError, match="3 records"):
        write_report(OutputFolder(tmp_path / "out"))
    runs.unfinish(tmp_path / "out")
    with pytest.raises(PlanError, match="not finished"):
        write_report(OutputFolder(tmp_path / "out"))


def test_eighteen_types_of_spacy_have_different_colours() -> None:
    assert len(set(type_colours(SPACY).values())) == len(SPACY) == 18


def test_a_usual_type_has_the_same_colour_wherever_it_occurs() -> None:
    alone = {kind: type_colours([kind])[kind] for kind in SPACY}
    assert type_colours(SPACY) == alone
    assert type_colours(["PER", "DRUG", "DOSE", "LOC"]) == type_colours(["LOC", "DOSE", "PER", "DRUG"])


def test_other_types_have_different_colours_until_there_are_no_more() -> None:
    many = [f"TYPE-{number}" for number in range(70)]
    assert len(set(type_colours(many[:COLOURS]).values())) == COLOURS
    colours = type_colours([*SPACY, *many])
    assert set(colours.values()) == set(range(COLOURS))
    assert {kind: colours[kind] for kind in SPACY} == type_colours(SPACY)
    assert type_colours(["\ud800"])["\ud800"] < COLOURS


def test_the_stylesheet_has_every_colour_in_light_and_dark() -> None:
    style = files("concord.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")
    for number in range(COLOURS):
        selectors = re.findall(r"((?:\.t\d+,? )+)\{ --tint", style)
        assert sum(f".t{number}" in selector.replace(",", "").split() for selector in selectors) == 2
