"""concord.read_text: the text that the offsets of a row refer to, from any kind of source."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs, stores
from concord_testing.broken_files import arrow_stream, zstd

import concord
from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.errors import InputError

pytestmark = pytest.mark.slow

TEXTS = ["Anna met Bob.\r\nBob left.", "Zoë met Łukasz.\rThey left.", "Anna left."]
RECORDS = [{"id": f"r{number}", "text": text} for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> tuple[concord.Run, Path]:
    """Annotate one file of each kind."""
    folder = tmp_path_factory.mktemp("texts")
    source = folder / "in"
    source.mkdir()
    lines = "".join(f"{json.dumps({**record, 'id': 'j' + record['id']})}\n" for record in RECORDS).encode()
    (source / "bom.txt").write_bytes(b"\xef\xbb\xbf" + TEXTS[0].encode())
    (source / "latin.txt.gz").write_bytes(gzip.compress("Muñoz left.\r\n".encode("latin-1")))
    (source / "page.html").write_bytes(b"<p>Anna <b>met</b> Bob.<p>Bob left.")
    (source / "lines.jsonl.zst").write_bytes(zstd(lines))
    (source / "table.csv").write_bytes('id,text\r\nc,"Anna met\r\nZoë."\r\n'.encode("cp1252"))
    pq.write_table(
        pa.Table.from_pylist([{**record, "id": f"p{record['id']}"} for record in RECORDS]), source / "a.parquet"
    )
    (source / "data-00000-of-00001.arrow").write_bytes(arrow_stream(pa.Table.from_pylist(RECORDS)))
    report = runs.run_job(runs.job(source, folder / "out", reader={"encoding": "auto"}))
    return concord.open(str(report.output)), source


def test_every_source_gives_the_text_that_was_annotated(collection: tuple[concord.Run, Path]) -> None:
    run, _ = collection
    rows = {row["doc_id"]: row for row in run.to_arrow("documents").to_pylist()}
    assert len(rows) == 13

    texts = {doc_id: concord.read_text(row) for doc_id, row in rows.items()}

    assert texts["bom.txt"] == TEXTS[0]
    assert texts["latin.txt.gz"] == "Muñoz left.\r\n"
    assert texts["page.html"].split() == ["Anna", "met", "Bob.", "Bob", "left."]
    assert [texts[f"{kind}r{number}"] for kind in ("j", "p", "") for number in range(3)] == TEXTS * 3
    assert texts["c"] == "Anna met\r\nZoë."
    for token in run.to_arrow("tokens").to_pylist():
        assert texts[token["doc_id"]][token["start_char"] : token["end_char"]] == token["text"]


def test_row_may_be_of_pandas_or_arrow_or_have_attributes(collection: tuple[concord.Run, Path]) -> None:
    run, _ = collection
    frame = run.to_pandas("documents").set_index("doc_id", drop=False)
    named = next(row for row in frame.itertuples() if row.doc_id == "r1")
    scalar = next(row for row in run.to_arrow("documents").to_struct_array().to_pylist() if row["doc_id"] == "r1")
    struct = pa.scalar(scalar)
    series = pd.Series({name: scalar[name] for name in ("doc_id", "source_uri", "source_position", "text_sha256")})

    assert [concord.read_text(row) for row in (frame.loc["r1"], named, struct, series)] == [TEXTS[1]] * 4
    assert run.read_text(frame.loc["latin.txt.gz"]) == "Muñoz left.\r\n"


def test_settings_name_the_field(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"id": "a", "body": "Anna left."}\n')
    config = runs.job(source, tmp_path / "out", reader={"text_field": "body"})
    run = concord.open(str(runs.run_job(config).output))
    [row] = run.to_arrow("documents").to_pylist()

    assert concord.read_text(row, settings={"reader.text_field": "body"}) == run.read_text(row) == "Anna left."
    with pytest.raises(InputError, match=r"set reader\.text_field"):
        concord.read_text(row)
    with pytest.raises(ConfigError, match="reder: unknown key; did you mean 'reader'"):
        concord.read_text(row, settings={"reder.text_field": "body"})


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_source_that_changed_or_is_gone_is_named(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    source.write_text('{"id": "a", "text": "Anna left."}\n')
    [row] = concord.open(str(runs.run_job(runs.job(source, tmp_path / "out")).output)).to_arrow("documents").to_pylist()

    source.write_text('{"id": "a", "text": "Bob left."}\n')
    with pytest.raises(InputError, match=rf"{name}: expected the text of document .* the input has changed"):
        concord.read_text(row)

    source.write_text('\n{"id": "b", "text": "Bob left."}\n{"id": "a", "text": "Anna left."}\n')
    if name == "a.jsonl":
        assert concord.read_text(row) == "Anna left."

    source.unlink()
    with pytest.raises(InputError, match=name):
        concord.read_text(row)


@pytest.mark.parametrize("row", [{}, {"doc_id": "a"}, object(), None, {"label": "PER"}])
def test_row_of_another_table_is_refused(row: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected a row of documents, got one without"):
        concord.read_text(row)


def test_stored_text_needs_no_source_and_that_of_memory_has_none() -> None:
    row = {"doc_id": "0", "source_uri": "memory", "source_position": 0, "text_sha256": "0" * 64}

    assert concord.read_text({**row, "raw_text": "kept"}) == "kept"
    with pytest.raises(InputError, match="memory"):
        concord.read_text(row)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.arrow"])
def test_text_behind_a_url_is_fetched_again(tmp_path: Path, name: str) -> None:
    lines = "".join(f"{json.dumps(record)}\n" for record in RECORDS).encode()
    contents = {"a.jsonl.gz": gzip.compress(lines), "a.arrow": arrow_stream(pa.Table.from_pylist(RECORDS))}
    with stores.web_server({f"/{name}": contents[name]}) as (url, _):
        run = concord.open(str(runs.run_job(runs.job(f"{url}/{name}", tmp_path / "out")).output))
        rows = run.to_arrow("documents").to_pylist()

        assert [concord.read_text(row) for row in rows] == TEXTS

    with pytest.raises(ConcordError, match=name):
        concord.read_text(rows[0])
