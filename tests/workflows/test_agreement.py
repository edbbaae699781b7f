"""How far people agree who corrected the same sentences, and where they differ."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from concord_testing.command_line import concord, concord_json
from concord_testing.exports import TEXTS, annotate_texts, write_texts
from concord_testing.finished_runs import write_run
from hypothesis import given
from hypothesis import strategies as st

from concord.pipeline.corrections.correction import Correction, Mark, Seen, append_to_log, log_path, read_log
from concord.pipeline.output.collection import open_collection
from concord.workflows.corrections import Agreement, agreements, krippendorff_alpha, open_differences, shared_sentences

pytestmark = pytest.mark.slow

TEXT = "Zorba Quux saw Geneva . Nobody slept ."
DOCUMENTS = {"one": ["Zorba Quux saw Geneva|B-PER .", "Nobody slept ."]}


def mark(surface: str, kind: str, text: str = TEXT) -> Mark:
    start = text.index(surface)
    return Mark(start=start, end=start + len(surface), type=kind, text=surface)


def said(
    who: str, old: Mark | None, new: Mark | None, *, settles: bool = False, tagger: str = "tagger-x"
) -> Correction:
    line = Correction.of(old, new, text=TEXT, seen=Seen(doc_id="one", tagger=tagger, generation=0), who=who)
    return line.model_copy(update={"settles": settles})


ADA = said("ada", mark("Geneva", "PER"), mark("Geneva", "LOC"))
BOB = said("bob", mark("Geneva", "LOC"), mark("Geneva", "ORG"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A collection with an entity in the first of its two sentences."""
    return write_run(tmp_path / "out", DOCUMENTS, keep_text=True)


def left(output: Path, *lines: Correction) -> dict[str, list[tuple[str, str]]]:
    """Return what each person left in the only sentence that several looked at; nothing if there is none."""
    sentences = list(shared_sentences(open_collection(output), lines))
    assert len(sentences) <= 1
    return {
        who: [(one.text, one.type) for one in marks] for sentence in sentences for who, marks in sentence.left.items()
    }


def answers(output: Path, *lines: Correction) -> list[list[tuple[list[str], list[str]]]]:
    return [
        [([f"{one.text} {one.type}" for one in marks], who) for marks, who in difference.answers.items()]
        for sentence in shared_sentences(open_collection(output), lines)
        for difference in open_differences(sentence)
    ]


def test_what_somebody_left_of_another_is_agreed_to(output: Path) -> None:
    zorba = said("bob", None, mark("Zorba Quux", "PER"))
    assert left(output, ADA, zorba) == {"ada": [("Geneva", "LOC")], "bob": [("Zorba Quux", "PER"), ("Geneva", "LOC")]}
    assert answers(output, ADA, zorba) == [[([], ["ada"]), (["Zorba Quux PER"], ["bob"])]]
    # In the other order bob had seen what the tagger found.
    assert left(output, zorba, ADA)["bob"] == [("Zorba Quux", "PER"), ("Geneva", "PER")]
    assert left(output, zorba, ADA)["ada"] == [("Zorba Quux", "PER"), ("Geneva", "LOC")]


def test_what_somebody_said_stays_said_until_they_say_otherwise(output: Path) -> None:
    later = said("ada", None, mark("Zorba Quux", "PER"))
    assert left(output, ADA, BOB, later)["ada"] == [("Zorba Quux", "PER"), ("Geneva", "LOC")]
    convinced = said("ada", mark("Geneva", "ORG"), mark("Geneva", "ORG"))
    assert answers(output, ADA, BOB, convinced) == []


def test_a_sentence_counts_if_several_people_saw_it_as_it_is(output: Path) -> None:
    assert left(output, ADA) == {}
    assert left(output, ADA, said("ada", None, mark("Zorba Quux", "PER"))) == {}
    assert left(output, ADA, said("bob", None, mark("Nobody", "PER"))) == {}
    assert left(output, ADA, said("bob", None, mark("Zorba Quux", "PER"), tagger="an older one")) == {}
    assert left(output, ADA, BOB, BOB.undone(who="bob")) == {}
    assert sorted(left(output, ADA, BOB)) == ["ada", "bob"]


def test_a_settled_difference_changes_no_agreement(output: Path) -> None:
    assert answers(output, ADA, BOB) == [[(["Geneva LOC"], ["ada"]), (["Geneva ORG"], ["bob"])]]
    settled = said("ada", mark("Geneva", "ORG"), mark("Geneva", "ORG"), settles=True)
    assert answers(output, ADA, BOB, settled) == []
    (before,), (after,) = (
        agreements(shared_sentences(open_collection(output), lines)) for lines in ([ADA, BOB], [ADA, BOB, settled])
    )
    assert before == after == Agreement("ada", "bob", 1, 0.0, before.alpha)
    assert before.alpha == pytest.approx(1 - 9 * 2 / (100 - 64 - 2))
    assert len(answers(output, ADA, BOB, settled, settled.undone(who="ada"))) == 1


def test_entities_that_overlap_are_one_difference_and_equal_answers_one(output: Path) -> None:
    first = said("ada", None, mark("Zorba", "PER"))
    second = said("bob", mark("Zorba", "PER"), mark("Zorba Quux", "PER"))
    third = said("cleo", mark("Zorba Quux", "PER"), mark("Zorba Quux", "PER"))
    assert answers(output, first, second, third) == [[(["Zorba PER"], ["ada"]), (["Zorba Quux PER"], ["bob", "cleo"])]]
    found = agreements(shared_sentences(open_collection(output), [first, second, third]))
    assert [(one.first, one.second, one.f1) for one in found] == [
        ("ada", "bob", 50.0),
        ("ada", "cleo", 50.0),
        ("bob", "cleo", 100.0),
    ]


def test_agreement_is_the_same_once_the_tables_have_the_corrections(tmp_path: Path) -> None:
    source, output = write_texts(tmp_path / "texts.jsonl", TEXTS), tmp_path / "out"
    annotate_texts(source, output)
    text, tagger = TEXTS["plain"], read_tagger(output)
    anna = mark("Anna Smith", "PER", text)
    seen = Seen(doc_id="plain", tagger=tagger, generation=0)
    company = anna.model_copy(update={"type": "ORG"})
    lines = [
        Correction.of(anna, anna, text=text, seen=seen, who="ada"),
        Correction.of(anna, company, text=text, seen=seen, who="bob"),
    ]
    append_to_log(log_path(output), lines)

    before = concord_json("corrections", "agreement", output)
    assert before["open"] == 1
    annotate_texts(source, output)
    assert read_log(log_path(output)) == lines
    assert concord_json("corrections", "agreement", output) == before
    plain = concord("corrections", "agreement", output)
    assert "ada, bob" in plain.output
    assert "1 difference to settle" in plain.output


def read_tagger(output: Path) -> str:
    collection = open_collection(output)
    (report, *_) = collection.manifest.shards
    tagger: str = collection.read_rows(report, "documents", ["tagger"])["tagger"][0].as_py()
    return tagger


def test_without_a_shared_sentence_the_command_says_so(output: Path) -> None:
    result = concord("corrections", "agreement", output)
    assert (result.exit_code, result.output) == (0, "No two people have corrected in one sentence.\n")


# Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", sections A to C: a column is an observer.
BINARY = ("0100000010", "1110010000")
NOMINAL = ("aabbdcccedda", "babbbccceddd")
MISSING = ("123321412...", "1233224125.3", ".3332342251.", "12332441251.")


@pytest.mark.parametrize(("observers", "alpha"), [(BINARY, 0.095), (NOMINAL, 0.692), (MISSING, 0.743)])
def test_alpha_is_that_of_the_published_examples(observers: Sequence[str], alpha: float) -> None:
    units = [[value for value in unit if value != "."] for unit in zip(*observers, strict=True)]
    assert krippendorff_alpha(unit for unit in units if len(unit) > 1) == pytest.approx(alpha, abs=5e-4)


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=2, max_size=4), min_size=1, max_size=8))
def test_alpha_compares_disagreement_within_units_with_that_of_all_pairs(units: list[list[str]]) -> None:
    values = [value for unit in units for value in unit]
    everywhere = [first != second for first, second in combinations(values, 2)]
    within = [
        len(unit) * sum(first != second for first, second in combinations(unit, 2)) / (len(unit) * (len(unit) - 1) / 2)
        for unit in units
    ]
    expected = sum(everywhere) / len(everywhere)
    alpha = krippendorff_alpha(units)
    if not expected:
        assert alpha is None
    else:
        assert alpha == pytest.approx(1 - sum(within) / len(values) / expected)
