from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from concord.pipeline.errors import IntegrityError
from concord.pipeline.output import parquet_parts
from concord.pipeline.output.collection import TokenRow, open_collection, read_collection, spaced_text
from concord.pipeline.output.schema import TOKENS

pytestmark = pytest.mark.slow

FinishRun = Callable[..., Path]

DOCUMENTS = {"a": ("one two", "three"), "b": ("four",), "c": ("five|B-PER", "six seven|B-LOC")}


def token(text: str, start: int, end: int) -> TokenRow:
    return TokenRow(1, start, end, text, text, None, None, None, None, 0, "root", "O", "O", 1.0, 0.0, False)


def corrupt(part: Path, column: str) -> None:
    """Flip the last byte of a column's first page."""
    pages = pq.read_metadata(part).row_group(0).column(TOKENS.get_field_index(column))
    content = bytearray(part.read_bytes())
    content[pages.dictionary_page_offset + pages.total_compressed_size - 1] ^= 0xFF
    part.write_bytes(content)


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_read_collection_keeps_documents_whole_across_batches_and_skips_those_not_wanted(
    finish_run: FinishRun, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(parquet_parts, "_BATCH_ROWS", batch_rows)
    collection = open_collection(finish_run(DOCUMENTS, documents_per_shard=3))
    documents = list(read_collection(collection))
    assert [
        (document.row.doc_id, sentence.sent_id, [token.text for token in sentence.tokens])
        for document in documents
        for sentence in document.sentences
    ] == [
        ("a", 0, ["one", "two"]),
        ("a", 1, ["three"]),
        ("b", 0, ["four"]),
        ("c", 0, ["five"]),
        ("c", 1, ["six", "seven"]),
    ]
    assert [(document.row.doc_id, len(document.entities)) for document in documents] == [("a", 0), ("b", 0), ("c", 2)]
    assert list(read_collection(collection, wanted=lambda doc_id: doc_id == "c")) == documents[2:]


def test_read_collection_yields_nothing_for_a_run_without_documents(finish_run: FinishRun) -> None:
    assert list(read_collection(open_collection(finish_run({})))) == []


def test_read_collection_names_a_corrupt_or_missing_part(finish_run: FinishRun) -> None:
    collection = open_collection(finish_run({"a": ("word" * 50,)}))
    (part,) = collection.parts("tokens")
    assert isinstance(part, Path)
    corrupt(part, "text")
    with pytest.raises(IntegrityError, match=rf"{part.name}: cannot be read"):
        list(read_collection(collection))
    part.unlink()
    with pytest.raises(IntegrityError, match=part.name):
        list(read_collection(collection))


def test_words_are_joined_with_the_spaces_of_the_raw_text_and_those_of_a_token_once() -> None:
    assert spaced_text([token("Do", 4, 6), token("n't", 6, 9), token("go", 12, 14)]) == "Don't go"
    assert spaced_text([token("du", 0, 2), token("du", 0, 2), token("pain", 3, 7)]) == "du pain"
