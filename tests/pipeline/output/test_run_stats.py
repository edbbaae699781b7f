"""What ``stats.json`` keeps of runs and generations."""

from pathlib import Path

import pytest

from concord.pipeline.output import run_stats
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.run_stats import GenerationStats, RunStats, read_stats, write_stats


def test_stats_keep_the_newest_generations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_stats, "KEPT_GENERATIONS", 2)
    stats = RunStats(words=8, wall_seconds=2.0, generations=(GenerationStats(number=1), GenerationStats(number=2)))
    newer = (GenerationStats(number=2, confirmed=True), GenerationStats(number=3, words=8))
    write_stats(OutputFolder(tmp_path), stats.replace(*newer))
    found = read_stats(OutputFolder(tmp_path))
    assert (found.words_per_second, found.generations) == (4.0, newer)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"words": -1}', b'{"wall_seconds": 1e999}', b'{"unknown": 1}'])
def test_stats_that_are_missing_or_broken_are_none(tmp_path: Path, content: bytes) -> None:
    assert read_stats(OutputFolder(tmp_path)) == RunStats()
    (tmp_path / "_run").mkdir()
    (tmp_path / "_run" / "stats.json").write_bytes(content)
    assert read_stats(OutputFolder(tmp_path)) == RunStats()
