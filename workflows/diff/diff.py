"""What changed between two annotations of a collection, where, and how sure: as values, tables and page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from concord.models.labels import OUTSIDE
from concord.pipeline.errors import PlanError
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.storage.atomic_writes import store_faults, write_over
from concord.pipeline.storage.paths import Place
from concord.workflows.annotation.summary import component
from concord.workflows.console import Answer, counted, indented, printable, table
from concord.workflows.diff.document_pairs import DocumentPairs, LetterChanges, ids, pair_documents, pair_letters
from concord.workflows.diff.row_differences import (
    CHANGES,
    LIMITS,
    Differences,
    EntityChange,
    Shared,
    Tally,
    find_differences,
)
from concord.workflows.diff.row_matching import Rows

SHOWN_NAME = 40
SHOWN_MESSAGE = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """What came out.

    Attributes:
        recipe: what of parser, tagger and configuration is no longer as in A, in plain words.
        listed: how many changes, documents and dead letters are given in full.
    """

    first: Collection
    second: Collection
    recipe: Sequence[str]
    documents: DocumentPairs
    differences: Differences
    letters: LetterChanges
    listed: int

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        alike = len(self.documents.same[0])
        if not alike:
            return "A and B have no document with the same text"
        changes = self.differences.tally(*CHANGES).count
        entities = changes + self.differences.tally("same").count
        if not changes:
            return f"no entity changed in {counted(alike, 'document')} with the same text"
        changed = self.differences.changed_documents
        return (
            f"{changes:,} of {entities:,} entities changed, in {changed:,} of {counted(alike, 'document')} "
            "with the same text"
        )


def run(first: Place, second: Place, *, listed: int, output: Path | None = None) -> Answer:
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

        with store_faults(output):
            write_over(output, render_page(diff).encode("utf-8", "backslashreplace"), staging=output.parent)
        values["report"] = str(output)
    return Answer(values=values, text=_describe(diff))


def compare_collections(first: Place, second: Place, *, listed: int) -> Diff:
    """Compare two annotated collections; errors are those of ``run``, without the page's."""
    one, other = open_collection(first), open_collection(second)
    if one.manifest.schema_version != other.manifest.schema_version:
        raise PlanError(
            f"{first} has version {one.manifest.schema_version} of the schema, {second} version "
            f"{other.manifest.schema_version}: expected the same; annotate the older one again"
        )
    pairs = pair_documents(one, other)
    return Diff(
        first=one,
        second=other,
        recipe=other.plan.recipe.difference(one.plan.recipe),
        documents=pairs,
        differences=find_differences(one, other, pairs, listed=listed),
        letters=pair_letters(one, other, pairs),
        listed=listed,
    )


def evidence(diff: Diff) -> dict[str, Any]:
    """Give what was found as plain values; collections of the same bytes give the same values again."""
    pairs, found, letters = diff.documents, diff.differences, diff.letters
    return {
        "verdict": diff.verdict,
        "first": _identity(diff.first, pairs.first_calibration),
        "second": _identity(diff.second, pairs.second_calibration),
        "recipe": list(diff.recipe),
        "documents": _document_values(diff),
        "sentences": asdict(found.sentences),
        "tokens": {**asdict(found.words), "differing": dict(found.other)},
        "entities": {
            "kinds": {kind: _tally_values(found.tally(kind)) for kind in ("same", *CHANGES)},
            "labels": [
                {"kind": kind, "first": one, "second": other, **_tally_values(tally)}
                for (kind, one, other), tally in found.tallies.items()
            ],
            "sureness": list(found.bars),
            "changed_documents": found.changed_documents,
            "most_changed": [asdict(document) for document in found.documents],
            "changes": [change_values(change) for change in found.changes],
        },
        "dead_letters": {
            "first": letters.first,
            "second": letters.second,
            "same": letters.same,
            "reasons": [
                {"stage": stage, "error": error, "first": counts[0], "second": counts[1]}
                for (stage, error), counts in letters.reasons.items()
            ],
            "gained": len(letters.gained),
            "lost": len(letters.lost),
            "listed": {"gained": letters.gained[: diff.listed], "lost": letters.lost[: diff.listed]},
        },
    }


def change_values(change: EntityChange) -> dict[str, Any]:
    """Give a change as plain values, probabilities to four digits."""
    values = asdict(change)
    for side in (values["first"], values["second"]):
        side["confidence"] = round(side["confidence"], 4)
    return values | {"sureness": round(change.sureness, 4)}


def listed_documents(diff: Diff) -> dict[str, list[Any]]:
    """Give the ids of the first documents that are not the same in both; renamed ones as pairs."""
    pairs = diff.documents

    def some(documents: Any, rows: Rows) -> list[str]:
        found: list[str] = ids(documents, rows[: diff.listed]).to_pylist()
        return found

    return {
        "renamed": [
            list(pair)
            for pair in zip(some(pairs.first, pairs.renamed[0]), some(pairs.second, pairs.renamed[1]), strict=True)
        ],
        "changed": some(pairs.first, pairs.changed[0]),
        "only_first": some(pairs.first, pairs.only_first),
        "only_second": some(pairs.second, pairs.only_second),
    }


def confusions(found: Differences) -> tuple[list[str], list[tuple[str, list[int | None]]]]:
    """Give the labels of both sides, and for each label of A how many entities B gives each label; None of none."""
    counts = found.by_labels
    kinds = [*sorted({label for pair in counts for label in pair} - {OUTSIDE}), OUTSIDE]
    return kinds, [
        (one, [None if one == other == OUTSIDE else counts.get((one, other), 0) for other in kinds]) for one in kinds
    ]


def share(part: int, whole: int) -> str:
    """Write a share in percent; a dash of nothing."""
    return f"{part / whole:.1%}" if whole else "-"


def told_kind(kind: str) -> str:
    """Say what a kind of change is."""
    return {
        "same": "same",
        "relabelled": "other label",
        "moved": "other ends",
        "lost": "only in A",
        "gained": "only in B",
    }[kind]


def told_label(label: str) -> str:
    """Say what a side calls an entity."""
    return "none" if label == OUTSIDE else label


def _identity(collection: Collection, calibration: Sequence[str]) -> dict[str, Any]:
    plan = collection.plan
    return {
        "output": str(collection.output),
        "generation": collection.manifest.generation,
        "schema_version": collection.manifest.schema_version,
        "parser": plan.parser.model_dump(),
        "tagger": plan.tagger.model_dump(),
        "calibration": list(calibration),
    }


def _document_values(diff: Diff) -> dict[str, Any]:
    pairs = diff.documents
    return {
        "first": pairs.first.num_rows,
        "second": pairs.second.num_rows,
        "same_text": len(pairs.same[0]),
        "renamed": len(pairs.renamed[0]),
        "changed": len(pairs.changed[0]),
        "only_first": len(pairs.only_first),
        "only_second": len(pairs.only_second),
        "listed": listed_documents(diff),
    }


def _tally_values(tally: Tally) -> dict[str, Any]:
    means = tally.means
    return {
        "count": tally.count,
        "below": {str(limit): count for limit, count in zip(LIMITS, tally.below, strict=True)},
        "refined": list(tally.refined),
        "mean_confidence": [round(mean, 4) for mean in means] if means else None,
    }


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
        (name, collection.output, component(collection.plan.tagger), component(collection.plan.parser))
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
