"""Runs over files whose text is extracted: pages, lost pages, stored texts, and libraries of other releases."""

import gzip
from email.message import EmailMessage
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import cast

import orjson
import pyarrow.parquet as pq
import pytest
from concord_testing import runs, viewing
from concord_testing.documents import BROKEN_PAGE, lines, pdf, warc_page

from concord.pipeline.errors import InputError, PlanError
from concord.pipeline.exchange.export import export_collection
from concord.pipeline.output.collection import open_collection, read_dead_letters
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.shard_stats import collection_counts
from concord.pipeline.output.verify import verify
from concord.pipeline.readers import read_file
from concord.pipeline.report.html import write_report
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.output_paths import read_bytes
from concord.pipeline.worker.stages import ReadStage

pytestmark = pytest.mark.slow

ONE, TWO = lines("Anna went on."), lines("Bob saw the cat.")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.pdf").write_bytes(pdf(ONE, BROKEN_PAGE, TWO))
    (folder / "b.txt").write_text("Smith.")
    return folder


def annotate(folder: Path, **changes: object) -> RunReport:
    return runs.run_job(runs.job(folder, folder.parent / "out", max_dead_letters=1, **changes))


def rows(report: RunReport, table: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pq.read_table(runs.folder_of(report) / table).to_pylist()
    return found


def test_a_broken_page_costs_that_page_alone_and_two_runs_write_equal_bytes(archive: Path, tmp_path: Path) -> None:
    report = annotate(archive)
    first = runs.committed_bytes(runs.folder_of(report))
    second = runs.committed_bytes(runs.folder_of(runs.run_job(runs.job(archive, tmp_path / "x", max_dead_letters=1))))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name] and "manifest" not in name] == []

    assert (report.read, report.annotated, report.dead_letters, report.lost_files) == (2, 2, 0, ())
    document, other = rows(report, "documents")
    assert document["raw_text"] == "Anna went on.\n\nBob saw the cat."
    assert document["parts"] == [
        {"kind": "page", "label": "1", "start": 0},
        {"kind": "page", "label": "3", "start": 15},
    ]
    assert document["source_sha256"] == sha256((archive / "a.pdf").read_bytes()).hexdigest()
    (lost,) = cast(list[dict[str, object]], document["lost"])
    assert (lost["number"], lost["error"]) == (2, "unreadable_page")
    assert [other[name] for name in ("raw_text", "parts", "lost", "source_sha256")] == [None] * 4
    (row,) = rows(report, "errors")
    assert (row["doc_id"], row["position"], row["error"], row["page"]) == ("a.pdf", 0, "unreadable_page", 2)
    assert row["message"] == f"{archive / 'a.pdf'}, page 2: {lost['message']}"
    assert verify(runs.folder_of(report)) == []
    collection = open_collection(runs.folder_of(report))
    assert collection_counts(collection.manifest)["lost_pages"] == 1
    assert list(read_dead_letters(collection.folder, collection.manifest.shards)) == []
    export_collection(runs.folder_of(report), tmp_path / "a.jsonl", to="jsonl")
    assert orjson.loads((tmp_path / "a.jsonl").read_bytes().splitlines()[0])["lost"] == document["lost"]
    page = read_bytes(write_report(collection.folder)).decode()
    assert "1 page of documents that were annotated could not be read" in page
    client = viewing.open_client(runs.folder_of(report), tmp_path / "cache")
    assert "Lost: page or chapter 2: " in viewing.read(client, "/document?id=a.pdf")


def test_only_new_bytes_are_annotated(archive: Path) -> None:
    message = "From ada@a.org Sat May  8 10:00:00 2021\nSubject: Bridge\n\n{}\n\n"
    (archive / "c.mbox").write_text(message.format("Anna went."))
    before = rows(annotate(archive), "documents")[0]
    assert annotate(archive).changes.description == "no changes"

    (archive / "a.pdf").rename(archive / "z.pdf")
    (archive / "c.mbox").write_text(message.format("Anna went.") + message.format("Bob went on."))
    second = annotate(archive)

    assert (second.changes.description, second.annotated, second.unchanged) == ("1 new, 1 moved or renamed", 1, 3)
    (moved,) = (row for row in rows(second, "documents") if row["doc_id"] == "z.pdf")
    assert {**moved, "doc_id": "a.pdf", "source_uri": before["source_uri"]} == before
    assert [(row["doc_id"], row["page"]) for row in rows(second, "errors")] == [("z.pdf", 2)]
    (archive / "z.pdf").write_bytes(pdf(ONE, TWO))
    third = annotate(archive)
    assert (third.changes.description, rows(third, "errors")) == ("1 changed", [])


def test_a_text_is_extracted_anew_where_its_file_is_of_another_format(archive: Path, tmp_path: Path) -> None:
    page = archive / "c.xml"
    page.write_text("<TEI xmlns='http://www.tei-c.org/ns/1.0'><text><p>Anna <fw>saw</fw> went on.</p></text></TEI>")
    assert rows(annotate(archive), "documents")[2]["raw_text"] == "Anna went on."
    page.rename(archive / "c.html")
    report = annotate(archive)
    assert report.changes.description == "1 new, 1 removed"
    texts = [rows(report, "documents")[2]["raw_text"]]

    pattern = runs.job(tmp_path / "in/c.*", tmp_path / "x", reader={"format": "html"})
    texts += [row["raw_text"] for row in rows(runs.run_job(pattern), "documents")]
    again = runs.run_job(runs.job(tmp_path / "in/c.*", tmp_path / "x", reader={"format": "tei"}))
    assert (again.changes.description, rows(again, "documents")[0]["raw_text"]) == ("1 changed", "Anna went on.")
    assert texts == ["Anna saw went on."] * 2


def test_another_release_of_a_library_has_its_files_read_again(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = annotate(archive)
    plan = OutputFolder(str(first.output)).plan()
    assert plan.libraries == {"pdf": f"pypdfium2 {version('pypdfium2')}"}

    monkeypatch.setattr(read_file, "_release", lambda name: "999")
    with pytest.raises(PlanError, match=r"'pdf': 'pypdfium2 999'.* on this worker"):
        ReadStage(plan, OutputFolder(str(first.output)))
    again = annotate(archive)
    assert again.changes.description == "1 to be tagged again"
    assert ["by other releases of libraries" in reason for reason in again.reasons] == [True]


def test_texts_stay_stored_where_others_are_dropped(archive: Path) -> None:
    kept = annotate(archive, output={"path": str(archive.parent / "out"), "keep_text": True})
    assert [row["raw_text"] is None for row in rows(kept, "documents")] == [False, False]

    dropped = annotate(archive, output={"path": str(archive.parent / "out"), "keep_text": False})
    assert [row["raw_text"] is None for row in rows(dropped, "documents")] == [False, True]
    assert dropped.changes.description == "1 text stored or dropped (output.keep_text)"


def test_without_the_extra_its_formats_are_unknown_and_what_to_install_is_said(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_file, "_release", lambda name: "")
    available = read_file.readers.__wrapped__()

    monkeypatch.setattr(read_file, "readers", lambda: available)

    assert not available.keys() & read_file.OPTIONAL.keys()
    with pytest.raises(InputError, match=r"reading pdf needs pypdfium2: pip install 'concord-annotate\[archives\]'"):
        read_file.reader_for("pdf")
    (archive / "b.txt").unlink()
    with pytest.raises(InputError, match=r"with the extra archives \.pdf"):
        annotate(archive)


def test_records_of_an_archive_are_shared_by_shards(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pages = [warc_page(f"<p>{text}</p>".encode()) for text in ("Anna went on.", "Bob saw the cat.", "Smith.")]
    picture = warc_page(b"picture", media_type="image/png")
    (folder / "a.warc.gz").write_bytes(b"".join(map(gzip.compress, [pages[0], picture, *pages[1:]])))
    message = "From ada@a.org Sat May  8 10:00:00 2021\nSubject: Bridge\n\n{}\n"
    (folder / "b.mbox").write_text("".join(message.format(text) for text in ("Anna went.", "Bob went on.")))

    report = annotate(folder, planning={"shard_bytes": 1})

    assert (report.read, report.annotated, len(OutputFolder(str(report.output)).plan().shards)) == (5, 5, 5)
    texts = [row["raw_text"] for row in rows(report, "documents")]
    assert texts == ["Anna went on.", "Bob saw the cat.", "Smith.", "Anna went.\n", "Bob went on.\n"]
    assert annotate(folder, planning={"shard_bytes": 1}).changes.description == "no changes"


def test_attachments_come_with_the_option_and_go_without_it(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    mail = EmailMessage()
    mail["Subject"] = "Bridge"
    mail.set_content("Smith.")
    mail.add_attachment(pdf(ONE, BROKEN_PAGE, TWO), maintype="application", subtype="pdf", filename="a.pdf")
    mail.add_attachment(b"x", maintype="application", subtype="zip", filename="a.zip")
    (folder / "a.eml").write_bytes(mail.as_bytes())
    (folder / "b.mbox").write_bytes(b"From ada@a.org Sat May  8 10:00:00 2021\n" + mail.as_bytes())
    small = {"shard_bytes": 1}
    assert annotate(folder, planning=small).read == 2

    report = annotate(folder, planning=small, reader={"attachments": True})

    assert (report.read, report.unchanged, report.annotated, report.dead_letters) == (6, 2, 2, 2)
    found = {str(row["doc_id"]): row for row in rows(report, "documents")}
    assert sorted(found) == ["a.eml", "a.eml#1", "b.mbox:0", "b.mbox:0#1"]
    for row in (found["a.eml#1"], found["b.mbox:0#1"]):
        assert row["raw_text"] == "Anna went on.\n\nBob saw the cat."
        assert row["parts"] == [{"kind": "page", "label": "1", "start": 0}, {"kind": "page", "label": "3", "start": 15}]
        fields = orjson.loads(str(row["meta"]))
        assert (fields["file"], fields["message"]) == ("a.pdf", {"subject": "Bridge"})
    errors = sorted((str(row["error"]), row["page"]) for row in rows(report, "errors"))
    assert errors == [*[("unknown_format", None)] * 2, *[("unreadable_page", 2)] * 2]
    assert annotate(folder, planning=small, reader={"attachments": True}).changes.description == "no changes"
    fresh = runs.job(folder, tmp_path / "fresh", max_dead_letters=1, reader={"attachments": True})
    assert sorted(str(row["doc_id"]) for row in rows(runs.run_job(fresh), "documents")) == sorted(found)
    retry = {"shard_bytes": 1, "retry": "read"}
    retried = annotate(folder, planning=retry, reader={"attachments": True})
    assert (retried.dead_letters, retried.annotated) == (2, 0)
    assert annotate(folder, planning=small, reader={"attachments": False}, max_removed=1).read == 2
