"""The command ``concord diff``: its answer as tables on the console, as JSON and as a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from concord.models.labels import OUTSIDE
from concord.pipeline.output.tables import normalize_name
from concord.pipeline.report.templates import write_page
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.annotation.summary import describe_component
from concord.workflows.console import Answer, indented, printable, table
from concord.workflows.diff.diff import Diff, compare_collections, confusion_matrix, listed_documents, to_json
from concord.workflows.diff.differences import LIMITS, Differences, EntityChange, Shared, Side
from concord.workflows.diff.entity_changes import CHANGES
from concord.workflows.diff.page import describe_kind, percentage, render_page

SHOWN_NAME = 40
SHOWN_MESSAGE = 120


def run(first: OutputPath, second: OutputPath, *, listed: int, output: Path | None = None) -> Answer:
    """Compare two annotated collections, A and B, and write the page if ``output`` names one."""
    diff = compare_collections(first, second, listed=listed)
    values = to_json(diff)
    if output is not None:
        write_page(output, render_page(diff), staging=output.parent)
        values["report"] = str(output)
    return Answer(values=values, text=_describe(diff))


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
    pairs, listed = diff.documents, listed_documents(diff)
    rows = [
        ("same text", len(pairs.same[0]), ""),
        ("of them renamed", len(pairs.renamed[0]), ", ".join(f"{was} -> {now}" for was, now in listed["renamed"])),
        ("different text", len(pairs.changed[0]), ", ".join(listed["changed"])),
        ("only in A", len(pairs.only_first), ", ".join(listed["only_first"])),
        ("only in B", len(pairs.only_second), ", ".join(listed["only_second"])),
    ]
    shown = [(name, count, shorten(ids, SHOWN_MESSAGE, placeholder=" ...")) for name, count, ids in rows if count]
    head = f"documents: {pairs.first.num_rows:,} in A, {pairs.second.num_rows:,} in B"
    return f"{head}\n{indented(table(shown))}"


def _words(found: Differences) -> str:
    if not found.words.first and not found.words.second:
        return ""
    rows: list[tuple[object, ...]] = [_shared_row("sentences", found.sentences), _shared_row("words", found.words)]
    lines = [table(rows, header=("", "A", "B", "at the same offsets", "of both"), right=(4,))]
    other = ((name, count) for name, count in found.other.items() if count)
    differing = [(f"different {name}", count, percentage(count, found.words.shared)) for name, count in other]
    if differing:
        lines += ["of the words at the same offsets", indented(table(differing, right=(2,)))]
    return "\n".join(lines)


def _shared_row(name: str, shared: Shared) -> tuple[object, ...]:
    both = shared.first + shared.second - shared.shared
    return name, shared.first, shared.second, shared.shared, percentage(shared.shared, both)


def _entities(found: Differences) -> str:
    rows = []
    for kind in ("same", *CHANGES):
        tally = found.tally(kind)
        if tally.count and tally.means is not None:
            shares = [percentage(count, tally.count) for count in (*tally.refined, *tally.below)]
            rows.append((describe_kind(kind), tally.count, *tally.means, *shares))
    if not rows:
        return ""
    header = ("entities", "", "p of A", "p of B", "refined in A", "in B", *(f"below {limit}" for limit in LIMITS))
    note = "below: share whose lower p is below; a side without an entity has the lowest p of its labels of these words"
    return f"{table(rows, header=header, right=range(4, 6 + len(LIMITS)))}\n{note}"


def _labels(found: Differences) -> str:
    if not found.tally(*CHANGES).count:
        return ""
    labels, rows = confusion_matrix(found)
    cells = [(_label_name(label), *counts) for label, counts in rows]
    return table(cells, header=("A \\ B", *map(_label_name, labels)), right=range(1, len(labels) + 1))


def _label_name(label: str) -> str:
    return "none" if label == OUTSIDE else label


def _changes(changes: Sequence[EntityChange]) -> str:
    if not changes:
        return ""
    rows = [
        (
            f"{change.sureness:.3f}",
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
    return f"{_label_name(side.label)} {side.confidence:.2f}{'*' * side.refined} {text}"


def _dead_letters(diff: Diff) -> str:
    dead = diff.dead_letters
    if not dead.first and not dead.second:
        return ""
    lines = [f"dead letters: {dead.first:,} in A, {dead.second:,} in B, {dead.same:,} the same"]
    for sign, rows, when, verb in (("+", dead.gained, "before", "was"), ("-", dead.lost, "after", "is now")):
        lines += [_dead_letter_line(sign, row, f"{verb} {row[when]}") for row in rows[: diff.listed]]
        if len(rows) > diff.listed:
            lines.append(f"  {sign} {len(rows) - diff.listed:,} more")
    return "\n".join(lines)


def _dead_letter_line(sign: str, row: Mapping[str, Any], counterpart: str) -> str:
    record = row["doc_id"] or f"{row['source_uri']}, at {row['position']}"
    message = shorten(row["message"], SHOWN_MESSAGE, placeholder=" ...")
    return printable(f"  {sign} {record}: {row['stage']}: {row['error']} ({counterpart}): {message}")
