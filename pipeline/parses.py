"""Parses of earlier generations, read back from the table of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pipeline.commits import RunFolder
from pipeline.places import Place
from pipeline.readers.annotated import read_part
from pipeline.records import Document, ParsedDocument, ParsedSentence, ParsedWord, ParsePlace

_WORD_COLUMNS = ("start_char", "end_char", "text", "word", "lemma", "upos", "xpos", "feats", "head", "deprel")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where a document's rows begin and end in the tables of sentences and tokens."""

    text_sha256: str
    sentences: slice
    tokens: slice


class StoredParses:
    """The parses that some committed shards hold, by document."""

    def __init__(self, folder: RunFolder, places: Sequence[ParsePlace]) -> None:
        """Read the shards.

        Raises:
            IntegrityError: when a commit or part is gone or cannot be read.
        """
        self._shards = [_StoredShard(folder, place) for place in places]

    def find(self, document: Document) -> ParsedDocument | None:
        """Give a document's parse, unless none stands or it is of another text."""
        for shard in self._shards:
            found = shard.find(document)
            if found is not None:
                return found
        return None


class _StoredShard:
    def __init__(self, folder: RunFolder, place: ParsePlace) -> None:
        report = folder.built_on(place.shard, generation=place.generation)
        tables = {name: folder.output / report.files[name].path for name in ("documents", "sentences", "tokens")}
        documents = _columns(tables["documents"], ("doc_id", "text_sha256", "n_sentences", "n_tokens"))
        self._sentences = list(zip(*_columns(tables["sentences"], ("n_tokens", "continues")), strict=True))
        self._words = _columns(tables["tokens"], _WORD_COLUMNS)
        self._rows: dict[str, _Rows] = {}
        sentence = token = 0
        for doc_id, digest, sentences, tokens in zip(*documents, strict=True):
            self._rows[doc_id] = _Rows(digest, slice(sentence, sentence + sentences), slice(token, token + tokens))
            sentence, token = sentence + sentences, token + tokens

    def find(self, document: Document) -> ParsedDocument | None:
        rows = self._rows.get(document.doc_id)
        if rows is None or rows.text_sha256 != sha256(document.text.encode()).hexdigest():
            return None
        words = zip(*(column[rows.tokens] for column in self._words), strict=True)
        sentences = tuple(
            ParsedSentence(words=tuple(ParsedWord(*next(words)) for _ in range(length)), continues=continues)
            for length, continues in self._sentences[rows.sentences]
        )
        return ParsedDocument(document=document, sentences=sentences)


def _columns(path: Place, names: Sequence[str]) -> list[list[Any]]:
    table = read_part(path, names)
    return [table.column(name).to_pylist() for name in names]
