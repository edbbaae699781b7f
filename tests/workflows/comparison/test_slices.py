"""Slices: what a user may write, and which names are in one."""

import pytest

from concord.models.config import ConfigError
from concord.models.data.sentence import Sentence
from concord.models.labels import Span
from concord.models.schemes import BIO
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.errors import InputError
from concord.workflows.comparison.slices import check_filled, parse_slice, slices_by_span

ADA = Span(0, 2, "PER")
TOM = Span(3, 4, "PER")


def document(name: str | None, *lines: str, **metadata: str) -> GoldDocument:
    """Give a document whose sentences are all labelled as the first one is."""
    sentences = [
        Sentence(words=tuple(line.split()), labels=("B-PER", "I-PER", "O", "B-PER", *["O"] * (len(line.split()) - 4)))
        for line in lines
    ]
    return GoldDocument(name=name, sentences=tuple(sentences), lines=(1,) * len(lines), metadata=metadata)


DOCUMENTS = [
    document("news-1", "Ada King met Tom", "Ada King saw Tom again", genre="news"),
    document("blog-1", "Eva May met Tom , she said", genre="blog"),
    document(None, "Ada King met Eva"),
]
PLACES = [(0, 0), (0, 1), (1, 0), (2, 0)]


@pytest.mark.parametrize(
    ("text", "ada", "tom"),
    [
        ("long=sentence_words>4", [0, 1, 1, 0], [0, 1, 1, 0]),
        ("s = sentence_words <= 4", [1, 0, 0, 1], [1, 0, 0, 1]),
        ("two=mention_words==2", [1, 1, 1, 1], [0, 0, 0, 0]),
        ("one=mention_words<2", [0, 0, 0, 0], [1, 1, 1, 1]),
        ("d=document_words>=9", [1, 1, 0, 0], [1, 1, 0, 0]),
        ("news=doc_id:news*", [1, 1, 0, 0], [1, 1, 0, 0]),
        ("b=genre:b?og", [0, 0, 1, 0], [0, 0, 1, 0]),
        ("people=type:PER", [1, 1, 1, 1], [1, 1, 1, 1]),
        ("new=name:unseen", [0, 0, 1, 0], [1, 1, 1, 1]),
        ("old=name:seen", [1, 1, 0, 1], [0, 0, 0, 0]),
    ],
)
def test_a_slice_holds_the_names_that_it_says(text: str, ada: list[int], tom: list[int]) -> None:
    part = parse_slice(text)
    slices_of = slices_by_span([part], DOCUMENTS, {("ada", "king"): frozenset({"PER"})})
    for span, expected in ((ADA, ada), (TOM, tom)):
        assert [list(slices_of(*place, span)) for place in PLACES] == [[part.name] if held else [] for held in expected]


@pytest.mark.parametrize(
    "text",
    ["long", "=doc_id:a", "long=", "long=sentence_words", "a=sentence_words:30", "a=doc_id>3", "a=name:new", "a=:b"],
)
def test_what_is_no_slice_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected (NAME=FIELD:PATTERN|name:seen)"):
        parse_slice(text)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a=topic:war"], r"a key of the corpus' comments \(genre\), got 'topic'"),
        (["a=name:seen"], "told by --train"),
        (["a=genre:news", "a=genre:blog"], "a name of its own"),
    ],
)
def test_a_slice_that_the_corpus_cannot_answer_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        slices_by_span([parse_slice(text) for text in texts], DOCUMENTS, None)


def test_a_slice_without_a_gold_name_is_refused() -> None:
    slices = [parse_slice(text) for text in ("none=mention_words>2", "some=genre:blog", "nobody=type:ORG")]
    slices_of = slices_by_span(slices, DOCUMENTS, None)
    with pytest.raises(InputError, match="slice none, nobody: expected a name"):
        check_filled(slices, DOCUMENTS, slices_of, scheme=BIO)
