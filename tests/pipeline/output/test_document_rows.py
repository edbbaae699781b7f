from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from concord.pipeline.errors import IntegrityError
from concord.pipeline.output import parquet_parts
from concord.pipeline.output.document_rows import AnnotatedToken, read_documents, spaced, written
from concord.pipeline.output.schema import TOKENS


def token(text: str, start: int, end: int) -> AnnotatedToken:
    return AnnotatedToken(start, end, text, None, 0, "root", "O", "O", 0.0, False)


def write_tokens(path: Path, rows: list[tuple[str, int, str]]) -> Path:
    defaults = {"start_char": 0, "end_char": 1, "word": "w", "head": 0, "deprel": "root", "draft_ner": "O", "ner": "O"}
    values = [
        {"ner_prob": 1.0, "uncertainty": 0.0, "refined": False, "token_id": 1, **defaults}
        | {"doc_id": doc_id, "sent_id": sent_id, "text": text}
        for doc_id, sent_id, text in rows
    ]
    pq.write_table(pa.Table.from_pylist(values, schema=TOKENS), path, row_group_size=2, write_page_checksum=True)
    return path


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_read_documents_keeps_documents_whole_across_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
):
    monkeypatch.setattr(parquet_parts, "_BATCH_ROWS", batch_rows)
    rows = [("a", 0, "one"), ("a", 0, "two"), ("a", 1, "three"), ("b", 0, "four"), ("c", 0, "five"), ("c", 2, "six")]
    documents = list(read_documents(write_tokens(tmp_path / "part.parquet", rows)))
    assert [
        (document.doc_id, sentence.sent_id, [token.text for token in sentence.tokens])
        for document in documents
        for sentence in document.sentences
    ] == [("a", 0, ["one", "two"]), ("a", 1, ["three"]), ("b", 0, ["four"]), ("c", 0, ["five"]), ("c", 2, ["six"])]
    assert [document.doc_id for document in documents] == ["a", "b", "c"]


def test_read_documents_gives_nothing_for_an_empty_part(tmp_path: Path):
    assert list(read_documents(write_tokens(tmp_path / "part.parquet", []))) == []


def test_read_documents_refuses_rotten_pages(tmp_path: Path):
    path = write_tokens(tmp_path / "part.parquet", [("a", 0, "word" * 50)])
    texts = pq.read_metadata(path).row_group(0).column(TOKENS.get_field_index("text"))
    content = bytearray(path.read_bytes())
    content[texts.dictionary_page_offset + texts.total_compressed_size - 1] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"part\.parquet"):
        list(read_documents(path))


def test_read_documents_names_the_part_that_is_missing(tmp_path: Path):
    with pytest.raises(IntegrityError, match="gone"):
        list(read_documents(tmp_path / "gone.parquet"))


def test_written_keeps_the_blanks_of_the_raw_text():
    assert written([token("Do", 4, 6), token("n't", 6, 9), token("go", 12, 14)]) == "Don't go"


def test_spaced_shows_the_text_of_a_multi_word_token_once():
    tokens = [token("du", 0, 2), token("du", 0, 2), token("pain", 3, 7)]
    assert list(spaced(tokens)) == [("", "du"), ("", ""), (" ", "pain")]
