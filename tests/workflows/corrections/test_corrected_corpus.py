"""What people corrected as a gold corpus: which labels are known, and which are left open."""

from pathlib import Path

import pytest
from concord_testing.finished_runs import write_run

from concord.models.data.sentence import Sentence
from concord.pipeline.corpora.read_corpus import read_gold
from concord.pipeline.corpora.write_corpus import write_gold
from concord.pipeline.corrections.correction import Correction, Mark, Seen
from concord.pipeline.corrections.log import append_to_log, log_path
from concord.pipeline.errors import InputError
from concord.workflows.corrections.corrected_corpus import read_corrected

TEXT = "Anna Smith saw Geneva . Bob met Acme . Rain fell ."
DOCUMENTS = {
    "one": ["Anna|B-PER Smith|I-PER saw Geneva|B-PER .", "Bob|B-PER met Acme .", "Rain fell ."],
    "two": ["Anna|B-PER slept ."],
}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A finished collection of two documents."""
    return write_run(tmp_path / "out", DOCUMENTS, keep_text=True)


def mark(surface: str, label: str) -> Mark:
    start = TEXT.index(surface)
    return Mark(start=start, end=start + len(surface), type=label, text=surface)


def correct(output: Path, old: Mark | None, new: Mark | None, *, tagger: str = "tagger-x") -> Correction:
    """Append a correction of document ``one`` to the log."""
    made = Correction.of(old, new, text=TEXT, seen=Seen(doc_id="one", tagger=tagger, generation=0), who="ada")
    append_to_log(log_path(output), [made])
    return made


def shown(sentence: Sentence) -> str:
    """Return the labels of a sentence, with ``?`` where none is known."""
    known = sentence.known or (True,) * len(sentence.words)
    return " ".join(label if is_it else "?" for label, is_it in zip(sentence.labels or (), known, strict=True))


def test_sentences_that_nobody_looked_at_are_left_open(output: Path) -> None:
    correct(output, mark("Geneva", "PER"), mark("Geneva", "LOC"))
    corpus = read_corrected(output)
    assert [document.name for document in corpus.documents] == ["one"]
    (document,) = corpus.sentences
    assert list(map(shown, document)) == ["B-PER I-PER O B-LOC O", "? ? ? ?", "? ? ?"]
    assert (corpus.corrections, corpus.left_out, corpus.looked_at) == (1, 0, (1, 5))
    assert document[1].labels == ("O",) * 4
    whole = read_corrected(output, whole_documents=True).sentences[0]
    assert list(map(shown, whole)) == ["B-PER I-PER O B-LOC O", "B-PER O O O", "O O O"]


@pytest.mark.parametrize(
    ("old", "new", "labels"),
    [
        (mark("Bob", "PER"), mark("Bob", "PER"), "B-PER O O O"),
        (mark("Bob", "PER"), None, "O O O O"),
        (None, mark("Acme", "ORG"), "B-PER O B-ORG O"),
        (mark("Bob", "PER"), mark("Bob met Acme", "ORG"), "B-ORG I-ORG I-ORG O"),
        (mark("met", "O"), None, "B-PER O O O"),
    ],
    ids=["accept", "drop", "add", "relabel", "nothing"],
)
def test_any_correction_shows_that_its_sentence_was_looked_at(
    output: Path, old: Mark | None, new: Mark | None, labels: str
) -> None:
    correct(output, old, new)
    assert [shown(sentence) for sentence in read_corrected(output).sentences[0]] == ["? ? ? ? ?", labels, "? ? ?"]


def test_a_sentence_without_entities_is_looked_at_and_stays_so_with_another_tagger(output: Path) -> None:
    correct(output, mark("Rain fell .", "O"), None, tagger="an earlier one")
    corpus = read_corrected(output)
    assert shown(corpus.sentences[0][2]) == "O O O"
    assert corpus.looked_at == (1, 3)


def test_correction_beside_other_entities_says_nothing_about_the_rest(output: Path) -> None:
    """The tagger has changed since, so that nobody saw what the sentence has now."""
    correct(output, None, mark("Acme", "ORG"), tagger="an earlier one")
    assert shown(read_corrected(output).sentences[0][1]) == "? ? B-ORG ?"
    assert shown(read_corrected(output, whole_documents=True).sentences[0][0]) == "? ? ? ? ?"


def test_undone_corrections_do_not_count(output: Path) -> None:
    made = correct(output, mark("Bob", "PER"), None)
    append_to_log(log_path(output), [made.undone(who="ada")])
    with pytest.raises(InputError, match="found none; make some with 'concord view'"):
        read_corrected(output)


def test_what_the_tables_still_have_of_an_undone_correction_is_not_known(tmp_path: Path) -> None:
    output = write_run(tmp_path / "out", DOCUMENTS, keep_text=True, corrected={"one": "those of the last run"})
    made = correct(output, None, mark("Acme", "ORG"))
    append_to_log(log_path(output), [made.undone(who="ada")])
    correct(output, mark("Bob", "PER"), mark("Bob", "PER"))
    assert shown(read_corrected(output).sentences[0][1]) == "B-PER ? ? ?"


def test_digest_is_that_of_what_was_said(output: Path) -> None:
    correct(output, mark("Bob", "PER"), None)
    first = read_corrected(output)
    assert read_corrected(output).digest == first.digest
    correct(output, None, mark("Acme", "ORG"))
    assert read_corrected(output).digest != first.digest


def test_corrections_that_do_not_fit_are_counted(output: Path) -> None:
    correct(output, mark("Bob", "PER"), None)
    correct(output, None, Mark(start=1, end=3, type="PER", text="nn"))
    assert read_corrected(output).left_out == 1
    (output / "corrections.jsonl").unlink()
    correct(output, None, Mark(start=1, end=3, type="PER", text="nn"))
    with pytest.raises(InputError, match="a correction that fits"):
        read_corrected(output)


def test_written_corpus_is_read_back(output: Path, tmp_path: Path) -> None:
    correct(output, mark("Geneva", "PER"), mark("Geneva", "LOC"))
    correct(output, None, mark("Acme", "ORG"), tagger="an earlier one")
    corpus = read_corrected(output)
    write_gold(tmp_path / "corrected.conllu", corpus.documents, form="conllu")
    assert read_gold(tmp_path / "corrected.conllu") == corpus.sentences
