"""The comparison of two tables: existing documents, and the records of the input."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from concord.pipeline.documents import Document
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.plan import Plan, RenamedDocument, Source
from concord.pipeline.planning.input_diff import (
    ExistingDeadLetter,
    ExistingDocument,
    ExistingOutput,
    ExistingShard,
    InputDiff,
    InputRecord,
    describe,
    diff_input,
    fingerprint,
)
from concord.pipeline.planning.inputs import InputFile
from concord.pipeline.readers.records import ScannedRecord
from concord.pipeline.storage.files import FileState

OLD, NEW = (
    ExistingShard(
        report=CommitRecord(shard=shard, generation=0, read=0, annotated=0, unchanged=0, dead_letters=0),
        plan=Plan.model_construct(),
        is_current=shard == 1,
    )
    for shard in (0, 1)
)
FILES = {
    name: InputFile(path=f"/in/{name}", name=name, format="jsonl", state=FileState(0, None)) for name in ("a", "b")
}


def existing_output(
    documents: Mapping[str, tuple[str, str]],
    *,
    dead_letters: Sequence[ExistingDeadLetter] = (),
    outdated: Sequence[str] = (),
) -> ExistingOutput:
    """Return an output with documents by id, each with its file and text; ``outdated`` ones are in another shard."""
    rows = {
        doc_id: ExistingDocument(
            OLD if doc_id in outdated else NEW,
            fingerprint(text),
            f"/in/{file}",
            described=describe(None, None),
            is_current=doc_id not in outdated,
        )
        for doc_id, (file, text) in documents.items()
    }
    records = [*(row.source_uri for row in rows.values()), *(letter.source_uri for letter in dead_letters)]
    return ExistingOutput(
        shards=[OLD, NEW],
        documents=rows,
        dead_letters=dead_letters,
        files={
            uri: Source(uri=uri, format="jsonl", sha256="0" * 64, records=records.count(uri)) for uri in set(records)
        },
        complete=set(records),
    )


def records(name: str, *documents: tuple[str | None, str | None]) -> list[InputRecord]:
    """Return the records of a file from ids and texts; a record without a text cannot be read."""
    return [
        InputRecord(
            FILES[name],
            number,
            ScannedRecord(position=10 * number, end=10 * number + 10, size=10, doc_id=doc_id),
            doc_id,
            None if text is None else fingerprint(text),
        )
        for number, (doc_id, text) in enumerate(documents)
    ]


def reasons(diff: InputDiff) -> dict[str | None, str]:
    return {item.doc_id: item.reason for item in diff.to_annotate}


def dead_letter(position: int, doc_id: str | None, **attributes: Any) -> ExistingDeadLetter:
    return ExistingDeadLetter(NEW, doc_id, "/in/a", position, **({"stays": True} | attributes))


def test_records_are_new_changed_unchanged_or_due_again() -> None:
    existing = existing_output(
        {"same": ("a", "One."), "changed": ("a", "Two."), "again": ("a", "Three."), "gone": ("a", "Four.")},
        outdated=["again"],
    )
    found = records("a", ("same", "One."), ("changed", "2."), ("again", "Three."), ("new", "Five."), (None, None))
    diff = diff_input(existing, found, reused_files=())
    assert reasons(diff) == {"changed": "changed", "again": "again", "new": "new", None: "new"}
    assert [item.parse for item in diff.to_annotate] == [None, OLD.ref, None, None]
    assert (diff.reused, diff.removed, diff.renamed) == ({"same"}, {"gone"}, {})


def test_document_with_the_text_of_a_missing_one_is_renamed() -> None:
    existing = existing_output({"was": ("a", "One."), "moved": ("a", "Two.")})
    diff = diff_input(existing, records("b", ("moved", "Two."), ("is", "One."), ("copy", "One.")), reused_files=())
    assert reasons(diff) == {"copy": "new"}
    assert diff.renamed == {
        NEW: [
            RenamedDocument(was="moved", now=Document(doc_id="moved", text="", source_uri="/in/b", source_position=0)),
            RenamedDocument(was="was", now=Document(doc_id="is", text="", source_uri="/in/b", source_position=10)),
        ]
    }
    assert (diff.reused, diff.removed) == ({"was", "moved"}, set())


def test_document_is_renamed_to_the_copy_that_has_its_corrections() -> None:
    existing = existing_output({"one": ("a", "Same."), "two": ("a", "Same.")})
    corrected = {"one": existing.documents["one"]._replace(corrections="digest")}
    existing = replace(existing, documents={**existing.documents, **corrected}, corrections={"one": "digest"})
    diff = diff_input(existing, records("b", ("is", "Same.")), reused_files=())
    assert reasons(diff) == {}
    assert [document.was for document in diff.renamed[NEW]] == ["two"]


def test_id_belongs_to_the_file_that_is_reused_then_to_the_first_record() -> None:
    existing = existing_output({"x": ("b", "One.")})
    diff = diff_input(existing, records("a", ("x", "Two."), ("y", "Three."), ("y", "Four.")), reused_files={"/in/b"})
    assert [(item.doc_id, item.is_duplicate) for item in diff.to_annotate] == [
        ("x", True),
        ("y", False),
        ("y", True),
    ]
    assert (diff.reused, diff.removed) == ({"x"}, set())


def test_dead_letters_of_an_unchanged_file_stay_unless_they_are_chosen_or_their_id_is_free() -> None:
    chosen = dead_letter(0, "x", stays=False, attempts=2)
    letters = [chosen, dead_letter(10, "y"), dead_letter(20, "z", lacks_id=True), dead_letter(30, "w", lacks_id=True)]
    existing = existing_output({"z": ("a", "Three.")}, dead_letters=letters)
    found = records("b", ("y", "Zero.")) + records("a", ("x", "One."), ("y", "Two."), ("z", "Four."), ("w", "Free."))
    diff = diff_input(existing, [*found, *records("b", ("z", "Three."))], reused_files=(), unchanged_files={"/in/a"})
    assert [(item.doc_id, item.reason, item.is_duplicate, item.attempts) for item in diff.to_annotate] == [
        ("y", "new", True, 0),
        ("x", "retried", False, 2),
        ("z", "changed", False, 0),
        ("w", "retried", False, 0),
        ("z", "new", True, 0),
    ]
    assert diff.kept == {("/in/a", 10)}


def test_dead_letter_of_a_changed_file_goes_by_id() -> None:
    letters = [dead_letter(0, "x", stays=False, attempts=2), dead_letter(10, "y"), dead_letter(20, None)]
    found = records("a", ("new", "One."), ("y", "Two."), ("x", "Three."), (None, None), (None, None))
    diff = diff_input(existing_output({}, dead_letters=letters), found, reused_files=())
    assert [(item.doc_id, item.reason, item.attempts) for item in diff.to_annotate] == [
        ("new", "new", 0),
        ("y", "retried", 0),
        ("x", "retried", 2),
        (None, "retried", 0),
        (None, "new", 0),
    ]
    assert not diff.kept


def test_file_is_reusable_when_all_its_records_are_held_by_current_shards() -> None:
    documents = {"x": ("a", "One."), "y": ("b", "Two.")}
    digests = {"/in/a": "0" * 64, "/in/b": "0" * 64}
    existing = existing_output(documents)
    assert existing.reusable_files(existing.unchanged_files(digests)) == {"/in/a", "/in/b"}
    assert existing.reusable_files(existing.unchanged_files(digests | {"/in/b": "1" * 64})) == {"/in/a"}
    assert replace(existing, complete={"/in/a"}).reusable_files(existing.unchanged_files(digests)) == {"/in/a"}
    outdated = existing_output(documents, outdated=["x"])
    assert outdated.reusable_files(outdated.unchanged_files(digests)) == {"/in/b"}
