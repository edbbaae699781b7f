"""The command line: answers on stdout, messages on stderr, exit codes, immediate help, and what is imported."""

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from concord_testing import runs
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord, concord_json
from safetensors import SafetensorError

from concord.models.errors import ConfigError
from concord.pipeline.errors import StoreError
from concord.workflows.annotation import doctor
from concord.workflows.cli.options import verb
from concord.workflows.console import Answer, counted, emit, report_errors, table

SECTIONS = {
    "Collections": (
        *("annotate", "tag", "status", "verify", "history", "files", "diff"),
        *("errors", "report", "view", "export", "schema", "doctor"),
    ),
    "Corrections": ("review", "corrections"),
    "Taggers": ("init", "prepare", "train", "evaluate", "compare", "calibrate"),
    "Registry": ("bundle", "promote", "rollback", "registry"),
    "Clusters": ("submit",),
    "Research": ("parse",),
}

GROUPS = {
    "registry": ("list", "show", "history", "register"),
    "corrections": ("list", "agreement", "import", "export"),
}

VERBS = [
    words
    for verbs in SECTIONS.values()
    for name in verbs
    for words in ([(name, verb) for verb in GROUPS[name]] if name in GROUPS else [(name,)])
]

RECORDS = [
    {"id": "a", "text": "Ada King met Charles Babbage in London. King wrote a program."},
    {"id": "b", "text": "Nothing happened."},
    {"id": "c", "text": "Lincoln is a city. Lincoln was also a president."},
]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collection") / "documents.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS) + "{broken\n")
    return path


@pytest.fixture(scope="module")
def finished(collection: Path, tiny_bundle: Path) -> tuple[Path, Result]:
    """Return the output folder of a finished run and the result of the command."""
    output = collection.parent / "out"
    result = concord("annotate", collection, "-o", output, "-m", tiny_bundle, "--set", "max_dead_letters=0.5")
    return output, result


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, json\n"
        "from click.testing import CliRunner\n"
        "from concord.workflows.cli.main import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True).stdout)
    heavy = {
        "torch",
        "ray",
        "mlflow",
        "stanza",
        "pyarrow",
        "numpy",
        "pydantic",
        "transformers",
        "yaml",
        "pandas",
        "rich",
    }
    assert heavy & set(loaded) == set()


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_has_an_example_and_json(words: tuple[str, ...]) -> None:
    result = concord(*words, "--help")
    assert result.exit_code == 0
    assert f"concord {' '.join(words)}" in result.stdout.split("Example:")[1]
    assert "--json" in result.stdout


def test_the_verbs_are_listed_under_headings_in_the_order_of_work() -> None:
    _, *sections = re.split(r"^(\w+):\n(?=  \w)", concord("--help").stdout.partition("\nOptions:")[2], flags=re.M)
    listed = {
        heading: tuple(re.findall(r"^  (\w+)  +[A-Z]", lines, re.M))
        for heading, lines in zip(sections[::2], sections[1::2], strict=True)
    }
    assert listed == SECTIONS


@pytest.mark.slow
def test_annotate_prints_the_equation_and_where_the_results_are_and_adds_nothing_twice(
    finished: tuple[Path, Result], collection: Path
) -> None:
    output, result = finished
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("4 read = 3 annotated + 0 unchanged + 1 dead letter\n")
    for text in ("read: ", f"{collection}", "entities in 3 documents", f"concord verify {output}", "report.html"):
        assert text in result.stdout
    assert pq.read_table(output / "documents").column("doc_id").to_pylist() == ["a", "b", "c"]
    # Over a finished run there is nothing to do.
    job = collection.parent / "job.yaml"
    model = json.loads((output / "_run/plans/0.json").read_bytes())["config"]["tagger"]["model"]
    job.write_text(f"input: {collection}\noutput: {output}\ntagger: {{model: {model}}}\nmax_dead_letters: 0.5\n")
    values = concord_json("annotate", job)
    assert (values["read"], values["annotated"], values["unchanged"], values["dead_letters"]) == (4, 0, 3, 1)
    assert values["done_before"] == values["shards"] == 1
    assert values["words"] == 0
    assert values["counts"]["documents"] == 3
    assert "nothing to do" in concord("annotate", job).stdout
    result = concord("annotate", collection, "-o", output, "--set", "max_dead_letters=0.1")
    assert result.exit_code == 3
    assert "more than allowed: 10.0% of 4 (max_dead_letters)" in result.stdout


def test_a_dry_run_writes_nothing(collection: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ("annotate", collection, "-o", output, "-m", tiny_bundle, "--limit", 2, "--dry-run")
    result = concord(*arguments)
    assert result.exit_code == 0, result.output
    assert "2 new" in result.stdout
    assert "new       a\n          b\n" in result.stdout
    assert "no run has been timed here yet" in result.stdout
    assert "files     1 jsonl\n" in result.stdout
    values = json.loads(concord(*arguments, "--json").stdout)
    assert values["dry_run"]
    assert (values["formats"], values["ignored"]) == ({"jsonl": 1}, 0)
    assert values["named"] == {"new": ["a", "b"]}
    assert (values["read"], values["shards"], values["done_before"]) == (2, 1, 0)
    assert values["tagger"]["name"] == "bilstm_crf"
    assert not output.exists()


def test_a_dry_run_says_what_is_processed_again_and_why(
    finished: tuple[Path, Result], collection: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    output, _ = finished
    settings = ("-o", output, "-m", tiny_bundle, "--set", "tagger.threshold=0.7", "--dry-run")
    result = concord("annotate", collection, *settings)
    assert "because tagger.threshold: was None, is now 0.7" in result.stdout
    values = json.loads(concord("annotate", collection, *settings, "--json").stdout)
    assert values["changes"]["again"] == values["changes"]["parsed"] > 0
    assert values["expected_seconds"] > 0
    refused = concord("annotate", shutil.copy(collection, tmp_path / "other.jsonl"), *settings)
    assert (refused.exit_code, f"holds the annotation of {collection}" in refused.stderr) == (2, True)


def test_status_and_verify_tell_finished_changed_and_unfinished_runs(
    finished: tuple[Path, Result], tmp_path: Path
) -> None:
    output, _ = finished
    assert "1 of 1 committed" in concord("status", output).stdout
    values = json.loads(concord("status", output, "--json").stdout)
    assert (values["finished"], values["read"], values["read_done"], values["shards_done"]) == (True, 4, 4, 1)
    result = concord("verify", output)
    assert (result.exit_code, "match the manifest" in result.stdout) == (0, True), result.output

    copy = shutil.copytree(output, tmp_path / "copy", symlinks=True)
    (copy / "tokens" / "part-orphan.parquet").write_bytes(b"")
    assert [finding["place"] for finding in concord_json("verify", copy, exit_code=1)["findings"]] == [
        "generations/000000/tokens/part-orphan.parquet"
    ]
    assert "1 finding in" in concord("verify", copy, "--shallow").stdout

    runs.unfinish(copy)
    assert "not finished; run the same annotate command to resume it" in concord("status", copy).stdout
    assert not json.loads(concord("status", copy, "--json").stdout)["finished"]
    assert concord("verify", copy).exit_code == 1
    refused = concord("report", copy)
    assert (refused.exit_code, "is not finished" in refused.stderr) == (2, True)


def test_report_is_written_again(finished: tuple[Path, Result]) -> None:
    output, _ = finished
    path = output / "_run" / "report.html"
    path.unlink()
    assert concord("report", output).stdout.strip() == str(path)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("verb", ["status", "verify", "report"])
def test_a_folder_without_a_run_is_a_usage_error_also_as_json(verb: str, tmp_path: Path) -> None:
    result = concord(verb, tmp_path, "--json")
    values = json.loads(result.stdout)
    assert values["exit_code"] == result.exit_code == concord(verb, tmp_path / "none").exit_code == 2
    assert str(tmp_path) in values["error"]
    assert values["error"] in result.stderr


def test_schema_describes_every_column() -> None:
    text = concord("schema", "tokens").stdout
    assert "uncertainty" in text
    assert "entity_id" not in text
    values = json.loads(concord("schema", "--json").stdout)
    assert set(values["tables"]) == {"documents", "sentences", "tokens", "entities", "errors", "names"}
    assert all(field["description"] for fields in values["tables"].values() for field in fields)
    wrong = concord("schema", "token")
    assert (wrong.exit_code, "expected one of documents" in wrong.stderr) == (2, True)


def test_doctor_prints_a_line_per_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:./mlruns")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setitem(doctor.EXTRAS, "hf", "no_such_module")
    monkeypatch.setattr("concord.models.words.bundled_encoder.damaged_files", lambda: ["pieces.safetensors"])
    checks = {
        check["subject"]: check for check in concord_json("doctor", "--output", tmp_path / "out", exit_code=1)["checks"]
    }
    assert {
        "python",
        "torch",
        "cores",
        "parser parser_multi",
        "tagger entities_multi",
        "extras",
        "cache",
        "output",
    } <= set(checks)
    failed = {subject: check["found"] for subject, check in checks.items() if check["state"] == "fail"}
    assert set(failed) == {"encoder", "MLFLOW_TRACKING_URI", "RAY_ADDRESS"}
    assert "pieces.safetensors" in failed["encoder"]
    assert "sqlite" in failed["MLFLOW_TRACKING_URI"]
    assert all(check["advice"] for check in checks.values() if check["state"] != "ok")
    assert "not installed: hf (pip install" in checks["extras"]["found"]
    assert "      -> start the cluster" in concord("doctor", "--output", tmp_path).stdout


@pytest.mark.parametrize("locks", ["none", "given to all"])
def test_doctor_refuses_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: str
) -> None:
    def flock(*_: object) -> None:
        if locks == "none":
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    checks = concord_json("doctor", "--output", tmp_path / "out", exit_code=1)["checks"]
    (check,) = (check for check in checks if check["subject"] == "output")
    fault = "has no locks" if locks == "none" else "gives a lock to two writers at once"
    assert (check["state"], fault in check["found"], "locks" in check["advice"]) == ("fail", True, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["annotate", "train", "evaluate", "compare", "calibrate", "promote"])
def test_verbs_that_compute_take_a_number_of_threads(verb: str) -> None:
    assert "--threads" in concord(verb, "--help").stdout


def run_command(work: Callable[[], None], *, as_json: bool = False) -> Result:
    @click.command()
    def command() -> None:
        with report_errors(as_json=as_json):
            work()
        emit(Answer(values={}, text=""), as_json=as_json)

    return CliRunner().invoke(command)


def raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("why"), 2),
        (StoreError("why"), 75),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 75),
        (SafetensorError("I/O error: No space left on device (os error 28)"), 75),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "out"), 2),
        (NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), "out"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_expected_errors_have_a_message_and_an_exit_code(error: BaseException, code: int) -> None:
    result = run_command(raising(error))
    assert result.exit_code == code
    assert result.stderr.startswith("Error: ")
    assert json.loads(run_command(raising(error), as_json=True).stdout)["exit_code"] == code


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--json", None])
def test_an_answer_that_finds_no_room_ends_with_75(option: str | None) -> None:
    command = [sys.executable, "-m", "concord", "schema", *filter(None, [option])]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    message = "Error: stdout: No space left on device; free some space and try again\n"
    assert (ended.returncode, ended.stderr) == (75, message)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("why"), FileNotFoundError(errno.ENOENT, "why", "a"), OSError("why")]
)
def test_an_unexpected_error_keeps_its_traceback(error: Exception) -> None:
    result = run_command(raising(error))
    assert result.exit_code == 1
    assert result.exception is error


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["prepare", "parse", "train"])
def test_an_output_that_cannot_be_written_is_named(
    verb: str, tmp_path: Path, tiny_bundle: Path, train_file: Path
) -> None:
    gold = CHECKOUT / "examples/train/dev.conllu"
    (tmp_path / "file").touch()
    output = tmp_path / "file/below.conllu"
    arguments = {"train": [train_file, "--no-tracking"]}
    result = concord(verb, *arguments.get(verb, [gold]), "--output", output)
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1].startswith(f"Error: {tmp_path / 'file'}")


def test_a_working_folder_that_is_gone_ends_no_command_with_a_traceback(
    finished: tuple[Path, Result], collection: Path, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    options = ("-o", finished[0], "-m", tiny_bundle, "--set", "max_dead_letters=0.5")
    again = concord("annotate", collection, *options)
    assert (again.exit_code, again.stderr.count("Traceback")) == (0, 0)
    assert str(finished[0]) in again.stdout
    relative = concord("annotate", "in.jsonl", *options)
    assert relative.exit_code == 2
    assert "expected an absolute path, since the current folder is gone" in relative.stderr


def test_what_a_library_prints_while_a_command_works_goes_to_stderr() -> None:
    @verb(example="concord chatter")
    def chatter() -> Answer:
        print("(raylet) a node is gone")
        return Answer(values={"done": 1}, text="done")

    for arguments, answer in ((["--json"], '{"done": 1}\n'), ([], "done\n")):
        result = CliRunner().invoke(chatter, arguments)
        assert (result.stdout, result.stderr) == (answer, "(raylet) a node is gone\n")


def test_tables_have_aligned_columns() -> None:
    text = table([("a", 1, "x"), ("bc", 1200, "y")], header=("name", "count", "note"))
    assert text.splitlines() == ["name  count  note", "a         1  x", "bc    1,200  y"]
    assert table([]) == ""


def test_control_characters_of_the_input_are_escaped() -> None:
    assert table([("\x1b[31mred\n", "\ud800é")]) == r"\x1b[31mred\n  \ud800é"
    assert table([(None, True, 0.5)]) == "-  yes  0.50"
    assert (counted(1, "shard"), counted(1200, "shard")) == ("1 shard", "1,200 shards")


SLOW = {"torch", "mlflow", "ray", "stanza", "pandas", "transformers", "matplotlib", "scipy", "sklearn"}
NEWS = CHECKOUT / "examples" / "news"
COMMANDS = (
    ("status", "out"),
    ("schema",),
    ("errors", "out"),
    ("files", "out"),
    ("history", "out"),
    ("verify", "out"),
    ("report", "out"),
    ("corrections", "list", "out"),
    ("export", "out", "--to", "jsonl", "-o", "news.jsonl"),
    ("export", "out", "--to", "conllu", "-o", "news.conllu"),
    ("review", "out", "--size", "3", "-o", "queue.json"),
)
MISTAKES = (
    ("annotate", "nosuch", "-o", "new"),
    ("annotate", "empty", "-o", "new"),
    ("annotate", NEWS, "-o", NEWS / "new"),
    ("annotate", NEWS, "-o", "note.txt"),
    ("annotate", NEWS, "-o", "new", "-m", "nosuch"),
    ("annotate", NEWS, "-o", "new", "--limit", "0"),
    ("annotate", NEWS, "-o", "new", "--set", "reader.text_feld=x"),
    ("annotate", NEWS, "-o", "new", "--set", "tagger.terms=nosuch.jsonl"),
    ("annotate", NEWS, "-o", "new", "--set", "parser.package=nosuch", "--set", "parser.directory=empty"),
    ("annotate", NEWS, "-o", "new", "--set", "parser.package=spacy:nosuch"),
    ("annotate", "nosuch.yaml"),
    ("tag", "Ada", "-m", "nosuch"),
)
CODE = """
import json, sys
from concord.workflows.cli.main import main

expected, *commands = json.loads(sys.argv[1])
for arguments in commands:
    try:
        main(arguments)
    except SystemExit as ending:
        assert (ending.code or 0) == expected, (arguments, ending.code)
    imported = sorted(sys.modules.keys() & set(sys.argv[2:]))
    assert not imported, (arguments, imported)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("exit_code", "commands"), [(0, COMMANDS), (2, MISTAKES)])
def test_a_small_command_and_a_mistake_import_no_slow_library(
    exit_code: int, commands: tuple[tuple[object, ...], ...], tmp_path: Path
) -> None:
    runs.run_job(runs.job(runs.write_collection(tmp_path / "in.jsonl", documents=2), tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").touch()
    work = json.dumps([exit_code, *(list(map(str, command)) for command in commands)])
    child = subprocess.run(
        [sys.executable, "-c", CODE, work, *SLOW], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
