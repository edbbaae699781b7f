"""``concord history`` and ``concord files``: what each generation has, and which shares the last has moved."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from concord_testing import runs
from concord_testing.command_line import concord

from concord.workflows.annotation.history import Share, has_moved

pytestmark = pytest.mark.slow

PERSONS, LETTERS, CONFIDENT = "PER per 1,000 words", "dead letters per document", "mean confidence"
BROKEN = b"\xff\xfe\xff"


def annotate(folder: Path, *texts: str | bytes, **changes: Any) -> Path:
    """Annotate texts, a file each, in place of those before."""
    source = folder / "in"
    source.mkdir(exist_ok=True)
    for old in source.iterdir():
        old.unlink()
    for number, text in enumerate(texts):
        (source / f"{number:03d}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    runs.run_job(runs.job(source, folder / "out", max_dead_letters=1, **changes))
    return folder / "out"


def described(output: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(concord("history", output, "--json").stdout)["generations"]
    return listed


def moved(output: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Return the shares that have moved, by name."""
    result = concord("history", output, "--check", "--json", *options)
    found = {move["share"]: move for move in json.loads(result.stdout)["moved"]}
    assert result.exit_code == (5 if found else 0)
    return found


def test_each_generation_has_its_counts_times_and_confidence(tmp_path: Path) -> None:
    output = annotate(tmp_path, "Anna saw Bob.", "the cat.", BROKEN)
    annotate(tmp_path, "Anna saw Bob.", "the cat.", BROKEN, "Dora slept.")
    first, second = described(output)
    assert (first["documents"], first["words"], first["dead_letters"]) == (2, 5, 1)
    assert (first["entities"], second["entities"]) == ({"PER": 2}, {"PER": 3})
    assert (second["documents"], second["words"]) == (3, 7)
    confidences = pq.read_table(output / "entities")["confidence"].to_pylist()
    assert second["confidence"] == pytest.approx(sum(confidences) / 3, abs=1e-6)
    # Only the words of the new document were annotated again.
    assert second["words_per_second"] * second["seconds"] == pytest.approx(2)
    header, line, _ = concord("history", output).stdout.splitlines()
    assert header.split()[-2:] == ["PER", "name"]
    assert line.split()[-1] == "2"


def test_history_goes_back_beyond_what_is_kept(tmp_path: Path) -> None:
    for number in range(3):
        output = annotate(
            tmp_path, *["Anna slept."] * (number + 1), output={"path": str(tmp_path / "out"), "grace_seconds": 0}
        )
    assert [(one["generation"], one["documents"], one["kept"]) for one in described(output)] == [
        (0, 1, False),
        (1, 2, False),
        (2, 3, True),
    ]
    assert "removed" in concord("history", output).stdout
    assert moved(output) == {}
    assert "nothing to compare" in concord("history", output, "--check").stdout
    # A generation that only removes documents records the one before as well.
    brief = {"path": str(output), "grace_seconds": 0}
    annotate(tmp_path, "Anna slept.", output=brief, max_removed=1)
    assert [one["documents"] for one in described(output)] == [1, 2, 3, 1]


def test_check_names_the_share_that_moved_and_the_names_that_moved_it(tmp_path: Path) -> None:
    annotate(tmp_path, *["Anna saw the cat now."] * 100)
    output = annotate(tmp_path, *["Anna saw the Zed now."] * 60, *["Anna saw the cat now."] * 40)
    move = moved(output)["PER per 1,000 words"]
    assert (move["before"], move["after"]) == (200, 320)
    assert move["change"] == pytest.approx(0.6)
    assert move["names"] == {"Zed": pytest.approx(120)}
    result = concord("history", output, "--check")
    assert "PER per 1,000 words: 200 to 320 (+60%), most by Zed +120" in result.stdout
    assert "PER per 1,000 words" not in moved(output, "--amount", "0.7")


def test_check_after_a_run_that_changed_nothing_finds_nothing(tmp_path: Path) -> None:
    cats, dogs = ["Anna saw the cat."] * 30, ["she saw the dog."] * 30
    annotate(tmp_path, *cats)
    output = annotate(tmp_path, *dogs)
    assert moved(output)
    assert moved(output), "no run since"
    for _ in range(2):
        annotate(tmp_path, *dogs)
        assert moved(output) == {}
    assert "the last run has changed nothing" in concord("history", output, "--check").stdout
    annotate(tmp_path, *cats)
    assert moved(output)


def test_runs_that_change_nothing_are_recorded_once(tmp_path: Path) -> None:
    stats = annotate(tmp_path, "Anna slept.") / "_run" / "stats.json"
    annotate(tmp_path, "Anna slept.", "Bob slept.")
    written = [stats.stat().st_ino]
    for _ in range(2):
        annotate(tmp_path, "Anna slept.", "Bob slept.")
        written.append(stats.stat().st_ino)
    assert written[0] != written[1] == written[2]


def test_check_compares_with_no_generation_but_the_one_right_before(tmp_path: Path) -> None:
    brief = {"path": str(tmp_path / "out"), "grace_seconds": 0}
    output = annotate(tmp_path, *["Anna saw the cat."] * 30, output=brief)
    concord("history", output, "--tag", "first")
    for number in range(2):
        annotate(tmp_path, *["she saw the dog."] * (30 + number), output=brief)
    # The first one is kept for its name, and the second is removed.
    assert [one["kept"] for one in described(output)] == [True, False, True]
    assert moved(output) == {}


@pytest.mark.parametrize(
    ("before", "after", "share", "rates", "change", "names"),
    [
        (["Anna saw the cat."] * 30, ["she saw the cat."] * 30, PERSONS, (250, 0), -1, {"Anna": -250}),
        (["Anna slept."] * 40, ["Anna slept."] * 28 + [BROKEN] * 12, LETTERS, (0, 0.3), None, {"invalid_utf8": 0.3}),
        # The fakes are less certain of longer words.
        (["Al slept."] * 400, ["Alberta slept."] * 400, CONFIDENT, (0.95, 0.825), None, {"Alberta": -0.175}),
    ],
)
def test_check_finds_what_is_gone_broken_or_less_certain(
    tmp_path: Path,
    before: list[str | bytes],
    after: list[str | bytes],
    share: str,
    rates: tuple[float, float],
    change: float | None,
    names: dict[str, float],
) -> None:
    annotate(tmp_path, *before)
    output = annotate(tmp_path, *after)
    move = moved(output)[share]
    assert (move["before"], move["after"]) == pytest.approx(rates)
    assert move["names"] == pytest.approx(names)
    if share != CONFIDENT:
        assert move["change"] == change
    assert ("from none" in concord("history", output, "--check").stdout) == (share == LETTERS)


def test_small_collection_raises_no_alarm(tmp_path: Path) -> None:
    annotate(tmp_path, "Anna saw Bob.", "Dora slept.")
    assert moved(annotate(tmp_path, "Anna saw Bob.", "Dora slept.", "the cat sat.", BROKEN)) == {}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Share(100, 10_000), Share(119, 10_000), False),  # not by a fifth
        (Share(100, 10_000), Share(130, 10_000), False),  # by chance
        (Share(1000, 100_000), Share(1300, 100_000), True),
        (Share(1000, 100_000), Share(700, 100_000), True),
        (Share(0, 1000), Share(9, 1000), False),
        (Share(0, 1000), Share(10, 1000), True),
        (Share(0, 1000), Share(0, 1000), False),
    ],
)
def test_share_moves_by_more_than_the_amount_and_more_than_chance(before: Share, after: Share, expected: bool) -> None:
    assert has_moved(before, after, amount=0.2) is expected


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Annotate three texts, and four after a change."""
    texts = ("Anna saw a.", "Anna saw b.", "Anna saw c.")
    annotate(tmp_path, *texts)
    return annotate(tmp_path, *texts, "Dora slept.")


def test_history_lists_names_and_prunes_generations(output: Path) -> None:
    assert concord("history", output, "--tag", "paper-2026", "--generation", "0").exit_code == 0
    assert [(one["generation"], one["documents"], one["current"], one["versions"]) for one in described(output)] == [
        (0, 3, False, ["paper-2026"]),
        (1, 4, True, []),
    ]
    lines = concord("history", output).stdout.splitlines()
    assert lines[1].split()[-1] == "paper-2026"
    assert lines[2].split()[-1] == "current"
    assert "removed 0 generations" in concord("history", output, "--prune").stdout
    refused = concord("history", output, "--untag", "v1")
    assert (refused.exit_code, "there are: paper-2026" in refused.stderr) == (2, True)
    assert concord("history", output, "--untag", "paper-2026").exit_code == 0
    for mistake in (("--keep", 1), ("--tag", "x", "--prune"), ("--amount", 0.1), ("--check", "--prune")):
        assert concord("history", output, *mistake).exit_code == 2


def test_files_are_those_of_one_generation(output: Path) -> None:
    paths = concord("files", output, "--table", "documents").stdout.split()
    assert paths
    assert all(path.startswith(f"{output}/generations/000001/documents/") for path in paths)
    assert pq.read_table(paths).num_rows == 4
    earlier = concord("files", output, "--table", "documents", "--generation", "0").stdout.split()
    assert pq.read_table(earlier).num_rows == 3
    assert {Path(path).parent.name for path in concord("files", output).stdout.split()} == {
        "documents",
        "sentences",
        "tokens",
        "entities",
        "names",
    }
    refused = concord("files", output, "--table", "tables")
    assert (refused.exit_code, "expected one of documents" in refused.stderr) == (2, True)
    assert concord("files", output, "--generation", "9").exit_code == 2
