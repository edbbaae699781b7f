"""Fitting corrections to texts that have changed, and finding equal places."""

import re
from collections.abc import Callable

import pytest

from concord.pipeline.corrections.correction import Correction, Mark, Seen
from concord.pipeline.corrections.fitting import corrected_marks, find_places, fit_corrections, marks_at

TEXT = "In May Anna Smith met Bob in Geneva. Later Anna Smith left Geneva for New York City."


def mark(surface: str, label: str = "PER", *, text: str = TEXT, occurrence: int = 0) -> Mark:
    start = [found.start() for found in re.finditer(re.escape(surface), text)][occurrence]
    return Mark(start=start, end=start + len(surface), type=label, text=surface)


def correct(old: Mark | None, new: Mark | None, *, text: str = TEXT, who: str = "ada") -> Correction:
    return Correction.of(old, new, text=text, seen=Seen(doc_id="d", tagger="t", generation=0), who=who)


def words(text: str) -> list[list[tuple[int, int]]]:
    """Return the offsets of words, full stops apart, by sentence."""
    sentences: list[list[tuple[int, int]]] = [[]]
    for found in re.finditer(r"\w+|[.]", text):
        sentences[-1].append(found.span())
        if found[0] == ".":
            sentences.append([])
    return sentences


def test_offsets_hold_in_the_same_text() -> None:
    one = correct(mark("Anna Smith", occurrence=1), None)
    fit = fit_corrections([one], TEXT, words(TEXT))
    assert fit.corrections == (one,)
    assert not fit.misfits
    assert not fit.overruled


@pytest.mark.parametrize(
    "change", [lambda text: "A line before.\n" + text, lambda text: text.replace("May", "late May")]
)
def test_words_are_found_by_their_context(change: Callable[[str], str]) -> None:
    changed = change(TEXT)
    for occurrence in (0, 1):
        one = correct(mark("Anna Smith", occurrence=occurrence), mark("Smith", "ORG", occurrence=occurrence))
        [found] = fit_corrections([one], changed, words(changed)).corrections
        assert found.old == mark("Anna Smith", text=changed, occurrence=occurrence)
        assert found.new == mark("Smith", "ORG", text=changed, occurrence=occurrence)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ("Nobody is here.", "no longer in it"),
        ("", "no longer in it"),
        ("x Bob y", "changed around"),
        (f"{TEXT} {TEXT}"[3:], "2 places that look the same"),
    ],
)
def test_words_that_are_not_found_are_reported(changed: str, reason: str) -> None:
    text = "met Bob in Geneva"
    one = correct(mark("Bob", text=text), None, text=text)
    fit = fit_corrections([one], changed)
    assert not fit.corrections
    assert reason in fit.misfits[0].reason


def test_equal_places_are_told_apart_by_their_offsets() -> None:
    text = "Bob ran. " * 20
    one = correct(mark("Bob", text=text, occurrence=10), None, text=text)
    assert fit_corrections([one], text + "The end.").corrections[0].anchor.start == 90
    assert not fit_corrections([one], "x" + text).corrections


def test_marks_that_labels_cannot_hold_are_reported() -> None:
    across = Mark(start=29, end=42, type="PER", text=TEXT[29:42])
    half = Mark(start=8, end=11, type="PER", text=TEXT[8:11])
    fit = fit_corrections([correct(None, across), correct(None, half)], TEXT, words(TEXT))
    assert [misfit.reason for misfit in fit.misfits] == [
        f"{across.text!r} crosses the boundary of a sentence",
        "'nna' does not begin and end with a word",
    ]


def test_log_that_was_edited_by_hand_is_reported() -> None:
    one = correct(mark("Bob"), None)
    forged = one.model_copy(update={"old": mark("Bob").moved(1)})
    assert "is not the text at" in fit_corrections([forged], TEXT).misfits[0].reason


def test_later_correction_of_the_same_words_wins_and_is_named() -> None:
    first = correct(mark("New York City", "LOC"), None)
    second = correct(None, mark("New York", "LOC"), who="bob")
    third = correct(mark("Bob"), mark("Bob"))
    fourth = correct(mark("Bob"), mark("Bob"), who="bob")
    fit = fit_corrections([first, third, second, fourth], TEXT)
    assert fit.corrections == (fourth, second)
    assert [(pair.earlier, pair.later) for pair in fit.overruled] == [(first, second)]


def test_later_correction_keeps_whom_an_entity_names_unless_it_says_so_itself() -> None:
    named = mark("Bob").model_copy(update={"canonical": "Bob Lee"})
    first = correct(mark("Bob"), named)
    assert (first.action, first.description) == ("accept", "Bob: PER, names Bob Lee")
    fit = fit_corrections([first, correct(mark("Bob"), mark("Bob"))], TEXT)
    assert [correction.new for correction in fit.corrections] == [named]
    assert not fit.overruled
    other = named.model_copy(update={"canonical": "Bob Low"})
    fit = fit_corrections([first, correct(mark("Bob"), other)], TEXT)
    assert [correction.new for correction in fit.corrections] == [other]
    assert [pair.earlier for pair in fit.overruled] == [first]
    [organisation] = fit_corrections([first, correct(mark("Bob"), mark("Bob", "ORG"))], TEXT).corrections
    assert organisation.new == mark("Bob", "ORG")


def test_one_entity_becomes_two() -> None:
    model = [mark("Anna Smith"), mark("Bob")]
    first = correct(mark("Anna Smith"), mark("Smith"))
    second = correct(None, mark("Anna", "LOC"))
    fit = fit_corrections([first, second], TEXT, words(TEXT))
    assert fit.corrections == (second, first)
    assert not fit.overruled
    assert corrected_marks(model, fit.corrections) == [mark("Anna", "LOC"), mark("Smith"), mark("Bob")]
    third = correct(mark("Anna Smith"), mark("Anna Smith", "ORG"))
    fit = fit_corrections([first, second, third], TEXT)
    assert fit.corrections == (third,)
    assert [pair.earlier for pair in fit.overruled] == [second, first]


@pytest.mark.slow
def test_ten_thousand_corrections_of_one_document_are_fitted_at_once() -> None:
    text = "Bob ran. " * 10_000
    marks = [Mark(start=9 * number, end=9 * number + 3, type="PER", text="Bob") for number in range(10_000)]
    new = [one.model_copy(update={"type": "ORG"}) for one in marks]
    model = correct(marks[0], new[0], text=text)
    log = [model.model_copy(update={"old": one, "new": other}) for one, other in zip(marks, new, strict=True)]
    # Each pair compared with each other pair would take minutes.
    fit = fit_corrections([*log, *log[::-1]], text)
    assert fit.corrections == tuple(log)
    assert {one.type for one in corrected_marks(marks, fit.corrections)} == {"ORG"}


def test_corrected_marks_replace_what_they_overlap() -> None:
    model = [mark("Anna Smith"), mark("Bob"), mark("New York City", "LOC")]
    fit = fit_corrections([correct(None, mark("York", "LOC")), correct(mark("Bob"), None)], TEXT)
    assert corrected_marks(model, fit.corrections) == [mark("Anna Smith"), mark("York", "LOC")]
    assert corrected_marks(model, ()) == model


def test_places_are_whole_words_with_any_white_space() -> None:
    text = "New York, New\r\n York. New Yorkers, anew York; new york. Cafe\u0301 Cafe"
    places = find_places("d", text, [mark("New York", text=text)], "New York")
    assert [(place.start, len(place.found)) for place in places] == [(0, 1), (10, 0)]
    assert [place.start for place in find_places("d", text, [], "Cafe")] == [text.rindex("Cafe")]
    assert find_places("d", "C++ and C", [], "C++")[0].end == 3
    assert find_places("d", text, [], " ") == []


def test_places_become_single_corrections() -> None:
    text = "Smith, Anna Smith and Smith Jones"
    model = [mark("Anna Smith", text=text), mark("Smith", "PER", text=text)]
    places = find_places("d", text, model, "Smith")
    assert [place.is_whole for place in places] == [True, False, True]
    assert all(place.is_whole for place in find_places("d", text, model, "Anna Smith and Smith"))
    made = [correct(old, new, text=text) for place in places for old, new in marks_at(place, text, "PER")]
    assert [one.action for one in made] == ["accept", "relabel", "add"]
    dropped = [correct(old, new, text=text) for place in places for old, new in marks_at(place, text, None)]
    assert [one.action for one in dropped] == ["drop", "drop"]
