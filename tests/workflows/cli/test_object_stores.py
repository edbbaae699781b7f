"""The command line with object stores."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from concord_testing import stores

from concord.workflows.cli.main import main

TEXTS = {"ada.txt": b"Ada King met Charles Babbage in London.", "deep/zoe.txt": b"Someone flew to Geneva."}


def concord(*arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output
    return result.stdout


def answer(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(concord(*arguments, "--json", exit_code=exit_code))
    return values


@pytest.fixture
def source(s3_url: str) -> str:
    """Return the URL of two texts."""
    for name, text in TEXTS.items():
        stores.put(f"{s3_url}/texts/{name}", text)
    return f"{s3_url}/texts"


@pytest.mark.slow
def test_every_verb_accepts_the_url_of_a_collection(
    source: str, s3_url: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    output = f"{s3_url}/out"
    run = answer("annotate", source, "-o", output, "-m", tiny_bundle)
    assert (run["read"], run["annotated"], run["output"], run["report"]) == (2, 2, output, f"{output}/_run/report.html")
    assert "nothing to do" in concord("annotate", source, "-o", output, "-m", tiny_bundle)
    assert (status := answer("status", output))["finished"]
    assert (status["output"], status["read_done"]) == (output, 2)
    assert answer("verify", output)["findings"] == answer("verify", output, "--shallow")["findings"] == []
    assert answer("report", output) == {"report": f"{output}/_run/report.html"}
    concord("annotate", source, "-o", tmp_path / "out", "-m", tiny_bundle)
    difference = concord("diff", tmp_path / "out", output)
    assert output in difference
    assert answer("errors", "list", output)["letters"] == []
    concord("export", output, "--to", "jsonl", "-o", tmp_path / "exported.jsonl")
    assert len((tmp_path / "exported.jsonl").read_text().splitlines()) == 2
    concord("review", output, "--to", "jsonl", "-o", tmp_path / "queue.jsonl", "--size", 1)
    assert len((tmp_path / "queue.jsonl").read_text().splitlines()) == 1

    part = next(name for name in stores.contents(output) if name.startswith("entities/"))
    stores.remove(f"{output}/{part}")
    assert [found["place"] for found in answer("verify", output, exit_code=1)["findings"]] == [part]


def test_a_url_without_a_run_is_refused(s3_url: str) -> None:
    assert "found no plan" in answer("status", f"{s3_url}/none", exit_code=2)["error"]


def test_a_missing_bucket_is_named(source: str, tiny_bundle: Path) -> None:
    missing = answer("annotate", source, "-o", "s3://not-there/out", "-m", tiny_bundle, exit_code=2)
    assert missing["error"].startswith("s3://not-there: no such bucket")


def test_a_credential_in_a_url_is_refused_and_not_repeated() -> None:
    for verb in ("status", "verify", "report"):
        result = CliRunner().invoke(main, [verb, "s3://anna:sesame@bucket/out"])
        assert result.exit_code == 2
        assert "without user and password" in result.output
        assert "sesame" not in result.output
