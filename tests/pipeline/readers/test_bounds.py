"""What is read is bounded; a dead letter beyond the bounds can be tried again with others."""

import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from concord_testing import runs
from concord_testing.checkout import CHECKOUT

import concord
from concord.pipeline.output.dead_letters import DeadLetterFilter
from concord.pipeline.readers import streams

LINES = b"".join(b'{"id": "d%d", "text": "Anna met Bob %d times."}\n' % (number, number) for number in range(200))


def errors(output: object) -> list[str]:
    return [row["error"] for row in concord.open(str(output)).to_arrow("errors").to_pylist()]


def test_larger_record_is_annotated_by_a_retry_with_a_larger_bound(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    records = [{"id": "short", "text": "Anna left."}, {"id": "long", "text": "Bob met Anna. " * 50}]
    source.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    config = runs.job(source, tmp_path / "out", reader={"max_record_bytes": 100}, max_dead_letters=1)
    report = runs.run_job(config)
    assert (report.annotated, errors(report.output)) == (1, ["record_too_large"])

    larger = config.model_copy(update={"reader": config.reader.model_copy(update={"max_record_bytes": 10_000})})
    assert runs.run_job(larger).changes.new == 0
    retried = runs.run_job(larger, retry=DeadLetterFilter())

    assert (retried.annotated, retried.unchanged, errors(retried.output)) == (1, 1, [])


@pytest.mark.slow
def test_rest_of_a_file_is_annotated_by_a_retry_with_a_larger_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ALWAYS_UNPACKED_BYTES", 1000)
    source = tmp_path / "a.jsonl.gz"
    source.write_bytes(gzip.compress(LINES))
    config = runs.job(source, tmp_path / "out", reader={"max_unpack_ratio": 2}, max_dead_letters=1)
    report = runs.run_job(config)
    assert errors(report.output) == ["unpacks_too_far"]
    assert report.annotated < 100

    larger = config.model_copy(update={"reader": config.reader.model_copy(update={"max_unpack_ratio": 100})})
    retried = runs.run_job(larger, retry=DeadLetterFilter())

    assert (retried.annotated + retried.unchanged, errors(retried.output)) == (200, [])
    assert runs.run_job(larger).changes.new == 0


READ_WITH_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
sys.path.insert(0, "tests/support")
from concord_testing.broken_files import read_all
from concord.pipeline.config import ReaderConfig
import concord.pipeline.readers.encodings, concord.pipeline.readers.html
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 1_000_000_000,) * 2)
for name in sys.argv[1:]:
    [found] = read_all(Path(name), Path(name).suffixes[0][1:].replace("txt", "text"), ReaderConfig())
    print(found.error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS") or sys.platform != "linux", reason="needs /proc")
def test_small_bombs_of_every_format_need_little_memory(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(100_000_000)) * 12
    names = [tmp_path / f"bomb.{suffix}.gz" for suffix in ("txt", "jsonl", "csv", "tsv", "html")]
    for name in names:
        name.write_bytes(bomb)

    done = subprocess.run(
        [sys.executable, "-c", READ_WITH_LITTLE_MEMORY, *map(str, names)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == ["unpacks_too_far"] * 5, done.stderr
