"""``concord history`` and ``concord files``."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from concord_testing import runs
from concord_testing.command_line import concord


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Annotate three texts, and four after a change."""
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "in" / f"{name}.txt").write_text(f"Anna saw {name}.")
    runs.run_job(runs.job(tmp_path / "in", tmp_path / "out"))
    (tmp_path / "in" / "d.txt").write_text("Dora slept.")
    runs.run_job(runs.job(tmp_path / "in", tmp_path / "out"))
    return tmp_path / "out"


def test_history_lists_names_and_prunes_generations(output: Path) -> None:
    assert concord("history", output, "--tag", "paper-2026", "--generation", "0").exit_code == 0
    found = json.loads(concord("history", output, "--json").stdout)["generations"]
    assert [(one["generation"], one["documents"], one["current"], one["versions"]) for one in found] == [
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
    assert concord("history", output, "--keep", "1").exit_code == 2
    assert concord("history", output, "--tag", "x", "--prune").exit_code == 2


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
