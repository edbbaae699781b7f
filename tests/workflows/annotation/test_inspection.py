"""Commands that read a collection: export, review, dead letters; and a collection without records."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs
from concord_testing.command_line import concord, concord_json
from concord_testing.exports import TEXTS, annotate_texts, write_texts

from concord import open as open_run
from concord.pipeline.exchange.export import ExportForm, export_collection
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.output.shard_stats import total_counts
from concord.workflows.annotation import inspection
from concord.workflows.annotation.summary import describe_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an annotated collection; tests must not change it."""
    folder = tmp_path_factory.mktemp("collection")
    annotate_texts(write_texts(folder / "texts.jsonl", TEXTS), folder / "out")
    return folder / "out"


def test_export_reports_what_was_written_and_what_was_left_out(output: Path, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("plain\nempty\nnobody\n")
    result = concord("export", output, "--to", "conllu", "-o", tmp_path / "a.conllu", "--ids", tmp_path / "ids")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"{tmp_path}/a.conllu: 1 document, 2 sentences, 6 words, 2 entities",
        "1 document without words, which the format cannot represent",
        "1 dead letter of the collection: never annotated, not exported",
        "1 requested id not in the collection: 'nobody'",
    ]


def test_export_to_label_studio_prints_its_labeling_interface(output: Path, tmp_path: Path) -> None:
    result = concord("export", output, "--to", "label-studio", "-o", tmp_path / "a.json", "--limit", 1, "--json")
    values = json.loads(result.stdout)
    assert (values["documents"], values["labels"], values["errors"]) == (1, ["PER"], None)
    assert values["destination"] == str(tmp_path / "a.json")
    assert '<Label value="PER"/>' in values["labeling_config"]


def test_export_ends_with_code_3_when_a_text_has_changed(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts.jsonl", {"a": "Anna.", "b": "Bob."})
    annotate_texts(source, tmp_path / "out")
    write_texts(source, {"a": "Anna.", "b": "Bot."})
    result = concord("export", tmp_path / "out", "--to", "jsonl", "-o", tmp_path / "a.jsonl")
    assert result.exit_code == 3
    assert "1 document left out because the text has changed since the annotation; see " in result.stdout
    assert str(tmp_path / "a.jsonl.errors.jsonl") in result.stdout


def test_review_lists_sentences_with_score_and_reason(output: Path, tmp_path: Path) -> None:
    first = concord("review", output, "-o", tmp_path / "first.json", "--size", 3, "--per-document", 1)
    assert first.exit_code == 0, first.output
    lines = first.stdout.splitlines()
    assert lines[0].startswith(f"{tmp_path}/first.json: 3 sentences of 3 documents; about ")
    assert lines[2].split() == ["rank", "score", "document", "sentence", "least", "certain"]
    assert lines[3].split()[0] == "1"
    assert " with probability 0." in lines[3]
    assert "<Labels" in first.stdout


def test_review_skips_the_documents_of_an_earlier_queue(output: Path, tmp_path: Path) -> None:
    queues = []
    for number, done in enumerate([(), ("--done", tmp_path / "0.json")]):
        command = ("review", output, "-o", tmp_path / f"{number}.json", "--size", 4, "--json", *done)
        values = json.loads(concord(*command).stdout)
        queues.append({choice["doc_id"] for choice in values["choices"]})
        assert [choice["rank"] for choice in values["choices"]] == [1, 2, 3, 4]
    assert not queues[0] & queues[1]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> Path:
    """Return the output of a run over two documents and three broken lines; tests must not change it."""
    folder = tmp_path_factory.mktemp("letters")
    texts = {"a": "Ada King met Charles Babbage in London.", "b": "Nothing happened."}
    lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in texts.items()]
    lines += ['{"id": "c"}', '{"id": "d", "text": 7}', '{"id": "e"}']
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")
    settings = ("--set", "max_dead_letters=1", "--set", "report=false")
    concord_json("annotate", folder / "documents.jsonl", "-o", folder / "out", "-m", tiny_bundle, *settings)
    return folder / "out"


def test_a_filter_that_matches_nothing_says_what_there_is(collection: Path) -> None:
    kinds = "no dead letter matches; there are 2 read missing_text, 1 read text_not_string\n"
    unknown = concord("errors", collection, "--stage", "foo")
    assert unknown.exit_code == 2
    assert "'foo' is not one of 'read', 'parse', 'tag', 'write'" in unknown.stderr
    assert kinds in concord("errors", collection, "--error", "nonsense").stdout


def test_dead_letters_are_listed_and_retried(collection: Path, tmp_path: Path) -> None:
    source, collection = collection.parent / "documents.jsonl", runs.copy_output(collection, tmp_path / "out")
    listed = concord("errors", collection)
    assert listed.exit_code == 0, listed.output
    lines = listed.stdout.splitlines()
    assert lines[0].split() == ["place", "document", "stage", "error", "attempts", "message"]
    assert "documents.jsonl:" in lines[1]
    assert "2  read  missing_text" in lines
    assert "1  read  text_not_string" in lines
    assert lines[-1].startswith("3 dead letters; to retry after fixing the cause: concord annotate INPUT --output ")

    source.write_text(source.read_text().replace('"text": 7', '"text": "Charles Babbage left."'))
    values = concord_json("annotate", source, "-o", collection, "--retry", "parse", "--dry-run")
    assert values["changes"]["retried"] == 3  # the file has changed
    values = concord_json("annotate", source, "-o", collection, "--retry")
    assert (values["annotated"], values["unchanged"], values["dead_letters"]) == (1, 2, 2)
    assert values["changes"]["retried"] == 3
    assert concord_json("annotate", source, "-o", collection, "--retry=parse")["changes"]["retried"] == 0
    assert concord("verify", collection).exit_code == 0

    left = json.loads(concord("errors", collection, "--id", "e", "--json").stdout)
    assert left["counts"] == [{"stage": "read", "error": "missing_text", "letters": 1}]
    assert [(letter["doc_id"], letter["attempts"]) for letter in left["letters"]] == [("e", 1)]
    left_over = f"{collection}: no dead letter matches; there are 2 read missing_text\n"
    assert concord("errors", collection, "--stage", "tag").stdout == left_over


def write_empty(folder: Path, kind: str) -> Path:
    """Write an input without records and return its path."""
    if kind == "jsonl":
        (folder / "empty.jsonl").touch()
        return folder / "empty.jsonl"
    if kind == "parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), folder / "empty.parquet")
        return folder / "empty.parquet"
    (folder / "texts").mkdir()
    (folder / "texts" / "a.jsonl").touch()
    (folder / "texts" / "b.jsonl").write_text("\n\n")
    return folder / "texts"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder"])
def test_an_empty_collection_is_a_result(kind: str, tmp_path: Path) -> None:
    config = runs.job(write_empty(tmp_path, kind), tmp_path / "out", report=True)
    for _ in range(2):
        report = runs.run_job(config)
        assert (report.read, report.shards, report.exit_code) == (0, 0, 0)
        collection = open_collection(report.output)
        assert total_counts(collection.manifest.shards)["entities"] == 0
        summary = describe_run(report, config=config, collection=collection)
        assert summary.startswith("0 read = 0 annotated + 0 unchanged + 0 dead letters\n")
        assert "the input has no records" in summary
        assert "0 entities in 0 documents" in summary
    output = runs.folder_of(report)
    assert inspection.status(output).values["finished"]
    assert inspection.verify(output, deep=True).exit_code == 0
    assert Path(inspection.report(output).values["report"]).exists()
    run = open_run(output)
    assert [getattr(run, name).count_rows() for name in SCHEMAS] == [0, 0, 0, 0, 0, 0]
    forms: tuple[ExportForm, ...] = ("conllu", "jsonl", "brat", "label-studio")
    for form in forms:
        assert export_collection(output, tmp_path / form, to=form).documents == 0
