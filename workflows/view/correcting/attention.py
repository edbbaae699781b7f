"""The page that shows what stage two reads of a name: the weights of the document memory behind each of its words."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from concord.models.outputs import AttentionMap
from concord.pipeline.output.collection import Collection
from concord.pipeline.output.document_rows import CollectedDocument, TokenRow
from concord.workflows.corrections.ripple import tagged_sentences
from concord.workflows.view.correcting.collection_tagger import OwnTagger
from concord.workflows.view.index.document import read_document
from concord.workflows.view.index.finding import Line, all_labels, find_document, places_of_name
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.page import NotFoundError, Page, Query
from concord.workflows.view.recent import Recent

MAX_WORDS = 3000
"""Of a document whose weights are computed: their number grows with the square."""
_SHOWN_PLACES = 20
_SHOWN_WEIGHTS = 5
_SMALLEST = 0.01
_CONTEXT_WORDS = 5
_KEPT = 4


class AttendedWord(NamedTuple):
    """A word that another one reads in the memory: its weight, sentence, words around it, and labels."""

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


class Why:
    """Weights of documents; the last ones are kept."""

    def __init__(self, opened: OpenedCollection, tagger: OwnTagger) -> None:
        """Take the collection and its tagger."""
        self._opened = opened
        self._tagger = tagger
        self._maps: Recent[tuple[str, int, str, str], list[Mapping[str, AttentionMap]]] = Recent(_KEPT)

    def page(self, query: Query) -> Page:
        """Show what each word of a name reads, for each of its places in a document."""
        doc_id, name = query.text("id"), query.text("name")
        collection = self._opened.snapshot.collection
        with self._opened.index.reading() as index:
            listed = find_document(index, doc_id)
            if listed is None:
                raise NotFoundError(f"there is no document {doc_id!r}")
            places, count = places_of_name(index, name, document=listed["id"])
            labels = all_labels(index)
            document = read_document(self._opened, index, listed)
        found = self._weights(collection, document)
        values = {
            "doc_id": doc_id,
            "title": listed["title"] or doc_id,
            "name": name,
            "obstacle": found if isinstance(found, str) else "",
            "places": [] if isinstance(found, str) else _places(document, found, places[:_SHOWN_PLACES]),
            "count": count,
            "labels": labels,
        }
        return Page("why.html.j2", values)

    def _weights(self, collection: Collection, document: CollectedDocument) -> list[Mapping[str, AttentionMap]] | str:
        """Return the attention maps of each sentence, or why there are none."""
        row = document.row
        if row.n_tokens > MAX_WORDS:
            return f"The weights of documents of more than {MAX_WORDS:,} words are not computed."
        with self._tagger.lock:
            key = collection.manifest.plan, collection.manifest.generation, row.doc_id, row.text_sha256
            if key not in self._maps:
                loaded = self._tagger.load(collection.plan)
                if isinstance(loaded, str):
                    return loaded
                self._maps[key] = list(loaded[0].attention_maps(tagged_sentences(document)))
            maps = self._maps[key]
        if not any("memory" in found for found in maps):
            return "The tagger of this collection has no document memory."
        return maps


def _places(
    document: CollectedDocument, maps: Sequence[Mapping[str, AttentionMap]], places: Sequence[Line]
) -> list[tuple[Line, list[ReadingWord]]]:
    tokens = [(token, sentence.row.sent_id) for sentence in document.sentences for token in sentence.tokens]
    # Of each word, by its number in the document: its weights over all words.
    rows = [row for found in maps if "memory" in found for row in found["memory"].weights[0]]
    starts = [token.start_char for token, _ in tokens]
    found = []
    for place in places:
        if place.entity is None:
            continue
        first, stop = (bisect_left(starts, place.entity[name]) for name in ("start", "end"))
        words = []
        for number in range(first, stop):
            weights, order = rows[number].topk(min(_SHOWN_WEIGHTS, len(rows[number])))
            pairs = zip(weights.tolist(), order.tolist(), strict=True)
            reads = [_attended_word(tokens, other, weight) for weight, other in pairs if weight >= _SMALLEST]
            words.append(ReadingWord(tokens[number][0].text, tokens[number][0].refined, reads))
        found.append((place, words))
    return found


def _attended_word(tokens: Sequence[tuple[TokenRow, int]], number: int, weight: float) -> AttendedWord:
    token, sent_id = tokens[number]
    around = tokens[max(0, number - _CONTEXT_WORDS) : number + 1 + _CONTEXT_WORDS]
    left = [word.text for word, own in around if own == sent_id and word.start_char < token.start_char]
    right = [word.text for word, own in around if own == sent_id and word.start_char > token.start_char]
    return AttendedWord(weight, sent_id, " ".join(left), token.text, " ".join(right), token.draft_ner, token.ner)
