"""Inputs behind URLs: which files are found, how they are read, and the errors of stores."""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import fakes, runs, stores

from concord.models.errors import ConcordError
from concord.pipeline.annotate import dry_run
from concord.pipeline.errors import InputError, StoreError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan
from concord.pipeline.planning.planner import Planner
from concord.pipeline.readers.read_file import read_piece
from concord.pipeline.storage import object_stores
from concord.pipeline.storage.files import file_sha256, open_file
from concord.pipeline.worker.shard_worker import ShardWorker
from concord.workflows.annotation.job import read_annotate_job

pytestmark = pytest.mark.slow

SENTENCE = "Anna met Bob in Geneva on the first day and walked on."


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """A folder with a file of every format, compressed and not, a hidden one, and one of unknown format."""
    folder = tmp_path / "texts"
    (folder / "deep" / "er").mkdir(parents=True)
    records = [{"id": f"d{number}", "text": f"{number} {SENTENCE}", "year": number} for number in range(40)]
    lines = [json.dumps(record).encode() + b"\n" for record in records]
    (folder / "a.jsonl").write_bytes(b"".join(lines[:15]))
    (folder / "deep" / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[15:30])))
    pq.write_table(pa.Table.from_pylist(records[30:]), folder / "deep" / "er" / "c.parquet", row_group_size=4)
    (folder / "deep" / "d one.txt").write_text(SENTENCE)
    (folder / "deep" / "e.txt.gz").write_bytes(gzip.compress(SENTENCE.encode()))
    (folder / "deep" / ".hidden.txt").write_text("no")
    (folder / "notes.md").write_text("no")
    return folder


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of an empty folder in the memory of fsspec."""
    yield "memory://texts"
    fsspec.filesystem("memory").store.clear()


def put_in_memory(folder: Path, url: str) -> None:
    fsspec.filesystem("memory").put(f"{folder}/", f"{url}/", recursive=True)


def documents(output: Path) -> list[dict[str, object]]:
    folder = OutputFolder(output)
    manifest = folder.manifest()
    assert manifest is not None
    return [row for part in manifest.files("documents") for row in read_part(output / part.path).to_pylist()]


@pytest.mark.parametrize("store", ["s3", "memory", "file"])
def test_collection_behind_a_url_has_the_documents_of_the_local_one(
    collection: Path, tmp_path: Path, s3_url: str, memory: str, store: str
) -> None:
    url = {"s3": f"{s3_url}/my/texts", "memory": memory, "file": f"file://{collection}"}[store]
    records = (json.dumps({"id": f"cut{number}", "text": SENTENCE}).encode() + b"\n" for number in range(15))
    (collection / "deep" / "cut.jsonl.gz").write_bytes(gzip.compress(b"".join(records))[:-20])
    if store == "s3":
        stores.put_folder(collection, url)
    if store == "memory":
        put_in_memory(collection, url)

    local = runs.run_job(runs.job(collection, tmp_path / "local", max_dead_letters=1.0))
    remote = runs.run_job(runs.job(url, tmp_path / "remote", max_dead_letters=1.0))

    root = str(collection) if store == "file" else url
    expected = documents(tmp_path / "local")
    for row in expected:
        row["source_uri"] = str(row["source_uri"]).replace(str(collection), root)
    assert documents(tmp_path / "remote") == expected
    assert (remote.read, remote.annotated, remote.dead_letters) == (local.read, local.annotated, 1)
    assert local.read >= 42 + 1
    assert verify(tmp_path / "remote") == []
    assert OutputFolder(tmp_path / "remote").plan().ignored == 1


def planned_files(where: str, tmp_path: Path) -> dict[str, int]:
    """Return the files that a job plans to read, with their number of records."""
    config = runs.job(where, tmp_path / "planned")
    plan = Planner(runs.resolved(config)).resolve()
    return {source.uri.removeprefix(where.partition("*")[0]): source.records for source in plan.sources}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("/*.jsonl", {"a.jsonl": 15}),
        ("/deep/*", {"d one.txt": 1, "e.txt.gz": 1, "b.jsonl.gz": 15, "er/c.parquet": 10}),
        ("/**/*.txt", {"deep/d one.txt": 1}),
        (
            "/*",
            {"a.jsonl": 15, "deep/b.jsonl.gz": 15, "deep/d one.txt": 1, "deep/e.txt.gz": 1, "deep/er/c.parquet": 10},
        ),
    ],
)
def test_patterns_match_in_a_bucket_as_on_disk(
    collection: Path, tmp_path: Path, s3_url: str, pattern: str, expected: object
) -> None:
    stores.put_folder(collection, s3_url)
    found = planned_files(f"{s3_url}{pattern}", tmp_path)
    assert found == planned_files(f"{collection}{pattern}", tmp_path)
    assert found == expected


def test_file_with_the_same_etag_is_not_hashed_again(
    collection: Path, tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.put_folder(collection, s3_url)
    config = runs.job(s3_url, tmp_path / "out")
    runs.run_job(config)
    hashed: list[str] = []

    def record_and_hash(path: str) -> str:
        hashed.append(path)
        return file_sha256(path)

    monkeypatch.setattr("concord.pipeline.planning.inputs.file_sha256", record_and_hash)

    runs.run_job(config)
    assert hashed == []
    stores.put(f"{s3_url}/deep/d one.txt", b"Bob walked on.")
    report = runs.run_job(config)
    assert hashed == [f"{s3_url}/deep/d one.txt"]
    assert (report.changes.changed, report.changes.new, report.unchanged) == (1, 0, 41)
    runs.run_job(runs.job(s3_url, tmp_path / "out", planning={"shard_bytes": 800, "rehash": True}))
    assert len(hashed) == 1 + 5


def test_pieces_of_an_uncompressed_file_are_read_by_ranges(tmp_path: Path) -> None:
    lines = [json.dumps({"id": f"d{number}", "text": SENTENCE * 2000}).encode() + b"\n" for number in range(40)]
    with stores.web_server({"/in.jsonl": b"".join(lines)}) as (url, server):
        config = runs.job(f"{url}/in.jsonl", tmp_path / "out")
        plan = Planner(runs.resolved(config)).resolve()
        server.requested_ranges.clear()
        read = [record.doc_id for record in read_piece(plan.shards[-1].pieces[0], config.reader)]
    assert read == ["d39"]
    assert server.requested_ranges[-1] == f"bytes={sum(map(len, lines[:39]))}-{sum(map(len, lines)) - 1}"


@pytest.mark.parametrize("ranges", [True, False])
def test_web_server_is_read_with_and_without_ranges(collection: Path, tmp_path: Path, ranges: bool) -> None:
    names = ("a.jsonl", "deep/b.jsonl.gz", "deep/er/c.parquet")
    files = {f"/{name}": (collection / name).read_bytes() for name in names}
    with stores.web_server(files, ranges=ranges) as (url, _):
        for name in names:
            report = runs.run_job(runs.job(f"{url}/{name}", tmp_path / name))
            assert (report.read, report.dead_letters) == (planned_files(str(collection / name), tmp_path)[""], 0)


def test_file_that_changes_between_planning_and_reading_is_refused(
    collection: Path, tmp_path: Path, s3_url: str
) -> None:
    stores.put_folder(collection, s3_url)
    lines = (collection / "a.jsonl").read_bytes()

    def build(plan: Plan) -> ShardWorker:
        stores.put(f"{s3_url}/a.jsonl", lines.replace(b"Geneva", b"London"))
        return fakes.build_fake_worker(plan)

    config = runs.job(s3_url, tmp_path / "out")
    with pytest.raises(InputError, match=r"a\.jsonl: has changed since the plan was made"):
        runs.run_job(config, build=build)
    assert runs.run_job(config).annotated == 42
    assert verify(tmp_path / "out") == []


def test_file_that_changes_while_it_is_read_is_refused(s3_url: str) -> None:
    stores.put(f"{s3_url}/in.jsonl", b"first\n" * 1_000_000)
    with open_file(f"{s3_url}/in.jsonl") as stream:
        stream.readline()
        stores.put(f"{s3_url}/in.jsonl", b"other\n" * 1_000_000)
        with pytest.raises(StoreError, match="changed while it was being read"):
            stream.read()


def test_file_that_changes_while_it_is_planned_is_refused(
    collection: Path, tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.put_folder(collection, s3_url)

    def put_and_hash(path: str) -> str:
        stores.put(f"{s3_url}/a.jsonl", b"")
        return file_sha256(path)

    monkeypatch.setattr("concord.pipeline.planning.inputs.file_sha256", put_and_hash)
    with pytest.raises(InputError, match=r"a\.jsonl: changed while it was being planned"):
        planned_files(s3_url, tmp_path)


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [("/gone.jsonl", 404, InputError), ("/mine.jsonl", 403, InputError), ("/busy.jsonl", 503, StoreError)],
)
def test_status_of_a_web_server_decides_the_error(
    tmp_path: Path, path: str, status: int, expected: type[ConcordError]
) -> None:
    with stores.web_server({}, statuses={path: status}) as (url, _), pytest.raises(expected) as caught:
        planned_files(f"{url}{path}", tmp_path)
    assert str(caught.value).startswith(f"{url}{path}: ")


@pytest.mark.parametrize("where", ["http://127.0.0.1:9/in.jsonl", "s3://bucket/texts"])
def test_unreachable_store_is_a_store_error(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    object_stores.clients.clear()
    with pytest.raises(StoreError, match=r"reading failed .*run the same command again") as caught:
        planned_files(where, tmp_path)
    assert str(caught.value).startswith(where)
    assert caught.value.exit_code == 75


@pytest.mark.parametrize(
    "where", ["s3://nowhere/texts", "{bucket}/texts", "{bucket}/texts/*.jsonl", "memory://nowhere"]
)
def test_url_without_files_is_refused(tmp_path: Path, s3_url: str, where: str) -> None:
    with pytest.raises(InputError, match=r"check that it exists|got no file at all"):
        planned_files(where.format(bucket=s3_url), tmp_path)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("https://anna:sesame@host/in.jsonl", "without user and password"),
        ("s3://sesame@bucket/in.jsonl", "without user and password"),
        ("https://host/in.jsonl?token=sesame", "without a query"),
        ("s3://bucket/in.jsonl?X-Amz-Signature=sesame", "without a query"),
        ("zip://a.jsonl::https://anna:sesame@host/in.zip", "a chain of them"),
        ("abfs://bucket/in.jsonl", "adlfs"),
        ("nosuch://host/in.jsonl", "no driver knows this scheme"),
        ("http:///in.jsonl", "expected a host"),
        ("github://owner/in.jsonl", "missing .* arguments: 'org' and 'repo'"),
    ],
)
def test_unusable_url_is_refused_without_showing_its_secret(tmp_path: Path, where: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        dry_run(runs.resolved(runs.job(where, tmp_path / "out")))
    assert "sesame" not in str(caught.value)


def test_job_with_credentials_in_its_input_is_refused_when_it_is_read() -> None:
    with pytest.raises(InputError, match="without user and password") as caught:
        read_annotate_job(None, values={"input": "https://anna:sesame@host/in.jsonl", "output": "out"})
    assert "sesame" not in str(caught.value)


def test_a_store_without_obstore_names_the_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    object_stores.clients.clear()
    with pytest.raises(InputError, match=r"obstore \(the extra stores\)"):
        planned_files("s3://bucket/texts", tmp_path)
