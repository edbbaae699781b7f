"""Documents of files: positions, ids, other fields, and pieces of any size."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing.broken_files import plan_for, read_plan, zstd
from hypothesis import given, reject
from hypothesis import strategies as st

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import Document, Lost
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers.read_file import format_of, read_piece


def documents(where: Path, *, shard_bytes: int = 500_000, **reader: Any) -> list[Document]:
    found = read_plan(plan_for(where, shard_bytes=shard_bytes, **reader))
    assert all(isinstance(record, Document) for record in found), found
    return [record for record in found if isinstance(record, Document)]


def multi_member(content: bytes) -> bytes:
    half = len(content) // 2
    return gzip.compress(content[:half]) + gzip.compress(content[half:])


NO_WORD = (Lost(0, "no_text", "expected a text, got no word"),)
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".GZ": multi_member,
    ".zst": zstd,
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", "text"),
        ("a.TXT.gz", "text"),
        ("a.b.jsonl", "jsonl"),
        ("a.ndjson.ZST", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.parquet.gz", None),
        ("a.gz", None),
        ("a.md", None),
        ("txt", None),
    ],
)
def test_format_of_depends_on_the_suffixes(name: str, expected: str | None) -> None:
    assert format_of(name) == expected


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_text_file_is_one_document_with_its_path_as_id(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / f"a.txt{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](b"One.\nTwo."))

    assert documents(tmp_path) == [
        Document(
            doc_id=f"deep/a.txt{suffix}", text="One.\nTwo.", source_uri=str(path), source_position=0, encoding="utf-8"
        )
    ]


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_jsonl_record_keeps_its_position_and_other_fields(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    first = b'{"z": [1, null], "id": "a", "text": "One.", "b": "\xc3\xa9"}\n'
    path.write_bytes(COMPRESSIONS[suffix](first + b'{"id": 7, "text": "Two."}\r\n\n{"id": null, "text": ""}'))

    assert documents(path) == [
        Document(
            doc_id="a",
            text="One.",
            source_uri=str(path),
            source_position=0,
            meta='{"b":"\u00e9","z":[1,null]}',
            encoding="utf-8",
        ),
        Document(doc_id="7", text="Two.", source_uri=str(path), source_position=len(first), encoding="utf-8"),
        Document(
            doc_id=f"a.jsonl{suffix}:{len(first) + 28}",
            text="",
            source_uri=str(path),
            source_position=len(first) + 28,
            encoding="utf-8",
            lost=NO_WORD,
        ),
    ]


def test_id_text_and_encoding_are_those_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        '{"key": "\u00e9", "body": "caf\u00e9 \u20ac", "text": "other"}\n'.encode("cp1252")
    )

    (found,) = documents(tmp_path, id_field="key", text_field="body", encoding="cp1252")

    assert (found.doc_id, found.text, found.meta) == ("\u00e9", "caf\u00e9 \u20ac", '{"text":"other"}')


def test_parquet_row_keeps_its_number_and_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "id": pa.array([1, None, 3], pa.int64()),
            "text": pa.array(["One.", "", "Three."], pa.large_string()).dictionary_encode(),
            "day": pa.array([0, 1, None], pa.date32()),
            "raw": pa.array([b"\xff", b"", None]),
            "wait": pa.array([5, None, None], pa.duration("s")),
        }
    )
    pq.write_table(table, path)

    assert documents(tmp_path) == [
        Document(
            doc_id="1",
            text="One.",
            source_uri=str(path),
            source_position=0,
            meta='{"day":"1970-01-01","raw":"/w==","wait":"0:00:05"}',
        ),
        Document(
            doc_id="a.parquet:1",
            text="",
            source_uri=str(path),
            source_position=1,
            meta='{"day":"1970-01-02","raw":"","wait":null}',
            lost=NO_WORD,
        ),
        Document(
            doc_id="3",
            text="Three.",
            source_uri=str(path),
            source_position=2,
            meta='{"day":null,"raw":null,"wait":null}',
        ),
    ]


def test_parquet_shards_are_cut_by_the_length_of_the_texts(tmp_path: Path) -> None:
    # Dictionary encoding makes a file of equal texts tiny; the documents are not.
    pq.write_table(pa.table({"text": ["x" * 1000] * 100}), tmp_path / "a.parquet")

    plan = plan_for(tmp_path, shard_bytes=10_000)

    assert [shard.records for shard in plan.shards] == [10] * 10


LINE = st.one_of(
    st.fixed_dictionaries(
        {"text": st.text(max_size=20)}, optional={"id": st.sampled_from(["a", "b", 1, True, None]), "k": st.integers()}
    ).map(lambda fields: json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")),
    st.sampled_from([b"", b"  ", b"\r", b"[]", b"{", b"\xff", b'{"text": "\\ud800"}', b'{"text": 1}', b"{}"]),
)


@pytest.mark.slow
@given(
    content=st.lists(LINE, max_size=12),
    end=st.sampled_from([b"", b"\n"]),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    suffix=st.sampled_from(sorted(COMPRESSIONS)),
    cut=st.integers(0, 30),
    flipped=st.none() | st.integers(0, 60),
    shard_bytes=st.integers(1, 120),
)
def test_jsonl_pieces_of_any_size_have_the_records_of_the_whole_file(
    tmp_path: Path,
    content: list[bytes],
    end: bytes,
    mark: bytes,
    suffix: str,
    cut: int,
    flipped: int | None,
    shard_bytes: int,
) -> None:
    # The planner refuses an input in which no first record has a text.
    raw = mark + b"\n".join([b'{"text": "Anna left."}', *content]) + end
    stored = bytearray(COMPRESSIONS[suffix](raw))
    if suffix:
        if flipped is not None and flipped < len(stored):
            stored[flipped] ^= 0xFF
        del stored[max(len(stored) - cut, 0) :]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(stored)

    try:
        whole = read_plan(plan_for(path))
    except InputError:
        if not suffix or flipped is None:
            raise
        reject()
    cut_up = read_plan(plan_for(path, shard_bytes=shard_bytes))

    assert cut_up == whole
    if not suffix or (cut == 0 and flipped is None):
        assert len(whole) == sum(1 for line in raw.removeprefix(mark).split(b"\n") if line.strip())


@given(
    texts=st.lists(st.one_of(st.none(), st.text(max_size=9)), min_size=1, max_size=200),
    group=st.integers(1, 150),
    shard_bytes=st.integers(1, 400),
)
def test_parquet_pieces_of_any_size_have_the_records_of_the_whole_file(
    tmp_path: Path, texts: list[str | None], group: int, shard_bytes: int
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path, row_group_size=group)

    whole = read_plan(plan_for(path))

    assert read_plan(plan_for(path, shard_bytes=shard_bytes)) == whole
    assert [getattr(record, "text", None) for record in whole] == texts


def test_pieces_can_be_read_repeatedly_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"id": %d, "text": "x"}\n' % number for number in range(50))))
    plan = plan_for(path, shard_bytes=40)
    pieces = [shard.pieces[0] for shard in plan.shards]
    expected = {piece: list(read_piece(piece, plan.config.reader)) for piece in pieces}

    next(read_piece(pieces[0], plan.config.reader))  # which is left halfway
    for piece in [*reversed(pieces), *pieces[::3], pieces[0], pieces[0]]:
        assert list(read_piece(piece, plan.config.reader)) == expected[piece]


def test_replaced_file_is_not_read_through_the_old_open_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": 1, "text": "old"}\n{"id": 2, "text": "old"}\n'))
    first, second = (shard.pieces[0] for shard in plan_for(path, shard_bytes=1).shards)
    list(read_piece(first, ReaderConfig()))
    path.unlink()
    path.write_bytes(gzip.compress(b'{"id": 1, "text": "new"}\n{"id": 2, "text": "new"}\n' + b" " * 99))

    (record,) = read_piece(second, ReaderConfig())

    assert isinstance(record, Document)
    assert record.text == "new"


@pytest.mark.parametrize("changed", ['{"text": "one"}\n{"text": "two and more"}', '{"text": "one"}\n', None])
def test_jsonl_that_changed_since_the_plan_is_rejected(tmp_path: Path, changed: str | None) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}')
    (shard,) = plan_for(path).shards
    path.unlink()
    if changed is not None:
        path.write_text(changed)
    with pytest.raises(InputError, match=r"changed since the plan|cannot be read"):
        list(read_piece(shard.pieces[0], ReaderConfig()))


def test_text_and_parquet_that_changed_since_the_plan_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    pq.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "b.parquet")
    (shard,) = plan_for(tmp_path).shards
    (tmp_path / "a.txt").write_text("more")
    pq.write_table(pa.table({"text": ["one"]}), tmp_path / "b.parquet")
    for piece in shard.pieces:
        with pytest.raises(InputError, match="changed since the plan"):
            list(read_piece(piece, ReaderConfig()))


def test_piece_of_unknown_format_is_rejected() -> None:
    piece = Piece(uri="/x", format="djvu", start=0, end=1, records=1)

    with pytest.raises(InputError, match="got 'djvu'"):
        list(read_piece(piece, ReaderConfig()))
