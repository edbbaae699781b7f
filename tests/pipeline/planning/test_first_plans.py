"""Plans of new collections: which files are found, how they are cut, and what decides the digest."""

import gzip
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs

from concord.models.errors import ConfigError
from concord.pipeline.config import AnnotateConfig, ExecutorConfig, OutputConfig, PlanningConfig, ReaderConfig
from concord.pipeline.errors import InputError, PlanError
from concord.pipeline.identity import ResolvedTagger, find_differences
from concord.pipeline.plan import PLAN_VERSION, Plan
from concord.pipeline.planning import inputs
from concord.pipeline.planning.planner import Planner
from concord.pipeline.storage.files import FileState

TAGGER = runs.TAGGER


def plan_for(
    where: object,
    *,
    output: object = "/nowhere/out",
    tagger: ResolvedTagger = TAGGER,
    threads: int = 1,
    **settings: Any,
) -> Plan:
    settings = {"executor": ExecutorConfig(threads=threads)} | settings
    config = AnnotateConfig(input=str(where), output=OutputConfig(path=str(output)), **settings)
    return Planner(runs.resolved(config, tagger=tagger)).resolve()


def lines(*ids: str, words: int = 1) -> bytes:
    return b"".join(json.dumps({"id": doc_id, "text": "word " * words}).encode() + b"\n" for doc_id in ids)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection with every kind of file, some hidden and some of no known format."""
    root = tmp_path / "texts"
    (root / "deep" / "er").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "b.jsonl").write_bytes(lines("b1", "b2"))
    (root / "a.txt").write_text("one")
    (root / "deep" / "er" / "c.TXT.GZ").write_bytes(gzip.compress(b"two"))
    (root / "deep" / "d.ndjson").write_bytes(lines("d1"))
    (root / ".hidden.txt").write_text("no")
    (root / ".git" / "x.txt").write_text("no")
    (root / "notes.md").write_text("no")
    (root / "table.parquet.gz").write_text("no")
    return root


def names(plan: Plan) -> list[str]:
    return [piece.name for shard in plan.shards for piece in shard.pieces]


def test_folder_yields_its_files_sorted_without_hidden_ones(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        plan = plan_for(folder)

    assert names(plan) == ["a.txt", "b.jsonl", "deep/d.ndjson", "deep/er/c.TXT.GZ"]
    assert [source.records for source in plan.sources] == [1, 2, 1, 1]
    assert [source.format for source in plan.sources] == ["text", "jsonl", "jsonl", "text"]
    assert (plan.read, plan.ignored) == (5, 2)
    assert "notes.md" in caplog.text
    assert "table.parquet.gz" in caplog.text


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("/nowhere/at/all", "found nothing"),
        ("/nowhere/*.jsonl", "got no file at all"),
        ("/dev/null", "got a folder, pipe, socket or device"),
    ],
)
def test_input_without_files_is_refused(where: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        plan_for(where)


def test_file_of_unknown_suffix_is_read_when_the_format_is_configured(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("text")

    with pytest.raises(InputError, match=r"expected .*\.jsonl.*got 'notes\.md'.*reader\.format"):
        plan_for(tmp_path)
    with pytest.raises(InputError, match=r"reader\.format"):
        plan_for(tmp_path / "notes.md")
    assert names(plan_for(tmp_path / "notes.md", reader=ReaderConfig(format="text"))) == ["notes.md"]


def test_configured_format_filters_a_folder_but_applies_to_a_pattern(folder: Path) -> None:
    text = ReaderConfig(format="text")
    # As the datasets library names its files.
    (folder / "city.json").write_bytes(lines("city"))

    assert names(plan_for(folder, reader=text)) == ["a.txt", "deep/er/c.TXT.GZ"]
    assert names(plan_for(f"{folder}/*.md", reader=text)) == ["notes.md"]
    assert names(plan_for(f"{folder}/*.json", reader=ReaderConfig(format="jsonl"))) == ["city.json"]


def test_pattern_matches_files_and_names_them_below_its_fixed_part(folder: Path) -> None:
    (folder / "a[1].txt").write_text("text")

    assert names(plan_for(folder / "a[1].txt")) == ["a[1].txt"]
    assert names(plan_for(f"{folder}/*.jsonl")) == ["b.jsonl"]
    assert names(plan_for(f"{folder}/**/*.ndjson")) == ["deep/d.ndjson"]
    assert names(plan_for(f"{folder}/d*/*.ndjson")) == ["deep/d.ndjson"]


def test_links_are_followed_once(folder: Path) -> None:
    (folder / "deep" / "round").symlink_to(folder)
    (folder / "elsewhere").symlink_to(folder.parent / "other")
    (folder.parent / "other").mkdir()
    (folder.parent / "other" / "e.txt").write_text("text")

    assert names(plan_for(folder)) == ["a.txt", "b.jsonl", "deep/d.ndjson", "deep/er/c.TXT.GZ", "elsewhere/e.txt"]


def annotated(output: Path) -> Path:
    """Write what looks like an annotated collection, with a file that could be read, and return its folder."""
    (output / "_run" / "plans").mkdir(parents=True)
    (output / "documents").mkdir()
    (output / "documents" / "part.txt").write_text("no")
    return output


def test_run_never_reads_its_own_output(folder: Path) -> None:
    output = annotated(folder / "out")

    assert "out/documents/part.txt" not in names(plan_for(folder, output=output))
    assert "out/documents/part.txt" not in names(plan_for(f"{folder}/**/*.txt", output=output))
    with pytest.raises(InputError, match="got an annotated collection or a part of one"):
        plan_for(output / "documents", output=output)


def test_new_output_inside_the_input_or_another_collection_is_refused(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)

    for output in (folder / "out", folder / "deep" / "out", folder.parent / "link" / "out", folder):
        with pytest.raises(InputError, match=r"neither in the input .* nor around it"):
            plan_for(folder, output=output)
    assert names(plan_for(folder / "b.jsonl", output=folder / "out")) == ["b.jsonl"]
    with pytest.raises(InputError, match="neither in the input"):
        plan_for(folder / "b.jsonl", output=folder)
    other = annotated(folder.parent / "other")
    for output in (other / "out", other / "documents" / "out"):
        with pytest.raises(InputError, match="expected a folder outside of other annotated collections"):
            plan_for(folder, output=output)
    assert names(plan_for(folder, output=other)) == names(plan_for(folder))


def test_no_run_reads_the_output_of_another(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = names(plan_for(folder))
    annotated(folder / "old")
    annotated(folder / "deep" / "older")
    annotated(folder.parent / "elsewhere")
    (folder / "link").symlink_to(folder.parent / "elsewhere" / "documents")

    with caplog.at_level(logging.WARNING):
        assert names(plan_for(folder)) == before
    assert "skipped annotated collections: 'older', 'link', 'old'" in caplog.text
    assert names(plan_for(f"{folder}/**/*.txt")) == ["a.txt"]


@pytest.mark.parametrize("below", ["", "/documents", "/_run", "/*/*.txt", "/documents/*.txt"])
def test_annotated_collection_is_no_input(tmp_path: Path, below: str) -> None:
    with pytest.raises(InputError, match=r"expected texts, got an annotated collection .*'concord status'"):
        plan_for(f"{annotated(tmp_path / 'old')}{below}")


def write_table(path: Path, **columns: list[Any]) -> None:
    pq.write_table(pa.table(columns), path)


def test_text_field_that_no_first_record_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("no json\n" + json.dumps({"id": "x", "body": "Hi."}) + "\n")
    with pytest.raises(InputError, match=r"reader\.text_field: .* jsonl .*'text'; .*got only .\"id\",\"body\""):
        plan_for(tmp_path)
    body = ReaderConfig(text_field="body")
    assert plan_for(tmp_path, reader=body).read == 2

    write_table(tmp_path / "b.parquet", key=["x"], content=["Hi."])
    with pytest.raises(InputError, match=r"reader\.text_field: .* parquet .*'body'; .*got only .\"key\",\"content\""):
        plan_for(tmp_path, reader=body)
    write_table(tmp_path / "b.parquet", key=["x"], body=[3])
    with pytest.raises(InputError, match=r"reader\.text_field: .* parquet .*'body': expected a string, got 3"):
        plan_for(tmp_path, reader=body)
    write_table(tmp_path / "c.parquet", key=["x"], body=["Hi."])
    assert plan_for(tmp_path, reader=body).read == 4


def test_text_field_is_looked_for_in_the_first_hundred_records(tmp_path: Path) -> None:
    without, with_text = json.dumps({"title": "x"}) + "\n", json.dumps({"text": "x"}) + "\n"
    (tmp_path / "a.jsonl").write_text(99 * without + with_text)
    assert plan_for(tmp_path).read == 100
    (tmp_path / "a.jsonl").write_text(100 * without + with_text)
    with pytest.raises(InputError, match=r'got only ."title"'):
        plan_for(tmp_path)
    (tmp_path / "b.jsonl").write_text(with_text)
    assert plan_for(tmp_path).read == 102
    (tmp_path / "a.jsonl").write_text("no json\n")
    (tmp_path / "b.jsonl").write_text("[]\n" + json.dumps({"text": None}) + "\n")
    assert plan_for(tmp_path).read == 3


def test_small_files_share_a_shard_and_a_large_one_is_cut_at_line_ends(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("x" * 10)
    plan = plan_for(tmp_path, planning=PlanningConfig(shard_bytes=30))
    assert [(shard.index, shard.records) for shard in plan.shards] == [(0, 3), (1, 3), (2, 3), (3, 1)]

    content = lines("a", "b", "c", "d", words=10)
    (tmp_path / "a.jsonl").write_bytes(content)
    line = len(content) // 4
    plan = plan_for(tmp_path / "a.jsonl", planning=PlanningConfig(shard_bytes=line + 1))
    pieces = [(shard.pieces[0].start, shard.pieces[0].end) for shard in plan.shards]
    assert pieces == [(0, 2 * line), (2 * line, 4 * line)]


def test_limit_takes_the_first_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines("a", "b", "c"))
    (tmp_path / "b.jsonl").write_bytes(lines("d", "e"))
    (tmp_path / "c.jsonl").write_bytes(lines("f"))
    (tmp_path / "0.jsonl").write_bytes(b"\n  \n")

    plan = plan_for(tmp_path, limit=4)

    assert plan.read == 4
    # A file without records is a source without pieces.
    sources = [(Path(source.uri).name, source.records) for source in plan.sources]
    assert sources == [("0.jsonl", 0), ("a.jsonl", 3), ("b.jsonl", 1)]
    assert names(plan) == ["a.jsonl", "b.jsonl"]


def test_duplicate_ids_are_marked_across_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines("a", "b", "a"))
    (tmp_path / "b.jsonl").write_bytes(lines("c", "b") + b'{"id": "z"}\n{"id": "z", "text": ""}\n')
    (tmp_path / "c").write_bytes(lines("no"))

    plan = plan_for(tmp_path)

    line = len(lines("a"))
    assert [piece.duplicates for shard in plan.shards for piece in shard.pieces] == [(2 * line,), (line,)]


def test_plan_survives_json_and_one_of_another_version_is_refused(folder: Path) -> None:
    plan = plan_for(folder, planning=PlanningConfig(shard_bytes=1))
    again = Plan.from_json(plan.to_json())

    assert again == plan
    assert again.to_json() == plan.to_json() == plan_for(folder, planning=PlanningConfig(shard_bytes=1)).to_json()
    assert again.digest == plan.digest
    content = plan.to_json()
    earlier = content.replace(f'"plan_version":{PLAN_VERSION}'.encode(), b'"plan_version":2')
    for broken in (content[:-10], earlier, content.replace(b'"records":', b'"lines":1,"records":', 1)):
        with pytest.raises(PlanError, match="annotate the input again, into a new output folder"):
            Plan.from_json(broken)


def test_digest_ignores_what_cannot_change_the_output(folder: Path) -> None:
    plan = plan_for(folder)
    other = plan_for(
        folder,
        output="/elsewhere",
        executor=ExecutorConfig(kind="ray", actors=7, gpus=0.5, threads=1),
        report=False,
        max_dead_letters=1.0,
        planning=PlanningConfig(rehash=True),
    )

    assert other.digest == plan.digest
    assert other.row_settings == plan.row_settings


def test_difference_of_settings_names_what_decides_the_rows(folder: Path) -> None:
    plan = plan_for(folder)
    (folder / "a.txt").write_text("changed")
    cut = plan_for(folder, threads=2, planning=PlanningConfig(shard_bytes=7), limit=1)
    assert cut.digest != plan.digest
    assert cut.row_settings == plan.row_settings
    other = plan_for(folder, tagger=replace(TAGGER, digest="9" * 64))
    assert find_differences(plan.row_settings, other.row_settings) == [
        f"tagger: was '{TAGGER.name}@{TAGGER.digest}', is now '{TAGGER.name}@{'9' * 64}'"
    ]


ROW_CHANGES: dict[str, dict[str, Any]] = {
    "parser": {"language": "de", "trees": False, "tags": False},
    "tagger": {"precision": "bf16", "samples": 3, "threshold": 0.1},
    "output": {"candidates": True},
}
NOT_DECIDING = {
    # The digests of packages, models and terms are in the identities of parser and tagger.
    "parser": {"package", "directory", "batch_documents", "device"},
    "tagger": {"model", "terms", "accept_parser", "batch_words", "device"},
    "output": {"path", "keep_text", "keep", "grace_seconds"},
}


@pytest.mark.parametrize("section", ROW_CHANGES)
def test_row_settings_cover_every_field_that_can_change_a_label(section: str) -> None:
    plain = AnnotateConfig(input="/in", output=OutputConfig(path="/out"))
    before = plain.values_where(lambda mark: mark.what == "labels")
    assert before.keys() == ROW_CHANGES.keys()
    fields = set(type(getattr(plain, section)).model_fields) - NOT_DECIDING[section]
    assert fields == ROW_CHANGES[section].keys()
    for name, value in ROW_CHANGES[section].items():
        changed = getattr(plain, section).model_copy(update={name: value})
        assert plain.model_copy(update={section: changed}).values_where(lambda mark: mark.what == "labels") != before, (
            name
        )


def test_file_that_changes_while_it_is_planned_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines("a"))

    def change_and_hash(states: Mapping[str, FileState]) -> list[str]:
        path.write_bytes(lines("a", "b"))
        return ["f" * 64 for _ in states]

    monkeypatch.setattr(inputs, "hash_files", change_and_hash)
    with pytest.raises(InputError, match="changed while it was being planned"):
        plan_for(path)


def test_many_bytes_are_hashed_in_the_same_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(folder)
    monkeypatch.setattr(inputs, "_MANY_BYTES", 1)
    assert plan_for(folder).sources == plan.sources


@pytest.mark.parametrize("encoding", ["utf-88", "hex"])
def test_encoding_that_cannot_be_used_is_refused(encoding: str) -> None:
    with pytest.raises(ConfigError, match=r"reader\.encoding: .*expected auto or an encoding"):
        AnnotateConfig.from_mapping({"input": "/in", "output": {"path": "/out"}, "reader": {"encoding": encoding}})
