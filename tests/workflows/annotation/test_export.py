"""The commands that hand an annotated collection on."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from concord_testing.exports import TEXTS, annotate_texts, write_texts

from concord.workflows.cli.main import main


def concord(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an annotated collection; it must not be changed."""
    folder = tmp_path_factory.mktemp("collection")
    annotate_texts(write_texts(folder / "texts.jsonl", TEXTS), folder / "out")
    return folder / "out"


def test_export_says_what_was_written_and_what_was_not(output: Path, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("plain\nempty\nnobody\n")
    result = concord("export", output, "--to", "conllu", "-o", tmp_path / "a.conllu", "--ids", tmp_path / "ids")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"{tmp_path}/a.conllu: 1 document, 2 sentences, 6 words, 2 entities",
        "1 document without a word, which CoNLL-U cannot hold",
        "1 dead letter of the collection: never annotated, not exported",
        "1 id asked for that the collection does not hold: 'nobody'",
    ]


def test_export_answers_in_json_and_gives_label_studio_its_interface(output: Path, tmp_path: Path) -> None:
    result = concord("export", output, "--to", "label-studio", "-o", tmp_path / "a.json", "--limit", 1, "--json")
    values = json.loads(result.stdout)
    assert (values["documents"], values["labels"], values["errors"]) == (1, ["PER"], None)
    assert values["destination"] == str(tmp_path / "a.json")
    assert '<Label value="PER"/>' in values["labeling_config"]


def test_export_without_all_texts_ends_with_code_3(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts.jsonl", {"a": "Anna.", "b": "Bob."})
    annotate_texts(source, tmp_path / "out")
    write_texts(source, {"a": "Anna.", "b": "Bot."})
    result = concord("export", tmp_path / "out", "--to", "jsonl", "-o", tmp_path / "a.jsonl")
    assert result.exit_code == 3
    assert "1 document left out, whose text is not what was annotated; see " in result.stdout
    assert str(tmp_path / "a.jsonl.errors.jsonl") in result.stdout


def test_export_over_something_is_refused(output: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("mine")
    result = concord("export", output, "--to", "jsonl", "-o", tmp_path / "a.jsonl")
    assert result.exit_code == 2
    assert "expected a new name" in result.stderr


def test_review_says_what_was_chosen_and_why(output: Path, tmp_path: Path) -> None:
    first = concord("review", output, "-o", tmp_path / "first.json", "--size", 3, "--per-document", 1)
    assert first.exit_code == 0, first.output
    lines = first.stdout.splitlines()
    assert lines[0].startswith(f"{tmp_path}/first.json: 3 sentences of 3 documents; about ")
    assert lines[2].split() == ["rank", "score", "document", "sentence", "least", "sure"]
    assert lines[3].split()[0] == "1"
    assert " with probability 0." in lines[3]
    assert "<Labels" in first.stdout


def test_review_goes_on_where_an_earlier_queue_ended(output: Path, tmp_path: Path) -> None:
    queues = []
    for number, done in enumerate([(), ("--done", tmp_path / "0.json")]):
        command = ("review", output, "-o", tmp_path / f"{number}.json", "--size", 4, "--json", *done)
        values = json.loads(concord(*command).stdout)
        queues.append({choice["doc_id"] for choice in values["choices"]})
        assert [choice["rank"] for choice in values["choices"]] == [1, 2, 3, 4]
    assert not queues[0] & queues[1]
