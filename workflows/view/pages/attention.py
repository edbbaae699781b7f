"""The page that shows what stage two reads of a name: the weights of the document memory behind each of its words."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from concord.models.data.outputs import AttentionMap
from concord.pipeline.output.document_rows import CollectedDocument, TokenRow
from concord.workflows.view.index.document import read_document
from concord.workflows.view.index.documents import get_document
from concord.workflows.view.index.hits import Line, places_of_name
from concord.workflows.view.index.search_index import all_labels
from concord.workflows.view.page import Page, Query, UnavailableError
from concord.workflows.view.pages.text_layout import label_name
from concord.workflows.view.viewer import Viewer

_SHOWN_PLACES = 20
_SHOWN_WEIGHTS = 5
_SMALLEST = 0.01
_CONTEXT_WORDS = 5


class AttendedWord(NamedTuple):
    """A word that another one reads in the memory: its weight, sentence, words around it, and labels as shown."""

    weight: float
    sent_id: int
    left: str
    match: str
    right: str
    draft: str
    final: str


class ReadingWord(NamedTuple):
    """A word of a name, whether stage two labelled it, and what it reads, the largest weights first."""

    text: str
    refined: bool
    reads: Sequence[AttendedWord]


Place = tuple[Line, list[ReadingWord]]


def attention(viewer: Viewer, query: Query) -> Page:
    """Show what each word of a name reads, for each of its places in a document."""
    name = query.text("name")
    collection = viewer.opened.snapshot.collection
    with viewer.opened.index.reading() as index:
        document = get_document(index, query.text("id"))
        lines, count = places_of_name(index, name=name, document=document.id) if name else ([], 0)
        labels = all_labels(index)
        rows = read_document(viewer.opened, index, document)
    obstacle, places = "", list[Place]()
    try:
        maps = viewer.tagger.attention_maps(collection, rows)
        places = list(_places(rows, maps, lines[:_SHOWN_PLACES]))
    except UnavailableError as error:
        obstacle = str(error)
    values = {
        "document": document,
        "name": name,
        "obstacle": obstacle,
        "places": places,
        "count": count,
        "labels": labels,
    }
    return Page("attention.html.j2", values)


def _places(
    document: CollectedDocument, maps: Sequence[Mapping[str, AttentionMap]], lines: Sequence[Line]
) -> Iterator[Place]:
    tokens = [(token, sentence.row.sent_id) for sentence in document.sentences for token in sentence.tokens]
    # Of each word, by its number in the document: its weights over all words.
    rows = [row for names in maps if "memory" in names for row in names["memory"].weights[0]]
    starts = [token.start_char for token, _ in tokens]
    for line in lines:
        if line.entity is None:
            continue
        words = []
        for number in range(bisect_left(starts, line.entity.start), bisect_left(starts, line.entity.end)):
            weights, order = rows[number].topk(min(_SHOWN_WEIGHTS, len(rows[number])))
            pairs = zip(weights.tolist(), order.tolist(), strict=True)
            reads = [_attended_word(tokens, other, weight) for weight, other in pairs if weight >= _SMALLEST]
            words.append(ReadingWord(tokens[number][0].text, tokens[number][0].refined, reads))
        yield line, words


def _attended_word(tokens: Sequence[tuple[TokenRow, int]], number: int, weight: float) -> AttendedWord:
    token, sent_id = tokens[number]
    around = tokens[max(0, number - _CONTEXT_WORDS) : number + 1 + _CONTEXT_WORDS]
    sentence = [word for word, number in around if number == sent_id]
    left = [word.text for word in sentence if word.start_char < token.start_char]
    labels = label_name(token.draft_ner), label_name(token.ner)
    right = [word.text for word in sentence if word.start_char > token.start_char]
    return AttendedWord(weight, sent_id, " ".join(left), token.text, " ".join(right), *labels)
