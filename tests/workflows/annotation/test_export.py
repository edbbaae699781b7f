"""``concord export`` and ``concord review``."""

import json
from pathlib import Path

import pytest
from concord_testing.command_line import concord
from concord_testing.exports import TEXTS, annotate_texts, write_texts


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


def test_export_refuses_an_existing_destination(output: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("mine")
    result = concord("export", output, "--to", "jsonl", "-o", tmp_path / "a.jsonl")
    assert result.exit_code == 2
    assert "expected a new name" in result.stderr


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
