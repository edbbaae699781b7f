"""The folder examples/archives, which holds one file of each format whose text is extracted."""

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner
from concord_testing import runs, viewing
from concord_testing.checkout import CHECKOUT

import concord
from concord.runs import Run
from concord.workflows.cli.main import main

MODEL = "entities_en_small"
ARCHIVES = CHECKOUT / "examples" / "archives"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Return the command that has annotated the folder, and what it printed; its output folder is ``command[3]``."""
    output = tmp_path_factory.mktemp("archives") / "out"
    options = ["--model", MODEL, "--threads", "1", "--set", "report=false"]
    command = ["annotate", str(ARCHIVES), "-o", str(output), *options]
    return command, CliRunner().invoke(main, command).output


@pytest.fixture(scope="module")
def run(annotated: tuple[list[str], str]) -> Run:
    return concord.open(annotated[0][3])


def test_every_file_is_a_document_whose_text_is_stored(run: Run) -> None:
    rows = {row["doc_id"]: row for row in run.documents.to_table().to_pylist()}

    assert run.errors.count_rows() == 0
    assert {*rows} >= {path.name for path in ARCHIVES.iterdir() if path.suffix in (".pdf", ".docx", ".odt", ".rtf")}
    assert all(row["raw_text"] is not None and row["parts"] is not None for row in rows.values())


def test_an_entity_leads_back_to_its_page(run: Run) -> None:
    entities = run.to_pandas("entities")
    pages = {row["name"]: run.page_of(row) for _, row in entities[entities.doc_id == "harbour-notes.pdf"].iterrows()}

    assert str(pages["Rotterdam"]) == "p. 1" or str(pages["Rotterdam"]) == "p. 2"
    assert (str(pages["Philadelphia"]), str(pages["Lisbon"])) == ("p. 1", "p. 3")
    assert pages["Lisbon"] == ("page", "3", pages["Lisbon"].start if pages["Lisbon"] else -1)
    telegram = next(row for _, row in entities[entities.doc_id == "telegram.rtf"].iterrows())
    assert run.page_of(telegram) is None
    found = run.sql(
        "SELECT DISTINCT list_last(list_filter(parts, lambda part: part.start <= start_char)).label "
        "FROM entities JOIN documents USING (doc_id) WHERE entities.name = 'Lisbon'"
    )
    assert found.fetchall() == [("3",)]


def test_pages_stand_in_csv_and_in_the_viewer(run: Run, tmp_path: Path) -> None:
    written = CliRunner().invoke(main, ["export", run.output, "--to", "csv", "-o", str(tmp_path / "entities.csv")])
    assert written.exit_code == 0, written.output
    with (tmp_path / "entities.csv").open(encoding="utf-8-sig") as file:
        parts = {(row["doc_id"], row["name"]): row["part"] for row in csv.DictReader(file)}
    assert parts["harbour-notes.pdf", "Philadelphia"] == "p. 1"
    assert parts["telegram.rtf", "Hotel Bellevue"] == ""

    client = viewing.open_client(Path(run.output), tmp_path / "cache")
    page = viewing.read(client, "/document?id=harbour-notes.pdf")
    assert [f"<b>p. {number}</b>" in page for number in (1, 2, 3, 4)] == [True, True, True, False]


def test_the_summary_says_that_texts_are_stored_and_a_second_run_finds_nothing_to_do(
    annotated: tuple[list[str], str],
) -> None:
    command, printed = annotated
    assert "texts extracted and stored" in printed
    assert "1 docx" in CliRunner().invoke(main, [*command, "--dry-run"]).output
    before = runs.committed_bytes(Path(command[3]))

    assert "nothing to do" in CliRunner().invoke(main, command).output
    assert runs.committed_bytes(Path(command[3])) == before
