"""The command ``concord diff``: its answer as tables on the console, as JSON and as a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from concord.models.labels.spans import OUTSIDE
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.output.tables import normalize_name
from concord.pipeline.report.templates import write_page
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.annotation.summary import describe_component
from concord.workflows.console import Answer, indented, plain, printable, table
from concord.workflows.diff.diff import LIMITS, Diff, Differences, EntityChange, Side, compare_collections
from concord.workflows.diff.page import DOCUMENTS, KINDS, percentage, render_page
from concord.workflows.diff.records import DeadLetters

SHOWN_NAME = 40
SHOWN_MESSAGE = 120


def diff_collections(first: OutputPath, second: OutputPath, *, listed: int, output: Path | None = None) -> Answer:
    """Compare two annotated collections, A and B, and write the page if ``output`` names one."""
    diff = compare_collections(open_collection(first), open_collection(second), listed=listed)
    values = _rounded(plain(_values(diff)))
    if output is not None:
        write_page(output, render_page(diff), staging=output.parent)
        values["report"] = output
    return Answer(values=values, text=_describe(diff))


def _values(diff: Diff) -> Mapping[str, Any]:
    """Return the values of the answer, which depend on nothing but the bytes of the two collections."""
    differences = diff.differences
    return {
        "verdict": diff.verdict,
        "first": _side_values(diff.first, diff.calibrations[0]),
        "second": _side_values(diff.second, diff.calibrations[1]),
        "recipe": diff.recipe,
        "documents": diff.documents._asdict(),
        "sentences": differences.sentences,
        "tokens": {**plain(differences.words), "differing": differences.differing},
        "entities": {
            "kinds": differences.kinds,
            "labels": [
                {"kind": kind, "first": first, "second": second, **plain(tally)}
                for (kind, first, second), tally in differences.labels.items()
            ],
            "sureness": differences.bars.tolist(),
            "changed_documents": differences.changed_documents,
            "most_changed": differences.most_changed,
            "changes": differences.changes,
        },
        "dead_letters": diff.dead_letters._asdict(),
    }


def _side_values(collection: Collection, calibration: Sequence[str]) -> Mapping[str, Any]:
    return {
        "output": collection.output,
        "generation": collection.manifest.generation,
        "schema_version": collection.manifest.schema_version,
        "parser": collection.plan.parser,
        "tagger": collection.plan.tagger,
        "calibration": calibration,
    }


def _rounded(value: Any) -> Any:
    """Return plain values with all probabilities rounded."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return round(value, 4) if isinstance(value, float) else value


def _describe(diff: Diff) -> str:
    parts = [
        f"{diff.verdict}.",
        _sides(diff),
        _documents(diff),
        _words(diff.differences),
        _entities(diff.differences),
        _labels(diff.differences),
        _changes(diff.differences.changes),
        _dead_letters(diff.dead_letters),
    ]
    return "\n\n".join(part for part in parts if part)


def _sides(diff: Diff) -> str:
    sides = [
        (name, side.output, describe_component(side.plan.tagger), describe_component(side.plan.parser))
        for name, side in (("A", diff.first), ("B", diff.second))
    ]
    lines = [table(sides, header=("", "output", "tagger", "parser")), *diff.recipe]
    if diff.calibrations[0] != diff.calibrations[1]:
        lines.append("calibration: was {}, is now {}".format(*("; ".join(it) or "none" for it in diff.calibrations)))
    return "\n".join(lines)


def _documents(diff: Diff) -> str:
    documents = diff.documents._asdict()
    listed = documents["listed"] | {"renamed": [" -> ".join(names) for names in documents["listed"]["renamed"]]}
    rows = [
        (name, documents[kind], shorten(", ".join(listed.get(kind, ())), SHOWN_MESSAGE, placeholder=" ..."))
        for kind, name in DOCUMENTS.items()
        if documents[kind]
    ]
    return f"documents: {documents['first']:,} in A, {documents['second']:,} in B\n{indented(table(rows))}"


def _words(differences: Differences) -> str:
    words = differences.words
    if not words.first and not words.second:
        return ""
    rows = [
        (name, it.first, it.second, it.shared, percentage(it.shared, it.first + it.second - it.shared))
        for name, it in (("sentences", differences.sentences), ("words", words))
    ]
    lines = [table(rows, header=("", "A", "B", "at the same offsets", "of both"), right=(4,))]
    differing = [
        (f"different {name}", count, percentage(count, words.shared))
        for name, count in differences.differing.items()
        if count
    ]
    if differing:
        lines += ["of the words at the same offsets", indented(table(differing, right=(2,)))]
    return "\n".join(lines)


def _entities(differences: Differences) -> str:
    rows = [
        (
            *(KINDS[kind], tally.count, *tally.mean_confidence),
            *(percentage(count, tally.count) for count in (*tally.refined, *tally.below.values())),
        )
        for kind, tally in differences.kinds.items()
        if tally.count
    ]
    if not rows:
        return ""
    header = ("entities", "", "p of A", "p of B", "refined in A", "in B", *(f"below {limit}" for limit in LIMITS))
    note = "below: share whose lower p is below; a side without an entity has the lowest p of its labels of these words"
    return f"{table(rows, header=header, right=range(4, 6 + len(LIMITS)))}\n{note}"


def _labels(differences: Differences) -> str:
    if not differences.changed:
        return ""
    labels, rows = differences.confusion_matrix()
    cells = [(_label_name(label), *counts) for label, counts in rows]
    return table(cells, header=("A \\ B", *map(_label_name, labels)), right=range(1, len(labels) + 1))


def _label_name(label: str) -> str:
    return "none" if label == OUTSIDE else label


def _changes(changes: Sequence[EntityChange]) -> str:
    if not changes:
        return ""
    rows = [
        (
            "-" if change.sureness is None else f"{change.sureness:.3f}",
            *(KINDS[change.kind], _describe_side(change.first), _describe_side(change.second)),
            *(change.doc_id, change.first.sent_id, f"{change.first.start_char}-{change.first.end_char}"),
        )
        for change in changes
    ]
    header = ("certainty", "", "A", "B", "document", "sentence", "offsets in A")
    return f"most certain changes; * marks labels decided by stage two\n{indented(table(rows, header=header))}"


def _describe_side(side: Side) -> str:
    text = shorten(normalize_name(side.text), SHOWN_NAME, placeholder=" ...")
    confidence = "-" if side.confidence is None else f"{side.confidence:.2f}"
    return f"{_label_name(side.label)} {confidence}{'*' * side.refined} {text}"


def _dead_letters(dead: DeadLetters) -> str:
    if not dead.first and not dead.second:
        return ""
    lines = [f"dead letters: {dead.first:,} in A, {dead.second:,} in B, {dead.same:,} the same"]
    for sign, kind, count in (("+", "gained", dead.gained), ("-", "lost", dead.lost)):
        rows = dead.listed[kind]
        lines += [f"  {sign} {_describe_dead_letter(row)}" for row in rows]
        if count > len(rows):
            lines.append(f"  {sign} {count - len(rows):,} more")
    return "\n".join(lines)


def _describe_dead_letter(row: Mapping[str, Any]) -> str:
    record = row["doc_id"] or f"{row['source_uri']}, at {row['position']}"
    counterpart = f"was {row['before']}" if "before" in row else f"is now {row['after']}"
    message = shorten(row["message"], SHOWN_MESSAGE, placeholder=" ...")
    return printable(f"{record}: {row['stage']}: {row['error']} ({counterpart}): {message}")
