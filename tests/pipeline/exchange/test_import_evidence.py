"""A correction needs evidence that somebody looked: what a file lacks, or says unclearly, is left as it is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from concord_testing.exports import annotate_texts, write_texts

from concord.pipeline.corrections.correction import log_path
from concord.pipeline.exchange.export import ExportForm, export_collection
from concord.pipeline.exchange.import_corrections import ImportReport, import_corrections

pytestmark = pytest.mark.slow

# Emoji shift the offsets of Label Studio; line breaks make fragments in brat.
TEXTS = {
    "a": "\U0001f600 Anna Smith saw Geneva . and Bob Lee \U0001f600 did not see Paris or\nMarie\nCurie . then Rome .",
    "b": "so Ada knew Karl and Rosa in Soho .",
}
CONLLU_SEAM = "a b c d e f Anna Maria Smith Jones k l m n o p Bob. q. Ada r. Carl s. Dora t. Eve u."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an annotated collection; tests must not modify it."""
    folder = tmp_path_factory.mktemp("collection")
    texts = {**TEXTS, "seam": CONLLU_SEAM}
    annotate_texts(write_texts(folder / "texts.jsonl", texts), folder / "out")
    return folder / "out"


@pytest.fixture
def output(made: Path) -> Path:
    log_path(made).unlink(missing_ok=True)
    return made


def export(output: Path, path: Path, to: ExportForm) -> Path:
    export_collection(output, path, to=to)
    return path


def found(report: ImportReport) -> list[str]:
    return [f"{one.doc_id}: {one.description}" for one in report.corrections]


def refused(report: ImportReport) -> list[str]:
    return [f"{Path(one.where).name}: {one.reason}" for one in report.refused]


def region(start: Any, end: Any, *labels: str, **fields: Any) -> dict[str, Any]:
    return {"type": "labels", "value": {"start": start, "end": end, "labels": list(labels)}} | fields


class LabelStudio:
    """An export as Label Studio's annotators return it: each task with its predictions as annotation."""

    def __init__(self, output: Path, folder: Path) -> None:
        self._output, self._path = output, export(output, folder / "tasks.json", "label-studio")
        self.tasks = {task["data"]["doc_id"]: task for task in json.loads(self._path.read_text())}
        self.results = {doc_id: task["predictions"][0]["result"] for doc_id, task in self.tasks.items()}
        for doc_id, task in self.tasks.items():
            task["annotations"] = [{"result": self.results[doc_id]}]

    def take(self, doc_id: str, surface: str) -> None:
        """Remove a region from the annotation of a task."""
        result = self.results[doc_id]
        result.remove(next(one for one in result if one["value"]["text"] == surface))

    def run(self, **options: Any) -> ImportReport:
        self._path.write_text(json.dumps(list(self.tasks.values())))
        return import_corrections(self._path, self._output, who="ada", **options)


@pytest.fixture
def studio(output: Path, tmp_path: Path) -> LabelStudio:
    return LabelStudio(output, tmp_path)


@pytest.mark.parametrize(
    "state",
    [
        {"annotations": [{"id": 1, "was_cancelled": True, "result": []}], "predictions": [12]},
        {"annotations": [], "predictions": []},
        {"annotations": [], "predictions": [12]},
        {"annotations": None},
        {"annotations": [], "drafts": [{"result": []}]},
        # The entities of a model that serves predictions are no corrections of a person.
        {"annotations": [], "predictions": [{"result": [region(3, 7, "ORG")]}]},
    ],
)
def test_task_that_nobody_annotated_corrects_nothing(studio: LabelStudio, state: dict[str, Any]) -> None:
    studio.tasks["a"] |= state
    report = studio.run(accept_drops=True)
    assert (found(report), refused(report), report.passages, report.not_annotated) == ([], [], 3, 1)
    del studio.tasks["a"]["annotations"], studio.tasks["b"]["predictions"]
    assert studio.run(accept_drops=True).not_annotated == 1


def test_task_of_an_old_label_studio_is_refused_and_the_rest_imported(studio: LabelStudio) -> None:
    studio.tasks["a"]["completions"] = studio.tasks["a"].pop("annotations")
    studio.results["b"][0]["value"]["labels"] = ["LOC"]
    report = studio.run()
    assert found(report) == ["b: Ada: PER to LOC"]
    [reason] = refused(report)
    assert "tasks.json: task 1: " in reason
    assert "completions" in reason


def test_ground_truth_counts_before_later_annotations(studio: LabelStudio) -> None:
    changed = json.loads(json.dumps(studio.results["b"]))
    changed[0]["value"]["labels"] = ["LOC"]
    studio.tasks["b"]["annotations"] = [{"result": changed, "ground_truth": True}, {"result": []}]
    assert found(studio.run()) == ["b: Ada: PER to LOC"]


# Offsets of "Geneva" in UTF-16 code units; the code points are one less.
GENEVA = (18, 24)


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (region(*GENEVA), "region 6: expected one label for 'Geneva', got none"),
        ({"type": "labels", "value": {"start": 18, "end": 24}}, "expected one label for 'Geneva', got none"),
        (region(*GENEVA, "PER", "LOC"), "expected one label for 'Geneva', got ['PER', 'LOC']"),
        (region(*GENEVA, "my type"), "type 'my type': expected an entity type of 1 to 100 characters without white"),
        (region(*GENEVA, "a|b"), "type 'a|b': expected an entity type"),
        (region(20, 24, "PER"), "'neva' does not begin and end with a word"),
        (region(16, 21, "PER"), "does not begin and end with a word"),
        (region(24, 18, "PER"), "expected start and end in UTF-16 code units"),
        (region("18", "24", "PER"), "expected start and end in UTF-16 code units"),
        (region(None, None, "PER"), "expected start and end in UTF-16 code units"),
        (region(*GENEVA, "PER", type="hypertextlabels"), "expected a region of the type 'labels'"),
        ({"type": "labels"}, "expected a region of the type 'labels'"),
        ("nonsense", "expected a region of the type 'labels'"),
        # Offsets of code points, and a region of another text of the task.
        (
            region(17, 23, "PER") | {"value": {**region(17, 23, "PER")["value"], "text": "Geneva"}},
            "its text is 'Geneva'",
        ),
    ],
)
def test_one_odd_region_is_refused_and_what_it_may_mean_is_left(studio: LabelStudio, odd: Any, reason: str) -> None:
    studio.take("a", "Geneva")
    studio.results["a"].append(odd)
    studio.results["a"][0]["value"]["labels"] = ["ORG"]
    studio.results["b"][0]["value"]["labels"] = ["LOC"]
    report = studio.run(accept_drops=True)
    assert found(report) == ["a: Anna Smith: PER to ORG", "b: Ada: PER to LOC"]
    [message] = refused(report)
    assert message.startswith("tasks.json: task 1: region 6: ")
    assert reason in message
    assert "pydantic" not in message


def test_offsets_inside_an_emoji_or_beyond_the_text_are_refused(studio: LabelStudio) -> None:
    studio.take("a", "Anna Smith")
    studio.results["a"].append(region(1, 13, "PER"))
    report = studio.run(accept_drops=True, dry_run=True)
    assert found(report) == []
    assert refused(report) == [
        "tasks.json: task 1: region 6: expected offsets in UTF-16 code units of its text, got 1 to 13"
    ]
    # A region beyond the text keeps nothing from being dropped.
    studio.take("b", "Ada")
    studio.results["b"].append(region(500, 503, "PER"))
    report = studio.run(accept_drops=True)
    assert found(report) == ["b: Ada: no entity"]
    assert len(report.refused) == 2


def test_results_that_mark_no_words_and_a_region_twice_are_ignored(studio: LabelStudio) -> None:
    studio.results["a"] += [
        {"type": "choices", "value": {"choices": ["good"]}},
        {"type": "choices", "value": {"start": 0, "end": 2, "choices": ["good"]}},
        {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"},
        {"type": "textarea", "value": {"text": ["a note"]}},
        studio.results["a"][0],
    ]
    report = studio.run()
    assert (found(report), refused(report)) == ([], [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda task: task["data"].pop("text"), "KeyError: 'text'"),
        (lambda task: task.update(annotations=[7]), "expected data with doc_id and text, and annotations"),
        (lambda task: task.update(annotations=[{"id": 1}]), "KeyError: 'result'"),
        (lambda task: task.update(annotations=[{"result": None}]), "expected data with doc_id"),
        (lambda task: task["data"].update(text="Another text."), "its text is not that of the document"),
    ],
)
def test_one_odd_task_is_refused_and_the_rest_imported(
    studio: LabelStudio, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    change(studio.tasks["a"])
    studio.results["b"][0]["value"]["labels"] = ["LOC"]
    report = studio.run(accept_drops=True)
    assert found(report) == ["b: Ada: PER to LOC"]
    [message] = refused(report)
    assert message.startswith("tasks.json: task 1: ")
    assert reason in message


def test_more_than_a_fifth_of_the_entities_is_dropped_on_request_only(studio: LabelStudio, output: Path) -> None:
    studio.take("a", "Geneva")
    assert found(studio.run(dry_run=True)) == ["a: Geneva: no entity"]
    studio.take("a", "Paris")
    studio.results["a"][0]["value"]["labels"] = ["ORG"]
    studio.results["b"][0]["value"]["labels"] = ["LOC"]
    report = studio.run()
    assert found(report) == ["b: Ada: PER to LOC"]
    assert [one.description for one in report.held_back] == [
        "Anna Smith: PER to ORG", "Geneva: no entity", "Paris: no entity",
    ]  # fmt: skip
    assert refused(report) == ["tasks.json: task 1: 2 of its 6 entities would be dropped; --accept-drops imports that"]
    assert len(studio.run(accept_drops=True).corrections) == 3
    assert studio.run().corrections == []
    assert log_path(output).read_text().count("\n") == 4


def test_document_whose_entities_somebody_removed_is_held_back(studio: LabelStudio) -> None:
    studio.tasks["b"]["annotations"] = [{"result": []}]
    report = studio.run(dry_run=True)
    assert (found(report), len(report.held_back)) == ([], 4)
    assert len(studio.run(accept_drops=True).corrections) == 4


def test_what_a_conllu_file_lacks_is_left(output: Path, tmp_path: Path) -> None:
    path = export(output, tmp_path / "out.conllu", "conllu")
    blocks = path.read_text().split("\n\n")
    for number in range(1, len(blocks)):
        path.write_text("\n\n".join(blocks[:number]) + "\n\n")
        report = import_corrections(path, output, who="ada", accept_drops=True)
        assert found(report) == []
    rows = "\n\n".join(blocks).split("\n")
    for number, row in enumerate(rows):
        if row and not row.startswith("#"):
            path.write_text("\n".join(rows[:number] + rows[number + 1 :]))
            report = import_corrections(path, output, who="ada", accept_drops=True)
            assert found(report) == [], row


def test_conllu_edits_in_a_part_are_imported_and_labels_under_another_key_refused(output: Path, tmp_path: Path) -> None:
    path = export(output, tmp_path / "out.conllu", "conllu")
    text = path.read_text()
    for key in ("ner", "Ner", "name", "entity", "iob"):
        path.write_text(text.replace("NER=", f"{key}="))
        report = import_corrections(path, output, who="ada", accept_drops=True)
        assert found(report) == []
        assert len(report.refused) == text.count("NER=")
        assert refused(report)[0] == f"out.conllu: line 5: expected labels as NER=, got {key}=B-PER"
    path.write_text(text.replace("\tAnna\t", "\tHanna\t", 1))
    report = import_corrections(path, output, who="ada", accept_drops=True)
    assert found(report) == []
    assert "its text is not that of the document" in refused(report)[0]
    path.write_text(text.split("\n\n")[0].replace("-PER", "-ORG") + "\n\n")
    assert found(import_corrections(path, output, who="ada")) == [
        "a: Anna Smith: PER to ORG", "a: Geneva: PER to ORG",
    ]  # fmt: skip


def test_one_odd_conllu_label_or_line_is_refused_and_the_rest_imported(output: Path, tmp_path: Path) -> None:
    path = export(output, tmp_path / "out.conllu", "conllu")
    lines = path.read_text().split("\n")
    [geneva] = [number for number, line in enumerate(lines) if line.split("\t")[1:2] == ["Geneva"]]
    [ada] = [number for number, line in enumerate(lines) if line.startswith("2\tAda\t")]
    lines[ada] = lines[ada].replace("B-PER", "B-LOC")
    for old, new, reason in (
        ("B-PER", "I-PER", "expected O, B- with a type, or I- after the same type, got NER=I-PER"),
        ("B-PER", "PER", "got NER=PER"),
        ("B-PER", "S-PER", "got NER=S-PER"),
        ("B-PER", "", "got NER="),
        ("\t", " ", "expected 10 columns"),
        ("start_char=", "start=", "expected start_char and end_char"),
        ("5\tGeneva", "x\tGeneva", "expected the number of a word"),
        ("5\tGeneva", "5-6\tGeneva", "expected labels at the words of a range, got NER=B-PER"),
    ):
        path.write_text("\n".join([*lines[:geneva], lines[geneva].replace(old, new), *lines[geneva + 1 :]]))
        report = import_corrections(path, output, who="ada", dry_run=True)
        assert found(report) == ["b: Ada: PER to LOC"], old
        [message] = refused(report)
        assert message.startswith(f"out.conllu: line {geneva + 1}: ")
        assert reason in message


def brat(output: Path, folder: Path, annotations: str) -> ImportReport:
    (export(output, folder / "brat", "brat") / "a.ann").write_text(annotations)
    return import_corrections(folder / "brat", output, who="ada", accept_drops=True)


SOUND = (
    "T1\tPER 2 12\tAnna Smith\nT2\tPER 17 23\tGeneva\nT3\tPER 30 37\tBob Lee\n"
    "T4\tPER 52 57\tParis\nT5\tPER 61 66;67 72\tMarie Curie\nT6\tPER 80 84\tRome\n"
)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("30 37\tBob Lee", "30 33;52 57\tBob Paris", "no label can leave out 'Lee \U0001f600 did not see'"),
        ("2 12\tAnna Smith", "2 6;13 16\tAnna saw", "no label can leave out 'Smith' between the fragments 2 6;13 16"),
        ("2 12\tAnna Smith", "7 12;2 6\tSmith Anna", "expected fragments in the order of the text"),
        ("2 12\tAnna Smith", "12 2\tAnna Smith", "expected fragments in the order of the text"),
        ("2 12\tAnna Smith", "2 10\tAnna Smi", "does not begin and end with a word"),
        ("2 12\tAnna Smith", "3 13\tAnna Smith", "its text is 'Anna Smith', but 'nna Smith '"),
        ("2 12\tAnna Smith", "2\tAnna Smith", "expected an entity such as"),
        ("2 12\tAnna Smith", "2 999", "expected offsets of words in its 86 code points"),
    ],
)
def test_one_odd_brat_entity_is_refused_with_its_line(
    output: Path, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    edited = SOUND.replace(old, new).replace("T6\tPER", "T6\tLOC")
    edited = edited.replace("T4\tPER 52 57\tParis\n", "") if "Paris" in new else edited
    report = brat(output, tmp_path, edited)
    assert found(report) == ["a: Rome: PER to LOC"]
    [message] = refused(report)
    assert message.startswith(f"a.ann: line {3 if 'Bob' in old else 1}: ")
    assert reason in message


def test_brat_fragments_and_triggers_of_events_are_understood(output: Path, tmp_path: Path) -> None:
    triggers = "T7\tMeeting 13 16\tsaw\nT8\tLooking 13 16;30 33\tsaw Bob\nT9\tPER 13 16\tsaw\n"
    # An event may stand before its trigger, and have no arguments.
    events = "E1\tMeeting:T7 Who:T1 Whom:T3\nE2\tLooking:T8\n"
    # Fragments with white space between them are one entity.
    sound = SOUND.replace("2 12\tAnna Smith", "2 6;7 12\tAnna Smith")
    report = brat(output, tmp_path, events + sound + triggers)
    assert (found(report), refused(report)) == (["a: saw: added as PER"], [])


@pytest.mark.parametrize("name", ["a.ann", "a.txt"])
def test_brat_document_without_its_files_is_refused_and_the_rest_imported(
    output: Path, tmp_path: Path, name: str
) -> None:
    folder = export(output, tmp_path / "brat", "brat")
    (folder / name).unlink()
    path = folder / "b.ann"
    path.write_text(path.read_text().replace("PER 3 6", "LOC 3 6"))
    report = import_corrections(folder, output, who="ada", accept_drops=True)
    assert found(report) == ["b: Ada: PER to LOC"]
    assert refused(report)[0].startswith("documents.jsonl: line 1: expected its text and its annotations")
