"""What ``stats.json`` keeps of runs and generations."""

from pathlib import Path

import pytest
from concord_testing import stores

from concord.pipeline.output import run_stats
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.run_stats import STATS_NAME, GenerationStats, RunStats, read_stats, write_stats


@pytest.fixture
def folder(tmp_path: Path) -> OutputFolder:
    """Return an output folder in which nothing is but its own files."""
    (tmp_path / "_run").mkdir()
    return OutputFolder(tmp_path)


def test_stats_are_read_as_they_were_written_but_for_the_oldest_generations(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_stats, "KEPT_GENERATIONS", 2)
    stats = RunStats(words=8, wall_seconds=2.0, generations=(GenerationStats(number=1), GenerationStats(number=2)))
    write_stats(folder, stats.replace(GenerationStats(number=3, words=8), GenerationStats(number=2, confirmed=True)))
    found = read_stats(folder)
    assert found.words_per_second == 4.0
    assert found.generations == (GenerationStats(number=2, confirmed=True), GenerationStats(number=3, words=8))
    assert (found.find(3).words, found.find(7)) == (8, GenerationStats(number=7))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"words": -1}', b'{"wall_seconds": 1e999}', b'{"unknown": 1}'])
def test_stats_that_are_missing_or_broken_are_none(folder: OutputFolder, content: bytes) -> None:
    assert read_stats(folder) == RunStats()
    stores.local(folder.metadata / STATS_NAME).write_bytes(content)
    assert read_stats(folder) == RunStats()
