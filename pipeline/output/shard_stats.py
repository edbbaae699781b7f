"""Counts: of a shard, in its commit record, and of a collection.

They are whole numbers and no times, so that equal plans have equal counts.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from concord.models.data.outputs import Prediction
from concord.models.evaluation.metrics import count_unlabelled, name_labels
from concord.pipeline.documents import AnnotatedDocument
from concord.pipeline.names.values import VALUES
from concord.pipeline.output.manifest import CommitRecord, Manifest
from concord.pipeline.output.schema import ERRORS
from concord.pipeline.output.tables import without_candidates, without_lost_pages

GUESSED_ENCODINGS = "guessed_encodings"
"""Counts the documents whose bytes were not UTF-8 and whose encoding was guessed."""
OF_TYPE = "entities."
"""Begins the counts of entities, by type."""
SCORED, CONFIDENCE = "scored_entities", "confidence_millionths"
"""Count the entities that have a confidence, and add up their confidences."""
REPLACED = "replaced"
"""Counts the characters that stand for invalid bytes."""
EXTRACTED = "extracted_texts"
"""Counts the documents whose text was extracted, and is stored whatever ``output.keep_text`` says."""
LOST_PAGES = "lost_pages"
"""Counts the pages, chapters and the like that could not be read of documents that were annotated."""
META_NULLS = "meta_nulls."
"""Begins the counts of values that are null in ``meta`` because they could not be stored, by field."""
ALWAYS_COUNTED = {
    "documents": "annotated documents",
    "sentences": "sentences; each piece of an over-long one counts",
    "tokens": "words",
    "entities": "entities; also `entities.<type>`",
    "uncertain_tokens": "words whose uncertainty is above the threshold of stage two",
    "refined_tokens": "words that stage two labelled, and no person since",
    "changed_tokens": "refined words whose label differs from that of stage one",
    "refined_sentences": "sentences with a refined word",
    "repeated_names": "occurrences of names of two or more words (no dates or amounts) that recur in their document",
    "unlabelled_names": "repeated names without a label where the document labels others of the same words",
    "near_ties": "words within 0.00001 of another label or of the threshold; not counted in copied documents",
}
"""The counts of a shard and of a collection that are there even if they are 0, with their meaning."""
NEAR_TIE = 1e-5
"""Words this close to another label or to the threshold may differ with other batch sizes or processors."""


def count_rows(tables: Mapping[str, pa.Table], *, threshold: float | None) -> dict[str, int]:
    """Count the content of a shard's tables.

    Args:
        threshold: nats above which stage two decides; None for a tagger with one stage.

    Returns:
        Name to number: those of ``ALWAYS_COUNTED``, but for near_ties; ``entities.<type>``; ``scored_entities``;
        ``confidence_millionths``; ``candidates``; ``guessed_encodings``; ``replaced``; ``extracted_texts``;
        ``lost_pages``; ``meta_nulls.<field>``; ``dead_letters.<stage>.<error>``.
    """
    documents, tokens, entities = tables["documents"], tables["tokens"], without_candidates(tables["entities"])
    errors = tables.get("errors", ERRORS.empty_table())
    dead_letters = without_lost_pages(errors)
    refined = tokens.filter(tokens["refined"])
    counts = {
        "documents": documents.num_rows,
        "sentences": tables["sentences"].num_rows,
        "tokens": tokens.num_rows,
        "entities": entities.num_rows,
        "uncertain_tokens": 0 if threshold is None else _sum(pc.greater(tokens["uncertainty"], threshold)),
        "refined_tokens": refined.num_rows,
        "changed_tokens": _sum(is_changed(tokens)),
        "refined_sentences": refined.group_by(["doc_id", "sent_id"]).aggregate([]).num_rows,
        **_count_repeated_names(tokens),
    }
    confidences = entities["confidence"].cast(pa.float64())
    found: Counter[str] = Counter(
        {
            SCORED: pc.count(confidences).as_py(),
            CONFIDENCE: _sum(pc.round(pc.multiply(confidences, 1e6))),
            "candidates": tables["entities"].num_rows - entities.num_rows,
            GUESSED_ENCODINGS: pc.count(documents["encoding_confidence"]).as_py(),
            REPLACED: _sum(documents["replaced"]),
            EXTRACTED: pc.count(documents["parts"]).as_py(),
            LOST_PAGES: errors.num_rows - dead_letters.num_rows,
        }
    )
    found.update(f"{OF_TYPE}{label}" for label in entities["label"].to_pylist())
    for names in documents["meta_nulls"].drop_null().to_pylist():
        found.update(f"{META_NULLS}{name}" for name in orjson.loads(names))
    reasons = (dead_letters[name].to_pylist() for name in ("stage", "error"))
    found.update(f"dead_letters.{stage}.{error}" for stage, error in zip(*reasons, strict=True))
    return counts | +found


def count_margins(documents: Sequence[AnnotatedDocument], *, threshold: float | None) -> dict[str, int]:
    """Count what the tables do not contain about documents that have just been annotated.

    Returns:
        Name to number: tokens that are ``near_ties``; for a bf16 run also ``bf16.compared_tokens``, and
        ``bf16.changed_tokens`` whose labels differ from those in fp32.
    """
    counts: Counter[str] = Counter(near_ties=0)
    limit = math.inf if threshold is None else threshold
    for document in documents:
        counts["near_ties"] += sum(_near_ties(prediction, limit) for prediction in document.predictions)
        for prediction, reference in zip(document.predictions, document.in_fp32 or (), strict=False):
            counts["bf16.compared_tokens"] += len(prediction.labels)
            counts["bf16.changed_tokens"] += sum(
                label != other for label, other in zip(prediction.labels, reference.labels, strict=True)
            )
    return dict(counts)


def is_changed(tokens: pa.Table) -> pa.ChunkedArray:
    """Tell of each word whether stage two changed its label; see also ``TokenRow.changed``."""
    return pc.and_(tokens["refined"], pc.not_equal(tokens["ner"], tokens["draft_ner"]))


def total_counts(reports: Iterable[CommitRecord]) -> dict[str, int]:
    """Return the counts of a collection, summed over its shards; one without shards has counts of 0."""
    counts: Counter[str] = Counter(dict.fromkeys(ALWAYS_COUNTED, 0))
    for report in reports:
        counts.update({key: int(value) for key, value in report.stats.items()})
    return dict(sorted(counts.items()))


def collection_counts(manifest: Manifest) -> dict[str, int]:
    """Return what a collection holds: the counts of ``ALWAYS_COUNTED``, its dead letters and lost pages."""
    counts = total_counts(manifest.shards)
    failed = {"dead_letters": manifest.dead_letters, LOST_PAGES: counts.get(LOST_PAGES, 0)}
    return {name: counts[name] for name in ALWAYS_COUNTED} | failed


def entity_types(reports: Iterable[CommitRecord]) -> tuple[str, ...]:
    """Return the entity types that occur in shards, sorted."""
    names = {name for report in reports for name, number in report.stats.items() if number}
    return tuple(sorted(name.removeprefix(OF_TYPE) for name in names if name.startswith(OF_TYPE)))


def _count_repeated_names(tokens: pa.Table) -> dict[str, int]:
    columns = (tokens[name].to_pylist() for name in ("doc_id", "sent_id", "word", "ner"))
    repeated = unlabelled = 0
    for _, document in groupby(zip(*columns, strict=True), key=itemgetter(0)):
        sentences = (list(rows) for _, rows in groupby(document, key=itemgetter(1)))
        names = name_labels(([row[2] for row in rows], [row[3] for row in rows]) for rows in sentences)
        occurrences, missed = count_unlabelled(names, values=VALUES)
        repeated += occurrences
        unlabelled += missed
    return {"repeated_names": repeated, "unlabelled_names": unlabelled}


def _near_ties(prediction: Prediction, limit: float) -> int:
    return sum(
        margin < NEAR_TIE or abs(value - limit) < NEAR_TIE
        for margin, value in zip(prediction.margins, prediction.uncertainty, strict=True)
        if margin is not None and value is not None
    )


def _sum(values: pa.ChunkedArray) -> int:
    return int(pc.sum(values).as_py() or 0)
