"""What changed between two annotations of a collection, where, and how sure: as values, tables and page."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from concord.models.labels import OUTSIDE
from concord.pipeline.errors import PlanError
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import counted
from concord.workflows.diff.document_pairs import DocumentPairs, LetterChanges, ids, pair_documents, pair_letters
from concord.workflows.diff.row_differences import (
    CHANGES,
    LIMITS,
    Differences,
    EntityChange,
    Tally,
    find_differences,
)
from concord.workflows.diff.row_matching import Rows


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


def compare_collections(first: OutputPath, second: OutputPath, *, listed: int) -> Diff:
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
