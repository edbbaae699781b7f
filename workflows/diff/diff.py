"""The comparison of two annotations of a collection, and its result as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from concord.models.labels import OUTSIDE
from concord.pipeline.errors import PlanError
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import counted
from concord.workflows.diff.dead_letter_changes import DeadLetterChanges, compare_dead_letters
from concord.workflows.diff.differences import LIMITS, Differences, EntityChange, Tally, find_differences
from concord.workflows.diff.document_pairs import DocumentPairs, ids, pair_documents
from concord.workflows.diff.entity_changes import CHANGES
from concord.workflows.diff.row_matching import Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """The differences between two annotated collections, A and B.

    Attributes:
        recipe: the differences between the parsers, taggers and settings, one a line.
        listed: how many changes, documents and dead letters are listed in full.
    """

    first: Collection
    second: Collection
    recipe: Sequence[str]
    documents: DocumentPairs
    differences: Differences
    dead_letters: DeadLetterChanges
    listed: int

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        same_text = len(self.documents.same[0])
        if not same_text:
            return "A and B have no document with the same text"
        changes = self.differences.tally(*CHANGES).count
        entities = changes + self.differences.tally("same").count
        if not changes:
            return f"no entity changed in {counted(same_text, 'document')} with the same text"
        changed = self.differences.changed_documents
        return (
            f"{changes:,} of {entities:,} entities changed, in {changed:,} of {counted(same_text, 'document')} "
            "with the same text"
        )


def compare_collections(first: OutputPath, second: OutputPath, *, listed: int) -> Diff:
    """Compare two annotated collections.

    Raises:
        PlanError: when a folder holds no finished run, or the schema versions differ.
        IntegrityError: when a manifest or part cannot be read.
    """
    return compare_opened(open_collection(first), open_collection(second), listed=listed)


def compare_opened(left: Collection, right: Collection, *, listed: int) -> Diff:
    """Compare two collections, or two generations of one; raises what ``compare_collections`` raises."""
    if left.manifest.schema_version != right.manifest.schema_version:
        raise PlanError(
            f"{left.output} has version {left.manifest.schema_version} of the schema, {right.output} version "
            f"{right.manifest.schema_version}: expected the same; annotate one of them again"
        )
    pairs = pair_documents(left, right)
    return Diff(
        first=left,
        second=right,
        recipe=right.plan.recipe.difference(left.plan.recipe),
        documents=pairs,
        differences=find_differences(left, right, pairs, listed=listed),
        dead_letters=compare_dead_letters(left, right, pairs),
        listed=listed,
    )


def to_json(diff: Diff) -> dict[str, Any]:
    """Return the result as plain values; they depend on nothing but the bytes of the two collections."""
    pairs, found, dead = diff.documents, diff.differences, diff.dead_letters
    return {
        "verdict": diff.verdict,
        "first": _identity(diff.first, pairs.first_calibration),
        "second": _identity(diff.second, pairs.second_calibration),
        "recipe": list(diff.recipe),
        "documents": {
            "first": pairs.first.num_rows,
            "second": pairs.second.num_rows,
            "same_text": len(pairs.same[0]),
            "renamed": len(pairs.renamed[0]),
            "changed": len(pairs.changed[0]),
            "only_first": len(pairs.only_first),
            "only_second": len(pairs.only_second),
            "listed": listed_documents(diff),
        },
        "sentences": asdict(found.sentences),
        "tokens": {**asdict(found.words), "differing": dict(found.other)},
        "entities": {
            "kinds": {kind: _tally_values(found.tally(kind)) for kind in ("same", *CHANGES)},
            "labels": [
                {"kind": kind, "first": first, "second": second, **_tally_values(tally)}
                for (kind, first, second), tally in found.tallies.items()
            ],
            "sureness": found.bars.tolist(),
            "changed_documents": found.changed_documents,
            "most_changed": [asdict(document) for document in found.documents],
            "changes": [_change_values(change) for change in found.changes],
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
            "listed": {"gained": dead.gained[: diff.listed], "lost": dead.lost[: diff.listed]},
        },
    }


def listed_documents(diff: Diff) -> dict[str, list[Any]]:
    """Return the ids of the first documents that are not the same in both; renamed ones as pairs."""
    pairs = diff.documents

    def some(documents: Any, rows: Rows) -> list[str]:
        found: list[str] = ids(documents, rows[: diff.listed]).to_pylist()
        return found

    before, after = some(pairs.first, pairs.renamed[0]), some(pairs.second, pairs.renamed[1])
    return {
        "renamed": [list(pair) for pair in zip(before, after, strict=True)],
        "changed": some(pairs.first, pairs.changed[0]),
        "only_first": some(pairs.first, pairs.only_first),
        "only_second": some(pairs.second, pairs.only_second),
    }


def confusion_matrix(found: Differences) -> tuple[list[str], list[tuple[str, list[int | None]]]]:
    """Return the labels of both sides, and for each label of A the number of entities by label of B.

    ``O``, which comes last, means no entity; its own cell is None.
    """
    counts = found.by_labels
    labels = [*sorted({label for pair in counts for label in pair} - {OUTSIDE}), OUTSIDE]
    return labels, [
        (first, [None if first == second == OUTSIDE else counts.get((first, second), 0) for second in labels])
        for first in labels
    ]


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


def _tally_values(tally: Tally) -> dict[str, Any]:
    means = tally.means
    return {
        "count": tally.count,
        "below": {str(limit): count for limit, count in zip(LIMITS, tally.below, strict=True)},
        "refined": list(tally.refined),
        "mean_confidence": [round(mean, 4) for mean in means] if means else None,
    }


def _change_values(change: EntityChange) -> dict[str, Any]:
    values = asdict(change)
    for side in (values["first"], values["second"]):
        side["confidence"] = round(side["confidence"], 4)
    return values | {"sureness": round(change.sureness, 4)}
