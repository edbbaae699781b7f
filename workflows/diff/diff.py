"""The comparison of two annotations of a collection."""

from collections.abc import Sequence
from dataclasses import dataclass

from concord.pipeline.errors import PlanError
from concord.pipeline.output.collection import Collection
from concord.workflows.console import counted
from concord.workflows.diff.differences import Differences, find_differences
from concord.workflows.diff.entity_changes import CHANGES
from concord.workflows.diff.records import DeadLetterChanges, DocumentPairs, compare_dead_letters, pair_documents


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


def compare_collections(left: Collection, right: Collection, *, listed: int) -> Diff:
    """Compare two collections, or two generations of one.

    Raises:
        PlanError: when the schema versions differ.
        IntegrityError: when a part cannot be read.
    """
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
