"""The command ``concord diff``: its answer as tables on the console, as JSON and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from concord.models.labels import OUTSIDE
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.output.tables import normalize_name
from concord.pipeline.report.templates import write_page
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.annotation.summary import describe_component
from concord.workflows.console import Answer, indented, plain, printable, table
from concord.workflows.diff.diff import Diff, compare_collections
from concord.workflows.diff.differences import LIMITS, Differences, EntityChange, Shared, Side, Tally
from concord.workflows.diff.entity_changes import CHANGES
from concord.workflows.diff.page import describe_kind, percentage, render_page
from concord.workflows.diff.records import ChangedDeadLetter

SHOWN_NAME = 40
SHOWN_MESSAGE = 120


def diff_collections(first: OutputPath, second: OutputPath, *, listed: int, output: Path | None = None) -> Answer:
    """Compare two annotated collections, A and B, and write the page if ``output`` names one."""
    comparison = compare_collections(open_collection(first), open_collection(second), listed=listed)
    values = _values(comparison)
    if output is not None:
        write_page(output, render_page(comparison), staging=output.parent)
        values["report"] = output
    return Answer(values=values, text=_describe(comparison))


def _values(diff: Diff) -> dict[str, Any]:
    """Return the result as plain values; they depend on nothing but the bytes of the two collections."""
    pairs, differences, dead = diff.documents, diff.differences, diff.dead_letters
    values: dict[str, Any] = plain(
        {
            "verdict": diff.verdict,
            "first": _side_values(diff.first, pairs.first_calibration),
            "second": _side_values(diff.second, pairs.second_calibration),
            "recipe": tuple(diff.recipe),
            "documents": {
                "first": pairs.first.num_rows,
                "second": pairs.second.num_rows,
                "same_text": len(pairs.same[0]),
                "renamed": len(pairs.renamed[0]),
                "changed": len(pairs.changed[0]),
                "only_first": len(pairs.only_first),
                "only_second": len(pairs.only_second),
                "listed": pairs.list_first(diff.listed)._asdict(),
            },
            "sentences": differences.sentences,
            "tokens": {**plain(differences.words), "differing": dict(differences.other)},
            "entities": {
                "kinds": {kind: _tally_values(differences.tally(kind)) for kind in ("same", *CHANGES)},
                "labels": [
                    {"kind": kind, "first": first, "second": second, **_tally_values(tally)}
                    for (kind, first, second), tally in differences.tallies.items()
                ],
                "sureness": differences.bars.tolist(),
                "changed_documents": differences.changed_documents,
                "most_changed": differences.documents,
                "changes": [_change_values(change) for change in differences.changes],
            },
            "dead_letters": {
                "first": dead.first,
                "second": dead.second,
                "same": dead.same,
                "reasons": [
                    {"stage": stage, "error": error, "first": first, "second": second}
                    for (stage, error), (first, second) in dead.reasons.items()
                ],
                "gained": len(dead.gained),
                "lost": len(dead.lost),
                "listed": {
                    "gained": [_dead_letter_values(row, "before") for row in dead.gained[: diff.listed]],
                    "lost": [_dead_letter_values(row, "after") for row in dead.lost[: diff.listed]],
                },
            },
        }
    )
    return values


def _side_values(collection: Collection, calibration: Sequence[str]) -> Mapping[str, Any]:
    return {
        "output": str(collection.output),
        "generation": collection.manifest.generation,
        "schema_version": collection.manifest.schema_version,
        "parser": collection.plan.parser,
        "tagger": collection.plan.tagger,
        "calibration": calibration,
    }


def _tally_values(tally: Tally) -> Mapping[str, Any]:
    return {
        "count": tally.count,
        "below": {str(limit): count for limit, count in zip(LIMITS, tally.below, strict=True)},
        "refined": tally.refined,
        "mean_confidence": [_rounded(mean) for mean in tally.means],
    }


def _change_values(change: EntityChange) -> Mapping[str, Any]:
    first, second = (replace(side, confidence=_rounded(side.confidence)) for side in (change.first, change.second))
    return asdict(replace(change, first=first, second=second, sureness=_rounded(change.sureness)))


def _rounded(value: float | None) -> float | None:
    return value and round(value, 4)


def _dead_letter_values(row: ChangedDeadLetter, counterpart: str) -> Mapping[str, Any]:
    values = asdict(row)
    return values | {counterpart: values.pop("counterpart")}


def _describe(diff: Diff) -> str:
    parts = [
        f"{diff.verdict}.",
        _sides(diff),
        _documents(diff),
        _words(diff.differences),
        _entities(diff.differences),
        _labels(diff.differences),
        _changes(diff.differences.changes),
        _dead_letters(diff),
    ]
    return "\n\n".join(part for part in parts if part)


def _sides(diff: Diff) -> str:
    sides = [
        (name, side.output, describe_component(side.plan.tagger), describe_component(side.plan.parser))
        for name, side in (("A", diff.first), ("B", diff.second))
    ]
    calibrations = diff.documents.first_calibration, diff.documents.second_calibration
    lines = [table(sides, header=("", "output", "tagger", "parser")), *diff.recipe]
    if calibrations[0] != calibrations[1]:
        lines.append("calibration: was {}, is now {}".format(*("; ".join(it) or "none" for it in calibrations)))
    return "\n".join(lines)


def _documents(diff: Diff) -> str:
    pairs, listed = diff.documents, diff.documents.list_first(diff.listed)
    rows = [
        ("same text", len(pairs.same[0]), ""),
        (
            "of them renamed",
            len(pairs.renamed[0]),
            ", ".join(f"{before} -> {after}" for before, after in listed.renamed),
        ),
        ("different text", len(pairs.changed[0]), ", ".join(listed.changed)),
        ("only in A", len(pairs.only_first), ", ".join(listed.only_first)),
        ("only in B", len(pairs.only_second), ", ".join(listed.only_second)),
    ]
    shown = [(name, count, shorten(ids, SHOWN_MESSAGE, placeholder=" ...")) for name, count, ids in rows if count]
    head = f"documents: {pairs.first.num_rows:,} in A, {pairs.second.num_rows:,} in B"
    return f"{head}\n{indented(table(shown))}"


def _words(differences: Differences) -> str:
    if not differences.words.first and not differences.words.second:
        return ""
    rows: list[tuple[object, ...]] = [
        _shared_row("sentences", differences.sentences),
        _shared_row("words", differences.words),
    ]
    lines = [table(rows, header=("", "A", "B", "at the same offsets", "of both"), right=(4,))]
    other = ((name, count) for name, count in differences.other.items() if count)
    differing = [(f"different {name}", count, percentage(count, differences.words.shared)) for name, count in other]
    if differing:
        lines += ["of the words at the same offsets", indented(table(differing, right=(2,)))]
    return "\n".join(lines)


def _shared_row(name: str, shared: Shared) -> tuple[object, ...]:
    both = shared.first + shared.second - shared.shared
    return name, shared.first, shared.second, shared.shared, percentage(shared.shared, both)


def _entities(differences: Differences) -> str:
    rows = []
    for kind in ("same", *CHANGES):
        tally = differences.tally(kind)
        if tally.count:
            shares = [percentage(count, tally.count) for count in (*tally.refined, *tally.below)]
            rows.append((describe_kind(kind), tally.count, *tally.means, *shares))
    if not rows:
        return ""
    header = ("entities", "", "p of A", "p of B", "refined in A", "in B", *(f"below {limit}" for limit in LIMITS))
    note = "below: share whose lower p is below; a side without an entity has the lowest p of its labels of these words"
    return f"{table(rows, header=header, right=range(4, 6 + len(LIMITS)))}\n{note}"


def _labels(differences: Differences) -> str:
    if not differences.tally(*CHANGES).count:
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
            describe_kind(change.kind),
            _describe_side(change.first),
            _describe_side(change.second),
            change.doc_id,
            change.first.sent_id,
            f"{change.first.start_char}-{change.first.end_char}",
        )
        for change in changes
    ]
    header = ("certainty", "", "A", "B", "document", "sentence", "offsets in A")
    return f"most certain changes; * marks labels decided by stage two\n{indented(table(rows, header=header))}"


def _describe_side(side: Side) -> str:
    text = shorten(normalize_name(side.text), SHOWN_NAME, placeholder=" ...")
    confidence = "-" if side.confidence is None else f"{side.confidence:.2f}"
    return f"{_label_name(side.label)} {confidence}{'*' * side.refined} {text}"


def _dead_letters(diff: Diff) -> str:
    dead = diff.dead_letters
    if not dead.first and not dead.second:
        return ""
    lines = [f"dead letters: {dead.first:,} in A, {dead.second:,} in B, {dead.same:,} the same"]
    for sign, rows, verb in (("+", dead.gained, "was"), ("-", dead.lost, "is now")):
        lines += [_dead_letter_line(sign, row, f"{verb} {row.counterpart}") for row in rows[: diff.listed]]
        if len(rows) > diff.listed:
            lines.append(f"  {sign} {len(rows) - diff.listed:,} more")
    return "\n".join(lines)


def _dead_letter_line(sign: str, row: ChangedDeadLetter, counterpart: str) -> str:
    record = row.doc_id or f"{row.source_uri}, at {row.position}"
    message = shorten(row.message, SHOWN_MESSAGE, placeholder=" ...")
    return printable(f"  {sign} {record}: {row.stage}: {row.error} ({counterpart}): {message}")
