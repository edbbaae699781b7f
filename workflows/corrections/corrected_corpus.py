"""What people corrected in a collection, as a gold corpus: whole documents, known where somebody looked."""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from concord.models.data.sentence import Sentence
from concord.models.labels import OUTSIDE
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.corrections.correction import (
    Correction,
    Mark,
    corrections_digest,
    current_corrections,
    group_by_document,
    undone_ids,
)
from concord.pipeline.corrections.fitting import Fit, corrected_marks, fit_corrections
from concord.pipeline.corrections.log import log_path, read_log
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.items import percent_encode
from concord.pipeline.identity import component_signature
from concord.pipeline.output.collection import (
    CollectedDocument,
    entity_marks,
    open_collection,
    sentence_offsets,
    tagged_sentences,
)
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.corrections.corrections import documents_with_texts

CORPUS_NAME = "corrected.conllu"
"""The file of the corrected documents, in the folder of a learning."""

# White space that ends a column or a line of a corpus.
_SPACES = str.maketrans("\t\n\r", "   ")


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectedCorpus:
    """The documents of a collection in which a correction fits.

    Attributes:
        documents: with the labels of all words and which of them are known.
        corrections: how many fit.
        left_out: how many do not, or belong to a document that is gone.
        digest: SHA-256, in hex, of all that the corrections say.
        trees: signature of the parser that made the trees.
    """

    documents: Sequence[GoldDocument]
    corrections: int
    left_out: int
    digest: str
    trees: str

    @property
    def sentences(self) -> list[list[Sentence]]:
        """The sentences of each document."""
        return [list(document.sentences) for document in self.documents]

    @property
    def looked_at(self) -> tuple[int, int]:
        """How many sentences have a known word, and how many words are known."""
        known = [
            len(sentence.words) if sentence.known is None else sum(sentence.known)
            for document in self.documents
            for sentence in document.sentences
        ]
        return sum(map(bool, known)), sum(known)


def read_corrected(output: OutputPath, *, whole_documents: bool = False) -> CorrectedCorpus:
    """Read what people corrected in a collection, whether the tables have it already or not.

    Somebody looked at a sentence if a current correction that fits has a mark in it, whatever it did there, and was
    made on this text with the entities of this tagger: what was left beside it counts as right. Of other corrections
    only the words of their marks are known.

    Args:
        whole_documents: somebody who corrected such a sentence looked at all sentences of the document.

    Raises:
        PlanError: when the folder holds no finished run.
        InputError: when there is no correction, or none fits, or an input file of many records is gone.
    """
    path = log_path(output)
    log = read_log(path)
    current = current_corrections(log)
    if not current:
        raise InputError(
            f"{path}: expected corrections to learn from, found none; make some with 'concord view', or import them "
            "with 'concord corrections import'"
        )
    collection = open_collection(output)
    undone_lines = undone_ids(log)
    # Rows may still have these.
    taken_back = group_by_document(line for line in log if line.decides and line.id in undone_lines)
    documents, fitting, used = [], 0, {}
    for document, text in documents_with_texts(collection, current):
        doc_id = document.row.doc_id
        if isinstance(text, DeadLetter):
            continue
        digest = corrections_digest(current[doc_id])
        offsets = list(sentence_offsets(document))
        fit = fit_corrections(current[doc_id], text, offsets)
        if not fit.corrections:
            continue
        is_written = collection.plan.corrected.get(doc_id) in (None, digest)
        undone = () if is_written else fit_corrections(taken_back.get(doc_id, ()), text, offsets).corrections
        documents.append(_corrected(document, text, fit, undone, whole=whole_documents))
        fitting += len(current[doc_id]) - len(fit.misfits)
        used[doc_id] = digest
    if not documents:
        raise InputError(
            f"{path}: expected a correction that fits its document, found none; 'concord corrections list' says why"
        )
    return CorrectedCorpus(
        documents=documents,
        corrections=fitting,
        left_out=sum(map(len, current.values())) - fitting,
        digest=hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest(),
        trees=component_signature(collection.plan.parser),
    )


def _corrected(
    document: CollectedDocument, text: str, fit: Fit, undone: Sequence[Correction], *, whole: bool
) -> GoldDocument:
    """Return a document with the labels of its rows and of the corrections that fit.

    What the tagger had found in the place of a correction that was undone is not known until the next run.
    """
    offsets = list(sentence_offsets(document))
    starts = [start for start, _ in chain.from_iterable(offsets)]
    labels, known = [OUTSIDE] * len(starts), [False] * len(starts)

    def words(mark: Mark) -> range:
        return range(bisect_left(starts, mark.start), bisect_left(starts, mark.end))

    for mark in corrected_marks(entity_marks(document, text), fit.corrections):
        for number, word in enumerate(words(mark)):
            labels[word] = f"{'I' if number else 'B'}-{mark.type}"

    def marked_words(corrections: Iterable[Correction]) -> set[int]:
        return {word for correction in corrections for mark in correction.marks for word in words(mark)}

    for word in marked_words(fit.corrections):
        known[word] = True
    seen = marked_words(correction for correction in fit.corrections if saw(correction, document))
    unseen = marked_words(undone)
    sentences, first = [], 0
    for sentence in tagged_sentences(document):
        numbers = range(first, first + len(sentence.words))
        first = numbers.stop
        if (seen if whole else not seen.isdisjoint(numbers)) and unseen.isdisjoint(numbers):
            is_known = (True,) * len(numbers)
        else:
            is_known = tuple(known[word] for word in numbers)
        sentences.append(
            replace(
                sentence,
                words=tuple(word.translate(_SPACES) for word in sentence.words),
                labels=tuple(labels[word] if is_it else OUTSIDE for word, is_it in zip(numbers, is_known, strict=True)),
                known=None if all(is_known) else is_known,
            )
        )
    name = percent_encode(document.row.doc_id)
    return GoldDocument(name=name, sentences=tuple(sentences), lines=(0,) * len(sentences))


def saw(correction: Correction, document: CollectedDocument) -> bool:
    """Return whether a correction was made on the text and the entities of a document as they are."""
    row = document.row
    return (correction.text_sha256, correction.tagger) == (row.text_sha256, row.tagger)
