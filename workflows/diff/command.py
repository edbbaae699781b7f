"""FIXME-DOC."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.annotation.summary import describe_component
from concord.workflows.console import Answer, indented, printable, table
from concord.workflows.diff.diff import (
    Diff,
    compare_collections,
    confusions,
    evidence,
    listed_documents,
    share,
    told_kind,
    told_label,
)
from concord.workflows.diff.row_differences import (
    CHANGES,
    LIMITS,
    Differences,
    EntityChange,
    Shared,
)

SHOWN_NAME = 40
SHOWN_MESSAGE = 120


def run(first: OutputPath, second: OutputPath, *, listed: int, output: Path | None = None) -> Answer:
    """Compare two annotated collections, and write the page if it has a place. Changes are no failure: exit code 0.

    Args:
        first, second: the folders, A and B.

    Raises:
        PlanError: when a folder holds no finished run, or the two have other versions of the schema.
        IntegrityError: when a manifest or part cannot be read.
        StoreError: when there is no space for the page.
    """
    diff = compare_collections(first, second, listed=listed)
    values = evidence(diff)
    if output is not None:
        from concord.workflows.diff.page import render_page

        with store_errors(output):
            write_atomically(output, render_page(diff).encode("utf-8", "backslashreplace"), staging=output.parent)
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
        _letters(diff),
    ]
    return "\n\n".join(part for part in parts if part)


def _sides(diff: Diff) -> str:
    sides = [
        (
            name,
            collection.output,
            describe_component(collection.plan.tagger),
            describe_component(collection.plan.parser),
        )
        for name, collection in (("A", diff.first), ("B", diff.second))
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
        ("other text", len(pairs.changed[0]), ", ".join(listed["changed"])),
        ("only in A", len(pairs.only_first), ", ".join(listed["only_first"])),
        ("only in B", len(pairs.only_second), ", ".join(listed["only_second"])),
    ]
    shown = [(name, count, shorten(told, SHOWN_MESSAGE, placeholder=" ...")) for name, count, told in rows]
    head = f"documents: {pairs.first.num_rows:,} in A, {pairs.second.num_rows:,} in B"
    return f"{head}\n{indented(table([row for row in shown if row[1]]))}"


def _words(found: Differences) -> str:
    if not found.words.first and not found.words.second:
        return ""
    rows: list[tuple[object, ...]] = [_shared_row("sentences", found.sentences), _shared_row("words", found.words)]
    lines = [table(rows, header=("", "A", "B", "at the same offsets", "of both"), right=(4,))]
    differing = [
        (f"other {name}", count, share(count, found.words.shared)) for name, count in found.other.items() if count
    ]
    if differing:
        lines += ["of the words at the same offsets", indented(table(differing, right=(2,)))]
    return "\n".join(lines)


def _shared_row(name: str, shared: Shared) -> tuple[object, ...]:
    both = shared.first + shared.second - shared.shared
    return name, shared.first, shared.second, shared.shared, share(shared.shared, both)


def _entities(found: Differences) -> str:
    rows = []
    for kind in ("same", *CHANGES):
        tally = found.tally(kind)
        if tally.count and tally.means is not None:
            shares = [share(count, tally.count) for count in (*tally.refined, *tally.below)]
            rows.append((told_kind(kind), tally.count, *tally.means, *shares))
    if not rows:
        return ""
    header = ("entities", "", "p of A", "p of B", "refined in A", "in B", *(f"below {limit}" for limit in LIMITS))
    note = "below: share whose lesser p of the two is; where a side has no entity, p is that of the words' labels"
    return f"{table(rows, header=header, right=range(4, 6 + len(LIMITS)))}\n{note}"


def _labels(found: Differences) -> str:
    if not found.tally(*CHANGES).count:
        return ""
    kinds, rows = confusions(found)
    cells = [(told_label(label), *counts) for label, counts in rows]
    return table(cells, header=("A \\ B", *map(told_label, kinds)), right=range(1, len(kinds) + 1))


def _changes(changes: Sequence[EntityChange]) -> str:
    if not changes:
        return ""
    rows = [
        (
            f"{change.sureness:.3f}",
            told_kind(change.kind),
            _told_side(change, "first"),
            _told_side(change, "second"),
            change.doc_id,
            change.first.sent_id,
            f"{change.first.start_char}-{change.first.end_char}",
        )
        for change in changes
    ]
    header = ("sure", "", "A", "B", "document", "sentence", "offsets in A")
    return f"the surest changes; * is decided by stage two\n{indented(table(rows, header=header))}"


def _told_side(change: EntityChange, name: str) -> str:
    side = getattr(change, name)
    told = shorten(" ".join(side.text.split()), SHOWN_NAME, placeholder=" ...")
    return f"{told_label(side.label)} {side.confidence:.2f}{'*' * side.refined} {told}"


def _letters(diff: Diff) -> str:
    letters = diff.letters
    if not letters.first and not letters.second:
        return ""
    lines = [f"dead letters: {letters.first:,} in A, {letters.second:,} in B, {letters.same:,} the same"]
    for sign, changed, when, told in (("+", letters.gained, "before", "was"), ("-", letters.lost, "after", "is now")):
        lines += [_letter_line(sign, letter, f"{told} {letter[when]}") for letter in changed[: diff.listed]]
        if len(changed) > diff.listed:
            lines.append(f"  {sign} {len(changed) - diff.listed:,} more")
    return "\n".join(lines)


def _letter_line(sign: str, letter: Mapping[str, Any], fate: str) -> str:
    place = letter["doc_id"] or f"{letter['source_uri']}, at {letter['position']}"
    message = shorten(letter["message"], SHOWN_MESSAGE, placeholder=" ...")
    return printable(f"  {sign} {place}: {letter['stage']}: {letter['error']} ({fate}): {message}")
