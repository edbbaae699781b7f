"""Written gold corpora are read back unchanged, and a failed write leaves the old file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.data.sentence import Sentence
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.corpora.gold_corpus import GoldDocument, GoldForm, read_corpus, write_gold
from concord.pipeline.errors import StoreError
from concord.pipeline.storage import atomic_writes

WORDS = st.sampled_from(["Ada", "#", "1", "naïve", "a\u2028b", "no\u00a0way", "_", "NER=B-PER", "-", "\u00e9"])


@st.composite
def sentences(draw: st.DrawFn) -> Sentence:
    words = tuple(draw(st.lists(WORDS, min_size=1, max_size=4)))
    labels = draw(st.sampled_from([("O",), ("B-PER",), ("B-PER", "I-PER", "O", "B-LOC")]))
    labels = (labels + ("O",) * len(words))[: len(words)]
    if draw(st.booleans()):
        return Sentence(words=words, labels=labels)
    heads = (0, *range(1, len(words)))
    return Sentence(
        words=words, labels=labels, tags=("NOUN",) * len(words), heads=heads, relations=("dep",) * len(words)
    )


@st.composite
def corpora(draw: st.DrawFn) -> list[GoldDocument]:
    """Draw sentences outside of documents, which come first in a file, then documents with and without a name."""
    alone = draw(st.lists(sentences(), max_size=2))
    documents = draw(st.lists(st.tuples(st.sampled_from(["", "x 1"]), st.lists(sentences(), min_size=1, max_size=2))))
    return [
        *(GoldDocument(name=None, sentences=(sentence,), lines=()) for sentence in alone),
        *(GoldDocument(name=name, sentences=tuple(found), lines=()) for name, found in documents),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "suffix"), [("conll", ".gz"), ("conllu", ""), ("conllu", ".zst")])
@given(corpus=corpora())
def test_written_corpus_is_read_back_unchanged(
    tmp_path: Path, form: GoldForm, suffix: str, corpus: list[GoldDocument]
) -> None:
    path = tmp_path / f"a.{form}{suffix}"
    write_gold(path, corpus, form=form)
    found = read_corpus(path).documents
    assert [document.name for document in found] == [document.name for document in corpus]
    for one, other in zip(found, corpus, strict=True):
        if form == "conllu":
            assert one.sentences == other.sentences
        else:
            plain = [(sentence.words, sentence.labels) for sentence in other.sentences]
            assert [(sentence.words, sentence.labels) for sentence in one.sentences] == plain


@pytest.mark.parametrize("column", ["upos", "xpos", "Sense"])
def test_token_labels_are_written_to_their_column(tmp_path: Path, column: str) -> None:
    sentence = Sentence(words=("She", "ran"), labels=("PRP", "O"))
    documents = [GoldDocument(name="x", sentences=(sentence,), lines=())]
    write_gold(tmp_path / "a.conllu", documents, form="conllu", label_column=column)
    form = GoldFormat(label_column=column, label_scheme="TOKENS")
    assert read_corpus(tmp_path / "a.conllu", form).documents[0].sentences == (sentence,)


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.conll"
    path.write_text("old\tO\n")
    monkeypatch.setattr(atomic_writes, "stage_file", fail)
    with pytest.raises(StoreError, match="No space left"):
        write_gold(path, [], form="conll")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old\tO\n"]
