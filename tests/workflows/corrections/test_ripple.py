"""What would move in a document once corrections are certain, before anything is accepted."""

from pathlib import Path
from typing import Any

from concord_testing import fakes
from concord_testing.exports import TEXTS, annotate_texts, write_texts

from concord.pipeline.config import TaggerRunConfig
from concord.pipeline.corrections.correction import Correction, Mark, Seen
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.document_rows import CollectedDocument, read_collection
from concord.workflows.corrections.ripple import certain_labels, find_moves

ANNA = Mark(start=0, end=10, type="PER", text="Anna Smith")
BOB = Mark(start=22, end=25, type="PER", text="Bob")


def read(folder: Path, doc_id: str) -> CollectedDocument:
    output = folder / "out"
    if not output.exists():
        annotate_texts(write_texts(folder / "texts.jsonl", TEXTS), output)
    return next(read_collection(open_collection(output), wanted=lambda name: name == doc_id))


def correct(old: Mark | None, new: Mark | None, *, doc_id: str = "plain") -> Correction:
    seen = Seen(doc_id=doc_id, tagger="t", generation=0)
    return Correction.of(old, new, text=TEXTS[doc_id], seen=seen, who="ada")


def moves(document: CollectedDocument, *corrections: Correction, tagger: Any = None) -> list[Any]:
    tagger, text = tagger or fakes.SuggestibleTagger(), TEXTS[document.row.doc_id]
    return find_moves(tagger, document, text, corrections, options=TaggerRunConfig())


def test_moves_are_all_that_differs_but_the_corrections(tmp_path: Path) -> None:
    document = read(tmp_path, "plain")
    assert moves(document, correct(ANNA, None)) == [(BOB, None)]
    assert moves(document, correct(BOB, BOB)) == [(ANNA, None)]
    assert moves(document, correct(BOB, BOB), correct(ANNA, None)) == []


def test_nothing_moves_without_corrections_that_fit_or_with_one_stage(tmp_path: Path) -> None:
    document = read(tmp_path, "plain")
    half = correct(None, Mark(start=1, end=3, type="PER", text="nn"))
    assert moves(document) == moves(document, half) == []
    one_stage = fakes.SuggestibleTagger()
    one_stage.threshold = None  # type: ignore[assignment]
    assert moves(document, correct(ANNA, None), tagger=one_stage) == []


def test_tagger_reads_what_the_run_gave_it(tmp_path: Path) -> None:
    document = read(tmp_path, "seam")
    tagger = fakes.SuggestibleTagger()
    text = TEXTS["seam"]
    name = Mark(
        start=text.index("Anna"), end=text.index(" k"), type="PER", text=text[text.index("Anna") : text.index(" k")]
    )
    assert moves(document, correct(name, None, doc_id="seam"), tagger=tagger)
    sentence = tagger.calls[0][0][0]
    assert sentence.words[:10] == (*"abcdef", "Anna", "Maria", "Smith", "Jones")
    assert sentence.heads is not None
    assert sentence.heads[:9] == (0, 1, 2, 3, 4, 5, 6, 7, 0)


def test_corrected_words_have_their_labels() -> None:
    words = [(0, 4), (5, 10), (11, 15), (16, 20), (22, 25)]
    smith = Mark(start=5, end=10, type="ORG", text="Smith")
    assert certain_labels([correct(ANNA, smith), correct(None, BOB)], words) == {0: "O", 1: "B-ORG", 4: "B-PER"}
    assert certain_labels([correct(ANNA, ANNA)], words) == {0: "B-PER", 1: "I-PER"}
    # An entity that became two: what one gives up, the other labels, in any order.
    halves = [correct(ANNA, smith), correct(None, Mark(start=0, end=4, type="PER", text="Anna"))]
    assert certain_labels(halves, words) == certain_labels(halves[::-1], words) == {0: "B-PER", 1: "B-ORG"}
