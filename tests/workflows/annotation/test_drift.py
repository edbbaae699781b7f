"""``concord history``: what each generation has, and whether a share has moved between the last two."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from concord_testing import runs
from concord_testing.command_line import concord

from concord.pipeline.output.past_generations import Share
from concord.workflows.annotation.history import has_moved


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
    output = annotate(tmp_path, "Anna saw Bob.", "the cat.", b"\xff\xfe\xff")
    annotate(tmp_path, "Anna saw Bob.", "the cat.", b"\xff\xfe\xff", "Dora slept.")
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


def test_generation_that_only_removes_documents_records_the_one_before(tmp_path: Path) -> None:
    brief = {"path": str(tmp_path / "out"), "grace_seconds": 0}
    annotate(tmp_path, *["the long cat sat on the mat and slept there." * 30] * 3, output=brief)
    output = annotate(tmp_path, *["the long cat sat on the mat and slept there." * 30] * 2, output=brief, max_removed=1)
    assert [one["documents"] for one in described(output)] == [3, 2]


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


def test_check_finds_a_type_that_is_gone(tmp_path: Path) -> None:
    annotate(tmp_path, *["Anna saw the cat."] * 30)
    output = annotate(tmp_path, *["she saw the cat."] * 30)
    move = moved(output)["PER per 1,000 words"]
    assert (move["after"], move["change"], move["names"]) == (0, -1, {"Anna": pytest.approx(-250)})


def test_check_gives_the_reasons_of_dead_letters(tmp_path: Path) -> None:
    annotate(tmp_path, *["Anna slept."] * 40)
    output = annotate(tmp_path, *["Anna slept."] * 28, *[b"\xff\xfe\xff"] * 12)
    move = moved(output)["dead letters per document"]
    assert (move["before"], move["after"], move["change"]) == (0, 0.3, None)
    assert sum(move["names"].values()) == pytest.approx(0.3)
    assert "from none" in concord("history", output, "--check").stdout


def test_check_compares_what_confidence_lacks_of_certainty(tmp_path: Path) -> None:
    # The fakes are less certain of longer words.
    annotate(tmp_path, *["Al slept."] * 400)
    output = annotate(tmp_path, *["Alberta slept."] * 400)
    move = moved(output)["mean confidence"]
    assert (move["before"], move["after"]) == (pytest.approx(0.95), pytest.approx(0.825))
    assert move["names"] == {"Alberta": pytest.approx(-0.175)}


def test_small_collection_raises_no_alarm(tmp_path: Path) -> None:
    annotate(tmp_path, "Anna saw Bob.", "Dora slept.")
    assert moved(annotate(tmp_path, "Anna saw Bob.", "Dora slept.", "the cat sat.", b"\xff\xfe\xff")) == {}


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


def test_options_of_the_check_belong_together(tmp_path: Path) -> None:
    output = annotate(tmp_path, "Anna slept.")
    assert concord("history", output, "--amount", "0.1").exit_code == 2
    assert concord("history", output, "--check", "--prune").exit_code == 2


def test_report_draws_a_small_chart_of_each_figure(tmp_path: Path) -> None:
    output = annotate(tmp_path, "Anna slept.", report=True)
    assert 'id="runs"' not in (output / "_run" / "report.html").read_text()
    annotate(tmp_path, "Anna slept.", "Bob saw Dora.", report=True)
    page = (output / "_run" / "report.html").read_text()
    for title in ("words", "seconds", "dead letters per document", "mean confidence", "PER per 1,000 words"):
        assert f'<figcaption class="meta">{title}</figcaption>' in page
    assert 'aria-label="000000: 2, 000001: 5"><polyline points="0.0,100.0 100.0,0.0 "/>' in page
