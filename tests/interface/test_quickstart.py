"""docs/quickstart.ipynb: every cell runs, and shows what the page shows."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.pages import IS_PRINTED_HERE
from nbclient import NotebookClient

NOTEBOOK = CHECKOUT / "docs" / "quickstart.ipynb"


def shown(cell: Any) -> list[str]:
    """Return what a cell wrote to stdout and displayed, as plain text."""
    texts = []
    for output in cell.get("outputs", []):
        if output.get("name") == "stderr":
            continue
        text = output["text"] if output.output_type == "stream" else output.get("data", {}).get("text/plain", "")
        texts.append(text)
    return texts


@pytest.mark.release
def test_the_notebook_shows_what_its_cells_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The notebook starts in docs/ and works in the checkout, whose examples and jobs it reads.
    for name in ("conf", "examples"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    (tmp_path / "docs").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    kept = nbformat.read(NOTEBOOK, as_version=4)
    ran = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        ran, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path / "docs"}}
    ).execute()
    for before, after in zip(kept.cells, ran.cells, strict=True):
        if before.cell_type == "code" and "varies" not in before.metadata.get("tags", []):
            assert len(shown(after)) == len(shown(before))
            if IS_PRINTED_HERE:
                assert shown(after) == shown(before)
    assert sum(bool(cell.get("outputs")) for cell in kept.cells) >= 8
    assert str(CHECKOUT) not in NOTEBOOK.read_text(encoding="utf-8")
