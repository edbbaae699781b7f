"""Wrong command lines: each ends with a message that says what was expected, and with exit code 2."""

import shlex
from pathlib import Path

import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord

MODEL = "-m entities_en_small"
GOLD = CHECKOUT / "examples/train/dev.conllu"
TRAIN = CHECKOUT / "conf/train/bilstm_crf.yaml"
MISTAKES = {
    "anotate texts -o o": "Did you mean 'annotate'?",
    "annotate texts": "Missing option '--output'",
    f"annotate nosuch -o o {MODEL}": "expected a file, a folder or a pattern such as texts/*.jsonl, found nothing",
    f"annotate emptydir -o o {MODEL}": "got no file at all",
    f"annotate notes.md -o o {MODEL}": "got 'notes.md'; for other names set a pattern and reader.format",
    f"annotate texts -o texts/o {MODEL}": "output: expected a folder neither in the input",
    f"annotate texts -o notes.md {MODEL}": "notes.md/_run: Not a directory",
    f"annotate texts -o notes.md/o {MODEL}": "notes.md/o/_run: Not a directory",
    f"annotate texts -o s3:/bucket/o {MODEL}": "expected a path or a URL, which begins with s3://",
    f"annotate s3:/bucket/texts -o o {MODEL}": "expected a path or a URL, which begins with s3://",
    f"annotate texts -o ~nobody-of-this-name/o {MODEL}": "home of a user who does not exist",
    f"annotate texts -o o {MODEL} --set reader.text_field=body": 'got only ["id","text"]',
    f"annotate texts -o o {MODEL} --set reader.text_feld=body": "did you mean 'text_field'?",
    f"annotate texts -o o {MODEL} --set reader.format=xls": "expected one of the formats text, jsonl",
    f"annotate texts -o o {MODEL} --set reader.encoding=klingon": "expected auto or an encoding that browsers",
    f"annotate texts -o o {MODEL} --set {'a.' * 3_000}b=1": "expected a key of a job, got one of 3,001 levels",
    f"annotate texts -o o {MODEL} --set output.grace_seconds=.inf": "grace_seconds: input should be a finite number",
    f"annotate texts -o o {MODEL} --set tagger.threshold=.nan": "threshold: input should be a finite number",
    f"annotate texts -o o {MODEL} --set tagger.threshold=-0.1": "input should be greater than or equal to 0, got -0.1",
    "annotate infinite.yaml": "tagger.threshold: input should be a finite number",
    f"annotate texts -o o {MODEL} --set executor.gpus=1": "executor.gpus: expected null for executor.kind local",
    f"annotate texts -o o {MODEL} --set executor.shard_seconds=5": "executor.shard_seconds: expected null for",
    f"annotate texts -o o {MODEL} --set foo": "expected key=value, as in reader.text_field=body",
    f"annotate texts -o o {MODEL} --executor spark": "'spark' is not one of",
    f"annotate texts -o o {MODEL} --limit 0": "0 is not in the range x>=1",
    "annotate texts -o o -m nosuch": "a bundled tagger or models:/NAME@ALIAS; bundled are",
    "annotate texts -o o -m models:/x": "expected models:/NAME@ALIAS or models:/NAME/VERSION",
    "annotate nosuch.yaml": "expected a readable YAML file: No such file or directory",
    "annotate list.yaml": "expected a mapping of keys to values, got list",
    "annotate key.yaml": "expected a plain key",
    "annotate null.yaml": "got a null character in it",
    f"evaluate entities_en_small --data {GOLD} --threshold inf": "threshold: input should be a finite number",
    "tag": "Missing argument 'TEXT'",
    "tag Hello -m nosuch": "bundled are",
    "status texts": "expected the output of a run",
    "errors texts --stage foo": "'foo' is not one of 'read', 'parse', 'tag', 'write'",
    "export texts --to pdf -o x": "'pdf' is not one of 'conllu'",
    "export texts --to jsonl -o x.jsonl.bz2": "expected a name ending in .jsonl, .jsonl.gz",
    "review texts -o x.csv --size 3": "expected a name ending in .json",
    "review texts --size 3": "expected either --output FILE, to write the queue, or --as NAME, to correct it",
    "review texts --size 3 --as ada -o x.json": "expected either --output FILE",
    "review texts --size 3 --as ada --done notes.md": "--done and --to go with --output",
    "review texts --size 3 --as ada --to brat": "--done and --to go with --output",
    "view texts --as ' '": "--as: expected a name of 1 to 200 printable characters, got ' '",
    "schema nosuch": "expected one of documents, sentences, tokens",
    "submit": "Expected either JOB.yaml or --stop ID",
    "submit job.yaml --address nonsense": "expected a job server's URL, such as http://head:8265, got 'nonsense'",
    "submit --stop x --address nonsense": "expected a job server's URL",
    f"train {TRAIN} --set data.train=[nosuch.conllu] --no-tracking": "expected a readable corpus file, found no such",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change into a folder with a text, a note, and job files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    for name in ("texts", "emptydir"):
        Path(name).mkdir()
    Path("texts/a.jsonl").write_text('{"id": "a", "text": "Ada."}\n')
    Path("notes.md").write_text("x")
    Path("list.yaml").write_text("[1, 2]\n")
    Path("key.yaml").write_text("[a, b]: 1\n")
    Path("infinite.yaml").write_text("input: texts\noutput: o\ntagger: {model: entities_en_small, threshold: .inf}\n")
    Path("null.yaml").write_text('input: texts\noutput: "o\\0"\n')
    Path("job.yaml").write_text("input: texts\noutput: o\ntagger: {model: entities_en_small}\n")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_explained(line: str) -> None:
    before = sorted(Path.cwd().rglob("*"))
    result = concord(*shlex.split(line))
    assert result.exit_code == 2, result.output
    assert MISTAKES[line] in " ".join(result.stderr.split())
    assert (result.stdout, "Traceback" in result.stderr) == ("", False)
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.usefixtures("here")
@pytest.mark.slow
def test_a_file_in_the_way_of_an_export_is_named(tiny_bundle: Path) -> None:
    assert concord("annotate", "texts", "-o", "out", "-m", tiny_bundle).exit_code == 0
    result = concord("export", "out", "--to", "jsonl", "-o", "notes.md/x.jsonl")
    assert (result.exit_code, "notes.md: File exists; expected a folder" in result.stderr) == (2, True), result.output
