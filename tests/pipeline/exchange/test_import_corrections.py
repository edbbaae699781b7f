"""Imports are the inverse of exports: an unchanged file gives nothing, an edited one exactly the edits."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from concord_testing.exports import TEXTS, annotate_texts, entities, write_texts

from concord.pipeline.corrections.correction import Correction, Mark, Seen, append_to_log, log_path, read_log
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.export import ExportForm, export_collection
from concord.pipeline.exchange.import_corrections import ImportReport, import_corrections
from concord.pipeline.exchange.review_queue import Quotas, write_review_queue
from concord.pipeline.output.verify import verify

pytestmark = pytest.mark.slow

NAMES: dict[ExportForm, str] = {"label-studio": "out.json", "brat": "brat", "conllu": "out.conllu.gz"}
FORMS = tuple(NAMES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an annotated collection of difficult documents; tests must not modify it."""
    folder = tmp_path_factory.mktemp("collection")
    annotate_texts(write_texts(folder / "texts.jsonl", TEXTS), folder / "out")
    return folder / "out"


@pytest.fixture
def output(made: Path) -> Path:
    log_path(made).unlink(missing_ok=True)
    return made


def export(output: Path, folder: Path, to: ExportForm, name: str = "") -> Path:
    path = folder / (name or NAMES[to])
    export_collection(output, path, to=to)
    return path


def changes(report: ImportReport) -> list[tuple[str, str, Mark | None, Mark | None]]:
    return [(one.doc_id, one.action, one.old, one.new) for one in report.corrections]


def mark(doc_id: str, surface: str, label: str = "PER") -> Mark:
    start = TEXTS[doc_id].index(surface)
    return Mark(start=start, end=start + len(surface), type=label, text=surface)


EDITS = [
    ("plain", "drop", mark("plain", "Bob"), None),
    ("emoji", "relabel", mark("emoji", "Anna"), mark("emoji", "Anna", "ORG")),
    ("crlf", "relabel", mark("crlf", "Anna\r\nSmith"), mark("crlf", "Smith")),
    ("mwt", "add", None, mark("mwt", "va", "LOC")),
]


def edit_label_studio(path: Path) -> None:
    tasks = {task["data"]["doc_id"]: task for task in json.loads(path.read_text())}
    for task in tasks.values():
        result = list(task["predictions"][0]["result"])
        task["annotations"] = [{"result": []}, {"result": result}, {"result": [], "was_cancelled": True}]
    regions = {doc_id: task["annotations"][1]["result"] for doc_id, task in tasks.items()}
    regions["plain"][:] = [one for one in regions["plain"] if one["value"]["text"] != "Bob"]
    next(one for one in regions["emoji"] if one["value"]["text"] == "Anna")["value"]["labels"] = ["ORG"]
    smith = next(one for one in regions["crlf"] if one["value"]["text"].startswith("Anna"))["value"]
    smith |= {"start": smith["start"] + 5, "text": " Smith"}  # one unit before the word, as a person selects it
    regions["mwt"].append({"type": "labels", "value": {"start": 3, "end": 5, "text": "va", "labels": ["LOC"]}})
    path.write_text(json.dumps(list(tasks.values())))


def edit_brat(folder: Path) -> None:
    def edit(doc_id: str, change: Callable[[str], str]) -> None:
        path = folder / f"{doc_id}.ann"
        path.write_bytes(change(path.read_bytes().decode()).encode())

    edit("plain", lambda text: "".join(line for line in text.splitlines(keepends=True) if "Bob" not in line))
    edit("emoji", lambda text: text.replace("PER 2 6\tAnna", "ORG 2 6\tAnna"))
    edit("crlf", lambda text: text.replace("PER 5 9;11 16\tAnna Smith", "PER 11 16\tSmith"))
    edit("mwt", lambda text: text + "T99\tLOC 3 5\tva\n#99\tAnnotatorNotes T99\tsure\nR1\tx Arg1:T1 Arg2:T99\n")


def edit_conllu(path: Path) -> None:
    lines, doc_id = path.read_text().split("\n"), ""
    for number, line in enumerate(lines):
        doc_id = line.removeprefix("# newdoc id = ") if line.startswith("# newdoc") else doc_id
        form = line.split("\t")[1:2]
        if (doc_id, form) == ("plain", ["Bob"]):
            lines[number] = line.replace("|NER=B-PER", "")
        elif (doc_id, form) == ("emoji", ["Anna"]):
            lines[number] = line.replace("B-PER", "B-ORG")
        elif (doc_id, form) == ("crlf", ["Anna"]):
            lines[number] = line.replace("|NER=B-PER", "")
        elif (doc_id, form) == ("crlf", ["Smith"]):
            lines[number] = line.replace("I-PER", "B-PER")
        elif (doc_id, form) == ("mwt", ["va"]):
            lines[number] = f"{line}|NER=B-LOC"
    path.write_text("\n".join(lines))


EDIT: dict[ExportForm, Callable[[Path], None]] = {
    "label-studio": edit_label_studio,
    "brat": edit_brat,
    "conllu": edit_conllu,
}


def test_collection_has_what_is_edited(output: Path) -> None:
    for doc_id, _, old, _ in EDITS:
        assert old is None or (old.start, old.end, old.type) in entities(output, doc_id)


@pytest.mark.parametrize("form", FORMS)
def test_unchanged_export_gives_no_corrections(output: Path, tmp_path: Path, form: ExportForm) -> None:
    report = import_corrections(export(output, tmp_path, form), output, who="ada")
    assert report.passages > 10
    assert changes(report) == []
    assert report.refused == []
    assert not log_path(output).exists()


@pytest.mark.parametrize("form", FORMS)
def test_edited_export_gives_the_edits_once(output: Path, tmp_path: Path, form: ExportForm) -> None:
    path = export(output, tmp_path, form, name="out.conllu" if form == "conllu" else "")
    EDIT[form](path)
    dry = import_corrections(path, output, who="ada", dry_run=True, accept_drops=True)
    assert not log_path(output).exists()
    report = import_corrections(path, output, who="ada", accept_drops=True)
    assert sorted(changes(report), key=str) == sorted(EDITS, key=str) == sorted(changes(dry), key=str)
    assert report.refused == []
    assert {one.who for one in read_log(log_path(output))} == {"ada"}
    assert changes(import_corrections(path, output, who="bob")) == []
    # An export from before the corrections does not take them back.
    again = export(output, tmp_path, form, name=f"again-{path.name}")
    assert changes(import_corrections(again, output, who="c")) == []
    # What was undone can be imported again.
    append_to_log(log_path(output), [one.undone(who="bob") for one in report.corrections])
    assert len(import_corrections(path, output, who="ada", accept_drops=True).corrections) == len(EDITS)


def test_a_file_takes_back_nothing_of_whom_a_correction_names(output: Path, tmp_path: Path) -> None:
    path = export(output, tmp_path, "label-studio")
    edit_label_studio(path)
    report = import_corrections(path, output, who="ada", accept_drops=True)
    new = mark("mwt", "va", "LOC")
    [added] = (one for one in report.corrections if one.new == new)
    seen = Seen(doc_id="mwt", tagger=added.tagger, generation=0)
    named = new.model_copy(update={"canonical": "Vaasa"})
    append_to_log(log_path(output), [Correction.of(added.new, named, text=TEXTS["mwt"], seen=seen, who="bob")])
    assert changes(import_corrections(path, output, who="ada", accept_drops=True)) == []


def test_export_after_the_next_run_has_the_corrections(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts.jsonl", TEXTS)
    output = tmp_path / "out"
    annotate_texts(source, output)
    path = export(output, tmp_path, "brat")
    edit_brat(path)
    import_corrections(path, output, who="ada", accept_drops=True)
    assert annotate_texts(source, output).changes.corrected == len(EDITS)
    assert not list(verify(output))
    for form in FORMS:
        again = export(output, tmp_path, form, name=f"later-{NAMES[form]}")
        assert changes(import_corrections(again, output, who="ada")) == []
    assert changes(import_corrections(path, output, who="ada")) == []


@pytest.mark.parametrize("form", ["label-studio", "brat"])
def test_review_queue_is_imported_sentence_by_sentence(output: Path, tmp_path: Path, form: ExportForm) -> None:
    path = tmp_path / NAMES[form]
    quotas = Quotas(size=50, per_document=None, per_type=None, seed=1)
    write_review_queue(output, path, to=form, quotas=quotas)  # type: ignore[arg-type]
    assert changes(import_corrections(path, output, who="ada")) == []
    if form == "label-studio":
        tasks = json.loads(path.read_text())
        [task] = [task for task in tasks if task["data"]["doc_id"] == "plain" and "Bob" in task["data"]["text"]]
        assert task["data"]["start_char"] > 0
        task["annotations"] = [{"result": []}]
        path.write_text(json.dumps(tasks))
        assert changes(import_corrections(path, output, who="ada", accept_drops=True)) == EDITS[:1]


def test_what_cannot_be_imported_is_refused_by_name(output: Path, tmp_path: Path) -> None:
    path = export(output, tmp_path, "label-studio")
    tasks = {task["data"]["doc_id"]: task for task in json.loads(path.read_text())}

    def region(start: int, end: int, label: str) -> dict[str, object]:
        return {"type": "labels", "value": {"start": start, "end": end, "labels": [label]}}

    tasks["plain"]["annotations"] = [
        {"result": [region(0, 10, "PER"), region(5, 10, "PER"), region(11, 14, "PER"), region(4, 5, "PER")]}
    ]
    tasks["mwt"]["annotations"] = [{"result": [region(3, 5, "A B"), region(0, 999, "PER")]}]
    tasks["emoji"]["data"]["text"] += "!"
    tasks["emoji"]["annotations"] = tasks["blank"]["annotations"] = [{"result": []}]
    tasks["blank"]["data"]["doc_id"] = "unknown\n"
    path.write_text(json.dumps(list(tasks.values())))
    report = import_corrections(path, output, who="ada")
    reasons = {refused.doc_id: refused.reason for refused in report.refused}
    assert "no document of this id" in reasons["unknown\n"]
    assert "its text is not that of the document" in reasons["emoji"]
    mwt = [refused.reason for refused in report.refused if refused.doc_id == "mwt"]
    assert ["UTF-16" in mwt[0], "expected an entity type" in mwt[1]] == [True, True]
    assert "pydantic" not in mwt[1]
    plain = [refused.reason for refused in report.refused if refused.doc_id == "plain"]
    assert any("overlaps 'Anna Smith'" in reason for reason in plain)
    assert any("does not begin and end with a word" in reason for reason in plain)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("x.json", "nonsense", "expected tasks"),
        ("x.json", "{}", "expected a list of tasks"),
        ("x.json", '[{"data": {"text": "a"}}]', "task 1: expected data with doc_id"),
        ("x.json", '[[], {"data": 1}]', "task 1: expected data"),
        ("x.json", '[{"id": 1, "doc_id": "d", "text": "a", "label": []}]', "task 1: expected data"),
        ("x.conllu", "1\ta\n", "line 1: expected '# newdoc id"),
        ("x.conllu", "# newdoc id = d\n1\ta\n", "line 2: expected 10 columns"),
        ("x.conllu", "# newdoc id = d\n1\ta" + "\t_" * 8 + "\n", "line 2: expected start_char"),
        ("x.conllu", "# newdoc id = d\nx\ta" + "\t_" * 8 + "\n", "line 2: expected the number of a word"),
        ("x.txt", "", "expected a folder of brat"),
    ],
)
def test_files_of_another_form_are_refused_with_their_line(
    output: Path, tmp_path: Path, name: str, content: str, fault: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=fault):
        import_corrections(path, output, who="ada")
    assert not log_path(output).exists()


def test_brat_folders_of_another_form_are_refused(output: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"documents\.jsonl"):
        import_corrections(tmp_path, output, who="ada")
    index = tmp_path / "documents.jsonl"
    for line in ('{"file": "../x", "doc_id": "d"}', '{"doc_id": "d"}', "[]"):
        index.write_text(line)
        with pytest.raises(InputError, match="line 1"):
            import_corrections(tmp_path, output, who="ada")
    with pytest.raises(InputError, match="--as"):
        import_corrections(tmp_path, output, who="\n")
