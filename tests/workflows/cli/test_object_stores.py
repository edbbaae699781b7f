"""The command line with object stores."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from concord_testing import stores

from concord.pipeline.storage.object_stores import StorePath, Version
from concord.workflows.cli.main import main

pytestmark = pytest.mark.slow

TEXTS = {"ada.txt": b"Ada King met Charles Babbage in London.", "deep/zoe.txt": b"Someone flew to Geneva."}


def concord(*arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output
    return result.stdout


def answer(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(concord(*arguments, "--json", exit_code=exit_code))
    return values


def put_texts(url: str) -> str:
    """Write two texts into a bucket, and return the URL of their folder."""
    for name, text in TEXTS.items():
        stores.put(f"{url}/texts/{name}", text)
    return f"{url}/texts"


@pytest.mark.slow(reason="fifteen commands, with the parser")
def test_every_verb_accepts_the_url_of_a_collection(s3_url: str, tiny_bundle: Path, tmp_path: Path) -> None:
    source, output = put_texts(s3_url), f"{s3_url}/out"
    assert any(check["found"].startswith(output) for check in answer("doctor", "-o", output)["checks"])
    run = answer("annotate", source, "-o", output, "-m", tiny_bundle)
    assert (run["read"], run["annotated"], run["output"], run["report"]) == (2, 2, output, f"{output}/_run/report.html")
    again = concord("annotate", source, "-o", output, "-m", tiny_bundle)
    assert "nothing to do" in again
    assert f"concord.open('{output}').entities.to_table()" in again
    assert (status := answer("status", output))["finished"]
    assert (status["output"], status["read_done"]) == (output, 2)
    assert answer("verify", output)["findings"] == answer("verify", output, "--shallow")["findings"] == []
    assert answer("report", output) == {"report": f"{output}/_run/report.html"}
    concord("annotate", source, "-o", tmp_path / "out", "-m", tiny_bundle)
    difference = concord("diff", tmp_path / "out", output)
    assert output in difference
    assert answer("errors", output)["letters"] == []
    concord("export", output, "--to", "jsonl", "-o", tmp_path / "exported.jsonl")
    assert len((tmp_path / "exported.jsonl").read_text().splitlines()) == 2
    concord("review", output, "--to", "jsonl", "-o", tmp_path / "queue.jsonl", "--size", 1)
    assert len((tmp_path / "queue.jsonl").read_text().splitlines()) == 1

    stores.put(f"{source}/ada.txt", b"Ada Lovelace met nobody in Paris.")
    update = answer("annotate", source, "-o", output, "-m", tiny_bundle)
    assert (update["annotated"], update["unchanged"]) == (1, 1)
    assert answer("verify", output)["findings"] == []
    part = next(name for name in stores.contents(output) if re.search(r"^entities/.*-g1-", name))
    stores.remove(f"{output}/{part}")
    assert [found["place"] for found in answer("verify", output, exit_code=1)["findings"]] == [part]


@pytest.mark.parametrize(
    ("ignores", "fault"), [("If-None-Match", "creates an object that exists"), ("If-Match", "not replace exactly")]
)
def test_doctor_refuses_a_store_without_conditions(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, ignores: str, fault: str
) -> None:
    write_if = StorePath.write_if

    def write(path: StorePath, content: bytes, version: Version | None) -> Version | None:
        if (version is None) == (ignores == "If-None-Match"):
            path.write(content)
            return path.read().version
        return write_if(path, content, version)

    assert "creates an object once and replaces" in concord("doctor", "-o", s3_url)
    monkeypatch.setattr(StorePath, "write_if", write)
    (check,) = (
        check for check in answer("doctor", "-o", s3_url, exit_code=1)["checks"] if check["subject"] == "output"
    )
    assert (check["state"], fault in check["found"], ignores in check["advice"]) == ("fail", True, True)
    assert stores.contents(s3_url) == {}
    assert "s3://not-there: no such bucket" in concord("doctor", "-o", "s3://not-there/out", exit_code=1)


def test_a_missing_bucket_and_a_url_without_a_run_are_named(s3_url: str, tiny_bundle: Path) -> None:
    assert "found no plan" in answer("status", f"{s3_url}/none", exit_code=2)["error"]
    missing = answer("annotate", put_texts(s3_url), "-o", "s3://not-there/out", "-m", tiny_bundle, exit_code=2)
    assert missing["error"].startswith("s3://not-there: no such bucket")


def test_a_credential_in_a_url_is_refused_and_not_repeated() -> None:
    for verb in ("status", "verify", "report"):
        result = CliRunner().invoke(main, [verb, "s3://anna:sesame@bucket/out"])
        assert result.exit_code == 2
        assert "without user and password" in result.output
        assert "sesame" not in result.output
