"""Names and places that a collection of somebody else contains: checked where they are read, and not followed."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import hostile, runs
from starlette.testclient import TestClient

import concord
from concord.models.errors import ConcordError
from concord.pipeline.corrections.correction import Correction, Mark, Seen, append_to_log, read_log
from concord.pipeline.errors import InputError, IntegrityError
from concord.pipeline.output.manifest import read_commit_record, read_manifest
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import DOCUMENT_TABLES
from concord.pipeline.output.verify import verify
from concord.workflows.view.app import build_app
from concord.workflows.view.index.opened import OpenedCollection

GOOD = "documents/part-00000-g0-00000000.parquet"
PATHS = {
    "absolute": "{victim}/part-00000-g0-00000000.parquet",
    "above": "../../../victim/part-00000-g0-00000000.parquet",
    "above_in_the_middle": "documents/../../../victim/part-00000-g0-00000000.parquet",
    "other_folder": "_run/plans/1.json",
    "unknown_table": "secrets/part-00000-g0-00000000.parquet",
    "nul": "documents/part-00000-g0-00000000.parquet\0",
    "newline": "documents/part-00000-g0-00000000.parquet\n",
    "long": "documents/part-" + "0" * 5000 + "-g0-00000000.parquet",
    "backslash": "documents\\part-00000-g0-00000000.parquet",
    "empty": "",
    "dot": "documents/.",
    "url": "http://127.0.0.1/part-00000-g0-00000000.parquet",
    "other_digits": "documents/part-٠٠٠٠٠-g0-00000000.parquet",
    "number": 5,
    "null": None,
    "list": [GOOD],
}
COUNTS: list[Any] = [-1, 1.5, "1", None, True, []]


def part(path: object) -> dict[str, Any]:
    return {"path": path, "rows": 1, "size": 4, "sha256": "0" * 64}


def record(**changes: Any) -> dict[str, Any]:
    parts = {table: part(GOOD.replace("documents", table)) for table in DOCUMENT_TABLES}
    counts = {"shard": 0, "generation": 0, "read": 1, "annotated": 1, "unchanged": 0, "dead_letters": 0}
    return {**counts, "files": parts, "stats": {}, **changes}


def manifest(**changes: Any) -> dict[str, Any]:
    counts = {"generation": 0, "read": 1, "annotated": 1, "unchanged": 0, "dead_letters": 0}
    return {"schema_version": 1, "plan": "0" * 64, **counts, "shards": [record()], **changes}


def written(folder: Path, values: object) -> Path:
    path = folder / "values.json"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("name", PATHS)
def test_names_of_parts_in_another_form_are_refused(tmp_path: Path, name: str) -> None:
    assert read_commit_record(written(tmp_path, record())) is not None
    assert read_manifest(written(tmp_path, manifest())) is not None
    path = PATHS[name]
    place = path.format(victim=tmp_path) if isinstance(path, str) else path
    bad = record(files=record()["files"] | {"documents": part(place)})
    with pytest.raises(IntegrityError, match=r"values\.json: not a commit record: files"):
        read_commit_record(written(tmp_path, bad))
    with pytest.raises(IntegrityError, match=r"values\.json: not a manifest: shards\.0\.files"):
        read_manifest(written(tmp_path, manifest(shards=[bad])))


@pytest.mark.parametrize("table", DOCUMENT_TABLES)
def test_shard_without_a_part_of_a_table_or_with_that_of_another_is_refused(tmp_path: Path, table: str) -> None:
    files = record()["files"]
    others = {name: found for name, found in files.items() if name != table}
    for wrong in (others, others | {table: part("errors/part-00000-g0-00000000.parquet")}):
        with pytest.raises(IntegrityError, match=f"not a commit record: files: .*expected a part of {table}"):
            read_commit_record(written(tmp_path, record(files=wrong)))
    with pytest.raises(IntegrityError, match=f"not a manifest: names: .*expected a part of names, got {table}"):
        read_manifest(written(tmp_path, manifest(names=files[table])))


@pytest.mark.parametrize("key", ["shard", "generation", "read", "annotated", "unchanged", "dead_letters"])
def test_counts_of_other_types_and_unknown_keys_are_refused(tmp_path: Path, key: str) -> None:
    for value in COUNTS:
        with pytest.raises(IntegrityError, match=f"not a commit record: {key}"):
            read_commit_record(written(tmp_path, record(**{key: value})))
    others: tuple[dict[str, Any], ...] = (
        {"unknown": 1},
        {"files": {"secrets": {}}},
        {"files": 5},
        {"stats": {"a": "b"}},
    )
    for extra in others:
        with pytest.raises(IntegrityError, match="not a commit record"):
            read_commit_record(written(tmp_path, record(**extra)))


@pytest.fixture
def collection(tmp_path: Path) -> tuple[Path, Path]:
    """Return a small collection and its input."""
    source = runs.write_collection(tmp_path / "in.jsonl", documents=3)
    return runs.folder_of(runs.run_job(runs.job(source, tmp_path / "out"))), source


@pytest.mark.slow
@pytest.mark.parametrize("table", ["documents", "entities"])
def test_commit_record_with_an_absolute_path_replaces_no_file(
    collection: tuple[Path, Path], tmp_path: Path, table: str
) -> None:
    output, source = collection
    victim = hostile.make_victim(tmp_path / "victim")
    before = hostile.contents_of(victim)
    runs.unfinish(output)
    path = output / "_run" / "commits" / "0" / "00000.json"
    values = json.loads(path.read_bytes())
    part = output / "_run" / "parts" / values["files"][table]["path"]
    # Below the collection there is what is to come into the place of the user's file.
    planted = Path(f"{output}/_run/parts/{victim}/precious.txt")
    planted.parent.mkdir(parents=True)
    shutil.copy(part, planted)
    values["files"][table]["path"] = str(victim / "precious.txt")
    path.write_text(json.dumps(values))
    for run in (lambda: verify(output), lambda: runs.run_job(runs.job(source, output)), lambda: concord.open(output)):
        with suppress(ConcordError):
            run()
        assert hostile.contents_of(victim) == before
    assert verify(output) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", ["{victim}", "../victim", "generations/../../victim", "generations/x", "/", "."])
def test_current_leads_to_a_generation_or_nowhere(collection: tuple[Path, Path], tmp_path: Path, target: str) -> None:
    output, _ = collection
    (output / "current").unlink()
    (output / "current").symlink_to(target.format(victim=tmp_path / "victim"))
    with pytest.raises(IntegrityError, match="current: expected a link to generations/NUMBER"):
        concord.open(output)


def line() -> Correction:
    text = "Anna met Bob."
    seen = Seen(doc_id="d0", tagger="fake", generation=0)
    return Correction.of(None, Mark(start=0, end=4, type="PER", text="Anna"), text=text, seen=seen, who="ada")


@pytest.mark.parametrize("kind", ["link_to_file", "dangling_link", "loop", "link_to_device", "fifo", "folder"])
def test_corrections_are_appended_to_a_file_alone(tmp_path: Path, kind: str) -> None:
    victim = hostile.make_victim(tmp_path / "victim")
    before = hostile.contents_of(victim)
    hostile.replace(tmp_path / "corrections.jsonl", kind, victim)
    with pytest.raises(InputError, match=r"corrections\.jsonl: expected a file of corrections"):
        append_to_log(tmp_path / "corrections.jsonl", [line()])
    with pytest.raises(InputError, match=r"corrections\.jsonl: expected a file of corrections"):
        read_log(tmp_path / "corrections.jsonl")
    assert hostile.contents_of(victim) == before


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """Serve on loopback; return its URL and the requests that it gets."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/secret.jsonl", requests
        listening.shutdown()
        thread.join()


def name_source(output: Path, uri: str, *, in_plan: bool) -> None:
    """Let the rows of a collection name another input, and its plan too."""
    root = (output / "current").resolve()
    manifest_path = root / "manifest.json"
    values = json.loads(manifest_path.read_bytes())
    for shard in values["shards"]:
        part = shard["files"]["documents"]
        table = pq.read_table(root / part["path"])
        uris = pa.array([uri] * table.num_rows, pa.string())
        index = table.schema.get_field_index("source_uri")
        pq.write_table(table.set_column(index, table.schema.field(index), uris), root / part["path"])
        part["size"] = (root / part["path"]).stat().st_size
    manifest_path.write_text(json.dumps(values))
    if in_plan:
        for path in (root / "plan.json", output / "_run" / "plans" / "0.json"):
            plan = json.loads(path.read_bytes())
            plan["sources"][0]["uri"] = uri
            path.unlink()
            path.write_text(json.dumps(plan))


def page(output: Path, cache: Path, *, fetch: bool = False) -> str:
    """Return the page of a document in the viewer."""
    opened = OpenedCollection(output, cache=cache, fetch=fetch)
    opened.wait()
    client = TestClient(build_app(opened, token="token", port=7391), base_url="http://127.0.0.1:7391")
    client.get("/?token=token")
    return client.get("/document?id=d0").text


@pytest.mark.slow
def test_sources_that_are_no_input_of_the_plan_are_not_read(
    collection: tuple[Path, Path], server: tuple[str, list[str]], tmp_path: Path
) -> None:
    output, source = collection
    secret = tmp_path / "secret.jsonl"
    shutil.copy(source, secret)
    for uri in (server[0], str(secret), "/dev/zero", "/proc/self/environ"):
        name_source(output, uri, in_plan=False)
        with pytest.raises(InputError, match="none of the inputs in the plan"):
            concord.open(output).document("d0")
        assert "none of the inputs in the plan" in page(output, tmp_path / "cache")
    assert server[1] == []


@pytest.mark.slow
def test_viewer_sends_requests_only_when_asked(
    collection: tuple[Path, Path], server: tuple[str, list[str]], tmp_path: Path
) -> None:
    output, _ = collection
    name_source(output, server[0], in_plan=True)
    assert "not fetched unless asked for" in page(output, tmp_path / "cache")
    assert server[1] == []
    page(output, tmp_path / "cache", fetch=True)
    assert server[1] == ["/secret.jsonl"] * len(server[1]) != []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fifo", "link_to_device", "folder", "loop"])
def test_inputs_of_the_plan_that_are_no_files_end_in_an_error(
    collection: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    output, source = collection
    hostile.replace(source, kind, tmp_path)
    with pytest.raises(InputError, match=r"expected a file|cannot be read"):
        concord.open(output).document("d0")


Link = Callable[[Path, Path], Path]


def link_above(folder: Path, real: Path) -> Path:
    (folder / "home").symlink_to(real)
    return folder / "home" / "out"


def link_itself(folder: Path, real: Path) -> Path:
    (real / "out").mkdir()
    (folder / "link").symlink_to(real / "out")
    return folder / "link"


def link_with_dots(folder: Path, real: Path) -> Path:
    (folder / "home").symlink_to(real)
    (real / "a").mkdir()
    return folder / "home" / "a" / ".." / "out"


@pytest.mark.slow
@pytest.mark.parametrize("link", [link_above, link_itself, link_with_dots])
def test_links_above_a_collection_are_the_users(tmp_path: Path, link: Link) -> None:
    real = tmp_path / "mnt"
    real.mkdir()
    source = runs.write_collection(tmp_path / "in.jsonl", documents=3)
    output = link(tmp_path, real)
    for number in range(2):
        runs.run_job(hostile.job(source, output, grace_seconds=0.0))
        assert verify(output) == []
        assert concord.open(output).document("d0").text
        append_to_log(output / "corrections.jsonl", [line()])
        source.write_text(source.read_text() + f'{{"id": "new{number}", "text": "Anna met Bob."}}\n')
    assert [path.name for path in (output / "generations").iterdir()] == ["000001"]
    assert OutputFolder(output).generations.history()
