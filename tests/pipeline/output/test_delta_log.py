"""The Delta log: each generation is one version, and is read back by the tools that it is for."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs, stores
from concord_testing.checkout import CHECKOUT
from deltalake import DeltaTable

from concord.models.errors import ConfigError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.errors import InputError, IntegrityError, StoreError
from concord.pipeline.output import delta_log
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.delta_log import prune_delta_log, write_delta_log
from concord.pipeline.output.generations import Retention
from concord.pipeline.output.manifest import Manifest
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.output.verify import verify
from concord.pipeline.storage.output_paths import output_path

PYTHONPATH = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests" / "support")])


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return an input of nine documents and a line that is no JSON."""
    path = runs.write_collection(tmp_path / "in.jsonl", documents=9)
    path.write_text(f"{path.read_text()}no json\n")
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def job(source: Path, output: Path) -> AnnotateConfig:
    return runs.job(source, output, output={"path": str(output), "delta": True}, max_dead_letters=0.5)


def update(source: Path, output: Path, number: int = 1) -> Manifest:
    """Change the first document, annotate, and return the manifest."""
    first, *others = source.read_text().splitlines(keepends=True)
    record = json.loads(first) | {"text": f"Nora met {number} men in Geneva."}
    source.write_text("".join([f"{json.dumps(record)}\n", *others]))
    runs.run_job(job(source, output))
    return manifest_of(output)


def manifest_of(output: Path) -> Manifest:
    return open_collection(output).manifest


def delta_table(output: Path, name: str, version: int | None = None) -> DeltaTable:
    return DeltaTable(str(output / "delta" / name), version=version)


def rows(table: pa.Table) -> list[str]:
    return sorted(str(row) for row in table.to_pylist())


def collected(output: Path, name: str) -> list[str]:
    parts = [pq.read_table(path).replace_schema_metadata() for path in open_collection(output).parts(name)]
    return rows(pa.concat_tables(parts)) if parts else []


def assert_log_is_the_collection(output: Path) -> None:
    for name in SCHEMAS:
        table = delta_table(output, name)
        assert table.transaction_version("concord") == manifest_of(output).generation
        assert rows(table.to_pyarrow_table()) == collected(output, name)
        assert len(table.file_uris()) == len(set(table.file_uris())) == len(manifest_of(output).files(name))
    assert verify(output) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out", "a b%ä#"])
def test_log_names_the_parts_without_copying_them(source: Path, tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    runs.run_job(job(source, output))
    assert_log_is_the_collection(output)
    for name in SCHEMAS:
        for part in open_collection(output).parts(name):
            assert isinstance(part, Path)
            assert part.samefile(output / "delta" / name / part.name)


@pytest.mark.slow
def test_log_is_read_by_deltalake_polars_and_duckdb(source: Path, output: Path) -> None:
    runs.run_job(job(source, output))
    update(source, output)
    for name in SCHEMAS:
        expected = collected(output, name)
        table = delta_table(output, name)
        assert rows(table.to_pyarrow_table()) == expected
        assert rows(polars.read_delta(str(output / "delta" / name)).to_arrow()) == expected
        paths = [str(output / "delta" / name / uri.rpartition("/")[2]) for uri in table.file_uris()]
        assert rows(duckdb.sql("from read_parquet($1)", params=[paths]).to_arrow_table()) == expected


def test_statistics_are_those_of_the_footers(source: Path, output: Path) -> None:
    runs.run_job(job(source, output))
    for name, columns in {"documents": ["doc_id", "n_chars"], "entities": ["start_char", "confidence"]}.items():
        actions = pa.table(delta_table(output, name).get_add_actions(flatten=True)).to_pylist()
        assert len(actions) > 1
        for action in actions:
            part = pq.read_table(output / "delta" / name / action["path"])
            assert action["num_records"] == part.num_rows
            for column in columns:
                values = part[column].to_pylist()
                assert action[f"null_count.{column}"] == 0
                bounds = (min(values), max(values)) if values else (None, None)
                assert (action[f"min.{column}"], action[f"max.{column}"]) == bounds
    (action, *_) = pa.table(delta_table(output, "documents").get_add_actions(flatten=True)).to_pylist()
    assert (action["null_count.raw_text"], action["min.raw_text"]) == (action["num_records"], None)


def test_long_strings_bound_from_below_only(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["b" * 200, "c" * 200]}), tmp_path / "part.parquet")
    _, statistics = delta_log._statistics(tmp_path / "part.parquet")
    found = json.loads(statistics)
    assert (found["minValues"], found["maxValues"]) == ({"text": "b" * 128}, {})


@pytest.mark.slow
def test_earlier_generations_can_be_read_until_they_are_pruned(source: Path, output: Path) -> None:
    runs.run_job(job(source, output))
    generations = [{name: collected(output, name) for name in SCHEMAS}]
    for number in (1, 2):
        update(source, output, number)
        generations.append({name: collected(output, name) for name in SCHEMAS})
    for version, tables in enumerate(generations):
        for name, expected in tables.items():
            assert rows(delta_table(output, name, version).to_pyarrow_table()) == expected
    history = delta_table(output, "entities").history()
    assert [commit["userMetadata"] for commit in history] == ["generation 2", "generation 1", "generation 0"]
    links = len(list((output / "delta").glob("*/*.parquet")))
    current = sum(len(manifest_of(output).files(name)) for name in SCHEMAS)
    generations_kept = OutputFolder(output).generations
    generations_kept.prune(Retention(grace_seconds=0))
    assert prune_delta_log(generations_kept) == links - current > 0
    assert prune_delta_log(generations_kept) == 0
    assert_log_is_the_collection(output)
    with pytest.raises(OSError, match="No such file"):
        delta_table(output, "entities", 0).to_pyarrow_table()


@pytest.mark.slow
def test_pruning_spares_the_generations_that_are_kept(source: Path, output: Path) -> None:
    runs.run_job(job(source, output))
    first, expected = manifest_of(output), collected(output, "tokens")
    generations = OutputFolder(output).generations
    generations.tag(generations.find(), "first")
    update(source, output, 1)
    update(source, output, 2)
    generations.prune(Retention(grace_seconds=0))
    assert prune_delta_log(generations) > 0
    kept = {
        part.path for manifest in (first, manifest_of(output)) for table in SCHEMAS for part in manifest.files(table)
    }
    assert {f"{path.parent.name}/{path.name}" for path in (output / "delta").glob("*/*.parquet")} == kept
    assert rows(delta_table(output, "tokens", 0).to_pyarrow_table()) == expected


@pytest.mark.slow
def test_pruning_spares_what_a_run_adds_meanwhile(source: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.run_job(job(source, output))
    active = delta_log._active

    def active_before_a_run(table: DeltaTable) -> set[str]:
        found = active(table)
        monkeypatch.undo()
        update(source, output)
        return found

    monkeypatch.setattr(delta_log, "_active", active_before_a_run)
    prune_delta_log(OutputFolder(output).generations)
    assert manifest_of(output).generation == 1
    assert_log_is_the_collection(output)


def test_run_without_changes_writes_no_version(source: Path, output: Path) -> None:
    runs.run_job(job(source, output))
    runs.run_job(job(source, output))
    assert [delta_table(output, name).version() for name in SCHEMAS] == [0] * 6


@pytest.mark.slow
def test_log_catches_up_after_generations_without_it(source: Path, output: Path) -> None:
    runs.run_job(job(source, output))
    for number in (1, 2):
        source.write_text(source.read_text().replace("Geneva", f"Bern{number}"))
        runs.run_job(runs.job(source, output, max_dead_letters=0.5))
    assert delta_table(output, "tokens").transaction_version("concord") == 0
    runs.run_job(job(source, output))
    assert_log_is_the_collection(output)
    assert delta_table(output, "tokens").version() == 1


@pytest.mark.slow
@pytest.mark.parametrize("generation", [0, 1])
@pytest.mark.parametrize("number", range(1, 7))
def test_run_that_ends_between_two_tables_is_completed(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch, number: int, generation: int
) -> None:
    if generation:
        runs.run_job(job(source, output))
    reached: list[str] = []

    def kill(step: str) -> None:
        reached.append(step)
        if len(reached) == number:
            raise Killed

    monkeypatch.setattr(delta_log, "crash_point", kill)
    with pytest.raises(Killed):
        update(source, output)
    monkeypatch.undo()
    runs.run_job(job(source, output))
    assert_log_is_the_collection(output)
    assert [delta_table(output, name).version() for name in SCHEMAS] == [generation] * 6


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 7))
def test_killed_run_is_completed(source: Path, output: Path, number: int) -> None:
    runs.run_job(job(source, output))
    source.write_text(source.read_text().replace("Geneva", "Bern"))
    # A process of its own: one that is forked lacks the threads of deltalake.
    work = (
        "import sys; from concord_testing import runs; from concord.pipeline.config import AnnotateConfig; "
        "runs.run_job(AnnotateConfig.model_validate_json(sys.argv[1]))"
    )
    environment = {
        **os.environ,
        "CONCORD_CRASH_AT": f"delta:{number}",
        "PYTHONPATH": PYTHONPATH,
    }
    command = [sys.executable, "-c", work, job(source, output).model_dump_json()]
    assert subprocess.run(command, env=environment, check=False).returncode == -9
    runs.run_job(job(source, output))
    assert_log_is_the_collection(output)
    assert [delta_table(output, name).version() for name in SCHEMAS] == [1] * 6


@pytest.mark.slow
def test_driver_that_was_overtaken_changes_nothing(source: Path, output: Path) -> None:
    runs.run_job(job(source, output))
    earlier = open_collection(output)
    update(source, output)
    write_delta_log(earlier)
    assert_log_is_the_collection(output)


@pytest.mark.slow
def test_two_drivers_write_one_version(source: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.run_job(job(source, output))
    runs.run_job(runs.job(source, output, max_dead_letters=0.5, tagger={"threshold": 0.1}))
    opened = delta_log._open
    collection = open_collection(output)

    def overtaken(folder: Any) -> DeltaTable:
        table = opened(folder)
        monkeypatch.setattr(delta_log, "_open", opened)
        write_delta_log(collection)
        return table

    monkeypatch.setattr(delta_log, "_open", overtaken)
    write_delta_log(collection)
    assert_log_is_the_collection(output)
    assert [delta_table(output, name).version() for name in SCHEMAS] == [1] * 6


@pytest.fixture
def store_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give an empty bucket of a server that is no thread of this process: deltalake waits without letting go of it."""
    if request.param == "az":
        yield stores.new_bucket("az", request.getfixturevalue("azure_address"), monkeypatch)
        return
    code = (
        "from concord_testing import store_servers as it; server = it.s3_server(); print(server.__enter__()); input()"
    )
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield stores.new_bucket("s3", server.stdout.readline().strip(), monkeypatch)
        server.kill()


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["s3", "az"], indirect=True)
def test_log_of_an_object_store_names_the_parts_where_they_are(source: Path, store_url: str) -> None:
    output = {"path": f"{store_url}/out", "delta": True, "grace_seconds": 0}
    config = runs.job(source, f"{store_url}/out", output=output, max_dead_letters=0.5)
    options, generations = {"allow_http": "true"}, []
    for name in ("Geneva", "Bern"):
        source.write_text(source.read_text().replace("Geneva", name))
        for _ in range(2):
            collection = open_collection(runs.run_job(config).output)
        generations.append(collection)
    for version, collection in enumerate(generations):
        for name in SCHEMAS:
            table = DeltaTable(f"{store_url}/out/{name}", version=version, storage_options=options)
            assert table.transaction_version("concord") == version
            assert sorted(table.file_uris()) == sorted(map(str, collection.parts(name)))
            parts = [read_part(path).replace_schema_metadata() for path in collection.parts(name)]
            assert rows(table.to_pyarrow_table()) == (rows(pa.concat_tables(parts)) if parts else [])
    newest = generations[-1]
    assert verify(newest.output) == []
    removed = OutputFolder(newest.output).generations.prune(Retention(keep=1, grace_seconds=0))
    assert [generation.number for generation in removed] == [0]
    kept = {name: DeltaTable(f"{store_url}/out/{name}", storage_options=options) for name in SCHEMAS}
    for name, table in kept.items():
        assert table.to_pyarrow_table().num_rows == sum(part.rows for part in newest.manifest.files(name))


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["s3"], indirect=True)
def test_run_without_a_log_keeps_the_parts_that_one_in_a_store_names(source: Path, store_url: str) -> None:
    for delta, name in ((True, "Bern"), (False, "Oslo")):
        source.write_text(source.read_text().replace("Geneva", name).replace("Bern", name))
        output = {"path": f"{store_url}/out", "delta": delta, "grace_seconds": 0}
        runs.run_job(runs.job(source, "", output=output, max_dead_letters=0.5))
    table = DeltaTable(f"{store_url}/out/documents", storage_options={"allow_http": "true"})
    assert table.transaction_version("concord") == 0
    assert table.to_pyarrow_table().num_rows == 9


@pytest.mark.slow
def test_broken_log_is_explained_and_written_again_once_removed(source: Path, output: Path) -> None:
    runs.run_job(job(source, output))
    log = output / "delta" / "tokens" / "_delta_log"
    (log / f"{0:020}.json").write_text('{"protocol"')
    with pytest.raises(StoreError, match=r"the Delta log cannot be written .*the collection itself is complete"):
        update(source, output)
    for path in log.iterdir():
        path.unlink()
    runs.run_job(job(source, output))
    assert_log_is_the_collection(output)


@pytest.mark.parametrize(
    ("answer", "error", "shown"),
    [
        (
            "status code\n \x1b[31m↳\x1b[0m 403 Forbidden\n \x1b[31m↳\x1b[0m <Code>Denied</Code><Key>AKIA1</Key>",
            InputError,
            "403",
        ),
        (
            "status code\n ↳ 503 Service Unavailable\n ↳ <Code>SlowDown</Code><Key>AKIA1</Key>",
            StoreError,
            "503 SlowDown",
        ),
    ],
)
def test_answers_of_a_store_are_not_repeated(answer: str, error: type[Exception], shown: str) -> None:
    folder = output_path("s3://bucket/out/tokens")
    with pytest.raises(error, match=shown) as raised, delta_log._delta_errors(folder):
        raise OSError(
            f"Generic S3 error\n ↳ Error performing GET http://host/?sig=AKIA1 - Server returned non-2xx {answer}"
        )
    assert "the collection itself is complete" in str(raised.value)
    assert "AKIA1" not in str(raised.value)
    assert "\x1b" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_lost_names_of_parts_are_restored(source: Path, output: Path) -> None:
    runs.run_job(job(source, output))
    for path in (output / "delta" / "tokens").glob("*.parquet"):
        path.unlink()
    runs.run_job(job(source, output))
    assert_log_is_the_collection(output)


def test_folder_that_cannot_be_made_is_explained(source: Path, output: Path) -> None:
    runs.run_job(runs.job(source, output, max_dead_letters=0.5))
    (output / "delta").write_text("a file")
    with pytest.raises(IntegrityError, match="delta: expected a folder of the collection"):
        runs.run_job(job(source, output))


def test_missing_library_is_explained_before_anything_is_done(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"pip install 'concord-annotate\[delta\]'"):
        runs.run_job(job(source, output))
    assert not output.exists()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="cannot read below a path with percent-encoding"):
        runs.run_job(job(source, output / "a%20b"))


def test_forked_process_is_refused(source: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.run_job(job(source, output))
    monkeypatch.setattr(os, "getpid", lambda: 0)
    with pytest.raises(ConfigError, match="this process was forked"):
        runs.run_job(job(source, output))
