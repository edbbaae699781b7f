"""Commands that load no model import no library that takes long to import."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from concord_testing import runs
from concord_testing.checkout import CHECKOUT

SLOW = {"torch", "mlflow", "ray", "stanza", "pandas", "transformers", "matplotlib", "scipy", "sklearn"}
NEWS = CHECKOUT / "examples" / "news"
COMMANDS = (
    ("status", "out"),
    ("schema",),
    ("errors", "list", "out"),
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
