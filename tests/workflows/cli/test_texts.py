"""Texts that come from the command line: ``concord tag`` and ``concord annotate -``."""

import json
from pathlib import Path

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from concord_testing.command_line import concord

from concord.pipeline.output.collection import open_collection
from concord.workflows.annotation.tag import _describe
from concord.workflows.cli.main import main

TEXT = "Ada King met Charles Babbage\nin London."


def pipe(content: str | bytes, *arguments: object) -> Result:
    """Run a command with this stdin."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=content)


def entity(text: str, start: int, label: str = "PER") -> dict[str, object]:
    return {"text": text, "label": label, "confidence": 0.5, "start_char": start, "end_char": start + len(text)}


def test_entities_are_marked_in_the_text_and_listed() -> None:
    found = _describe("Ada met\x1b[31m Bob.\n", [entity("Ada", 0), entity("Bob", 13)])
    marked, _, table = found.partition("\n\n")
    assert click.unstyle(marked) == "[Ada PER] met\\x1b[31m [Bob PER]."
    assert marked != click.unstyle(marked)
    assert [line.split() for line in table.splitlines()] == [
        ["entity", "type", "confidence", "start", "end"],
        ["Ada", "PER", "0.50", "0", "3"],
        ["Bob", "PER", "0.50", "13", "16"],
    ]
    assert _describe("none", []) == "none\n\nno entities"


@pytest.mark.slow
def test_tag_prints_the_entities_of_a_text(tiny_bundle: Path, tmp_path: Path) -> None:
    values = json.loads(concord("tag", TEXT, "-m", tiny_bundle, "--json").stdout)
    assert values["text"] == TEXT
    assert all(TEXT[one["start_char"] : one["end_char"]] == one["text"] for one in values["entities"])
    assert json.loads(pipe(TEXT, "tag", "-", "-m", tiny_bundle, "--json").stdout) == values

    # Longer than the name of a file can be.
    assert json.loads(concord("tag", TEXT * 200, "-m", tiny_bundle, "--json").stdout)["text"] == TEXT * 200
    (tmp_path / "a.txt").write_text(TEXT)
    hinted = concord("tag", tmp_path / "a.txt", "-m", tiny_bundle)
    assert hinted.exit_code == 0, hinted.output
    assert f"concord tag - < {tmp_path}/a.txt" in hinted.stderr
    assert "\x1b" not in hinted.stdout
    refused = pipe(b"Mu\xf1oz", "tag", "-", "-m", tiny_bundle)
    assert (refused.exit_code, "stdin: expected text in utf-8" in refused.stderr) == (2, True), refused.output


@pytest.mark.slow
def test_stdin_is_annotated_and_brought_up_to_date_like_a_file(tiny_bundle: Path, tmp_path: Path) -> None:
    command = ("annotate", "-", "-o", tmp_path / "out", "-m", tiny_bundle, "--json")
    values = json.loads(pipe(TEXT, *command).stdout)
    assert (values["read"], values["annotated"]) == (1, 1)
    again = json.loads(pipe(TEXT, *command).stdout)
    assert (again["annotated"], again["unchanged"], again["shards"] - again["done_before"]) == (0, 1, 0)
    changed = json.loads(pipe("Bob left.", *command).stdout)
    assert changed["changes"]["changed"] == 1
    plan = open_collection(tmp_path / "out").plan
    assert plan.config.input == str(tmp_path / "out" / "_run" / "stdin.txt")
    assert Path(plan.config.input).read_text() == "Bob left."
    assert concord("verify", tmp_path / "out").exit_code == 0
    assert concord("export", tmp_path / "out", "--to", "jsonl", "-o", tmp_path / "e.jsonl").exit_code == 0


@pytest.mark.slow
def test_records_come_from_stdin_with_a_format(tiny_bundle: Path, tmp_path: Path) -> None:
    records = "".join(json.dumps({"id": str(number), "text": TEXT}) + "\n" for number in range(3))
    command = ("annotate", "-", "-o", tmp_path / "out", "-m", tiny_bundle, "--set", "reader.format=jsonl", "--json")
    assert json.loads(pipe(records, *command).stdout)["annotated"] == 3
    assert pq.read_table(tmp_path / "out" / "documents")["doc_id"].to_pylist() == ["0", "1", "2"]


def test_stdin_needs_an_output_and_no_dry_run(tmp_path: Path) -> None:
    assert "Missing option '--output'" in pipe("text", "annotate", "-").stderr
    refused = pipe("text", "annotate", "-", "-o", tmp_path / "out", "--dry-run")
    assert (refused.exit_code, "got stdin (-)" in refused.stderr) == (2, True), refused.output
    assert not (tmp_path / "out").exists()


def test_stdin_turns_no_folder_of_other_files_into_a_collection(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    refused = pipe("text", "annotate", "-", "-o", tmp_path)
    assert (refused.exit_code, "got one that contains a.txt" in refused.stderr) == (2, True), refused.output
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("content", ["", " \n", "\ufeff"])
def test_tag_refuses_a_text_without_words_before_it_loads_anything(content: str) -> None:
    for refused in (pipe(content, "tag", "-", "-m", "no_such_tagger"), concord("tag", "", "-m", "none")):
        assert refused.exit_code == 2
        assert "expected a text with words, got " in refused.stderr


def test_an_empty_pipe_leaves_a_collection_as_it_is(tmp_path: Path) -> None:
    kept = tmp_path / "out" / "_run" / "stdin.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text(TEXT)
    refused = pipe("", "annotate", "-", "-o", tmp_path / "out")
    assert refused.exit_code == 2
    assert "stdin: expected a text or records, got nothing" in refused.stderr
    assert kept.read_text() == TEXT
