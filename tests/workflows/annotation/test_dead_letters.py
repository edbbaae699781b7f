"""``concord errors list`` and ``concord errors retry``."""

import json
from pathlib import Path

import pytest
from concord_testing.command_line import concord

pytestmark = pytest.mark.slow

TEXTS = {"a": "Ada King met Charles Babbage in London.", "b": "Nothing happened."}


@pytest.fixture
def collection(tmp_path: Path, tiny_bundle: Path) -> Path:
    """Return the output of a run over two documents and three lines that are not documents."""
    lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in TEXTS.items()]
    lines += ['{"id": "c"}', '{"id": "d", "text": 7}', '{"id": "e"}']
    (tmp_path / "documents.jsonl").write_text("\n".join(lines) + "\n")
    output = tmp_path / "out"
    settings = ("--set", "max_dead_letters=1", "--set", "report=false")
    done = concord("annotate", tmp_path / "documents.jsonl", "-o", output, "-m", tiny_bundle, *settings)
    assert done.exit_code == 0, done.output
    return output


def test_dead_letters_are_listed_and_retried(collection: Path) -> None:
    listed = concord("errors", "list", collection)
    assert listed.exit_code == 0, listed.output
    lines = listed.stdout.splitlines()
    assert lines[0].split() == ["place", "document", "stage", "error", "attempts", "message"]
    assert "documents.jsonl:" in lines[1]
    assert "2  read  missing_text" in lines
    assert "1  read  text_not_string" in lines
    assert lines[-1].startswith("3 dead letters; to retry after fixing the cause: concord errors retry ")

    source = collection.parent / "documents.jsonl"
    source.write_text(source.read_text().replace('"text": 7', '"text": "Charles Babbage left."'))
    done = concord("errors", "retry", collection, "--set", "executor.threads=1", "--json")
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    assert (values["annotated"], values["unchanged"], values["dead_letters"]) == (1, 2, 2)
    assert values["changes"]["retried"] == 3
    assert concord("verify", collection).exit_code == 0

    left = json.loads(concord("errors", "list", collection, "--id", "e", "--json").stdout)
    assert left["counts"] == [{"stage": "read", "error": "missing_text", "letters": 1}]
    assert [(letter["doc_id"], letter["attempts"]) for letter in left["letters"]] == [("e", 1)]
    left_over = f"{collection}: no dead letter matches; there are 2 read missing_text\n"
    assert concord("errors", "list", collection, "--stage", "tag").stdout == left_over
    retried = concord("errors", "retry", collection, "--id", "a")
    assert (retried.exit_code, retried.stdout) == (2, "")
    assert left_over in retried.stderr


def test_a_filter_that_matches_nothing_says_what_there_is(collection: Path) -> None:
    kinds = "no dead letter matches; there are 2 read missing_text, 1 read text_not_string\n"
    for verb in ("list", "retry"):
        unknown = concord("errors", verb, collection, "--stage", "foo")
        assert unknown.exit_code == 2
        assert "'foo' is not one of 'read', 'parse', 'tag', 'write'" in unknown.stderr
        nonsense = concord("errors", verb, collection, "--error", "nonsense")
        assert nonsense.exit_code == (2 if verb == "retry" else 0), nonsense.output
        assert kinds in nonsense.output


def test_retry_refuses_settings_that_change_labels(collection: Path) -> None:
    refused = concord("errors", "retry", collection, "--set", "tagger.threshold=0.1")
    assert refused.exit_code == 2
    assert "tagger.threshold: was None, is now 0.1" in refused.stderr
    unknown = concord("errors", "retry", collection, "--set", "executor.actor=1")
    assert unknown.exit_code == 2
    assert "actors" in unknown.stderr
