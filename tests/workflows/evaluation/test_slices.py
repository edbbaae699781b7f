"""Slices: their syntax, and which entities are in one."""

import pytest

from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.models.labels.schemes import BIO
from concord.models.labels.spans import Span
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.errors import InputError
from concord.workflows.evaluation.slices import check_not_empty, parse_slice, slice_finder

ADA = Span(0, 2, "PER")
TOM = Span(3, 4, "PER")


def document(name: str | None, *lines: str, **metadata: str) -> GoldDocument:
    """Return a document whose sentences all have the labels of the first one."""
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
def test_slice_has_the_entities_of_its_condition(text: str, ada: list[int], tom: list[int]) -> None:
    part = parse_slice(text)
    find_slices = slice_finder([part], DOCUMENTS, {("ada", "king"): frozenset({"PER"})})
    for span, expected in ((ADA, ada), (TOM, tom)):
        assert [list(find_slices(*place, span)) for place in PLACES] == [
            [part.name] if held else [] for held in expected
        ]


@pytest.mark.parametrize(
    "text",
    ["long", "=doc_id:a", "long=", "long=sentence_words", "a=sentence_words:30", "a=doc_id>3", "a=name:new", "a=:b"],
)
def test_invalid_slice_is_rejected_with_the_expected_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected (NAME=FIELD:PATTERN|name:seen)"):
        parse_slice(text)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a=topic:war"], r"a key of the comments in the corpus \(genre\), got 'topic'"),
        (["a=name:seen"], "expected --train"),
        (["a=genre:news", "a=genre:blog"], "a different name for each"),
    ],
)
def test_slice_finder_rejects_slices_that_the_corpus_cannot_decide(texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        slice_finder([parse_slice(text) for text in texts], DOCUMENTS, None)


def test_slice_without_a_gold_entity_is_rejected() -> None:
    slices = [parse_slice(text) for text in ("none=mention_words>2", "some=genre:blog", "nobody=type:ORG")]
    find_slices = slice_finder(slices, DOCUMENTS, None)
    with pytest.raises(InputError, match="slice none, nobody: expected an entity"):
        check_not_empty(slices, DOCUMENTS, find_slices, scheme=BIO)
