"""Parses as tables: those of earlier generations, and those that one worker passes to another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from concord.pipeline.corrections.correction import text_digest
from concord.pipeline.documents import Document, ParsedDocument, ParsedSentence, ParsedWord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.plan import ShardRef

_COLUMNS = {
    "documents": ("doc_id", "text_sha256", "n_sentences", "n_tokens"),
    "sentences": ("n_tokens", "continues"),
    "tokens": ("start_char", "end_char", "text", "word", "lemma", "upos", "xpos", "feats", "head", "deprel"),
}


@dataclass(frozen=True, slots=True)
class _Rows:
    """A document's rows in the tables of sentences and tokens."""

    text_sha256: str
    sentences: slice
    tokens: slice


class Parses:
    """Parses of documents, looked up in tables such as ``parse_tables`` returns."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        documents, sentences, tokens = (
            [tables[name].column(column).to_pylist() for column in columns] for name, columns in _COLUMNS.items()
        )
        self._sentences = list(zip(*sentences, strict=True))
        self._words = tokens
        self._rows: dict[str, _Rows] = {}
        sentence = token = 0
        for doc_id, digest, n_sentences, n_tokens in zip(*documents, strict=True):
            self._rows[doc_id] = _Rows(digest, slice(sentence, sentence + n_sentences), slice(token, token + n_tokens))
            sentence, token = sentence + n_sentences, token + n_tokens

    def find(self, document: Document) -> ParsedDocument | None:
        """Return a document's parse; None if there is none, or only of another text."""
        rows = self._rows.get(document.doc_id)
        if rows is None or rows.text_sha256 != text_digest(document.text):
            return None
        words = zip(*(column[rows.tokens] for column in self._words), strict=True)
        sentences = tuple(
            ParsedSentence(words=tuple(ParsedWord(*next(words)) for _ in range(length)), continues=continues)
            for length, continues in self._sentences[rows.sentences]
        )
        return ParsedDocument(document=document, sentences=sentences)


def read_stored_parses(folder: OutputFolder, shards: Sequence[ShardRef]) -> list[Parses]:
    """Read the parses that committed shards hold; IntegrityError if a commit record or part cannot be read."""
    parses = []
    for shard in shards:
        report = folder.require_commit(shard.shard, generation=shard.generation)
        tables = {name: read_part(folder.part(report, name), columns) for name, columns in _COLUMNS.items()}
        parses.append(Parses(tables))
    return parses


def parse_tables(parsed: Sequence[ParsedDocument]) -> dict[str, pa.Table]:
    """Convert parses to the tables that ``Parses`` reads.

    Raises:
        ValueError: for text that cannot be written (UnicodeEncodeError for a lone surrogate).
    """
    sentences = [sentence for document in parsed for sentence in document.sentences]
    words = [word for sentence in sentences for word in sentence.words]
    values = {
        "documents": {
            "doc_id": [document.document.doc_id for document in parsed],
            "text_sha256": [text_digest(document.document.text) for document in parsed],
            "n_sentences": [len(document.sentences) for document in parsed],
            "n_tokens": [sum(len(sentence.words) for sentence in document.sentences) for document in parsed],
        },
        "sentences": {
            "n_tokens": [len(sentence.words) for sentence in sentences],
            "continues": [sentence.continues for sentence in sentences],
        },
        "tokens": {name: [getattr(word, name) for word in words] for name in _COLUMNS["tokens"]},
    }
    return {
        name: pa.table(values[name], schema=pa.schema([SCHEMAS[name].field(column) for column in columns]))
        for name, columns in _COLUMNS.items()
    }
