"""Counts: of a shard, in its commit record, and of a collection.

They are whole numbers and no times, so that equal plans have equal counts.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from concord.models.data.outputs import Prediction
from concord.models.evaluation.metrics import count_unlabelled, name_labels
from concord.pipeline.documents import AnnotatedDocument
from concord.pipeline.names.values import VALUES
from concord.pipeline.output.manifest import CommitRecord, Manifest
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


def count_rows(tables: Mapping[str, pa.Table], *, threshold: float | None) -> dict[str, float]:
    """Count the content of a shard's tables.

    Args:
        threshold: nats above which stage two decides; None for a tagger with one stage.

    Returns:
        Name to number: those of ``ALWAYS_COUNTED``, but for near_ties; ``entities.<type>``; ``scored_entities``;
        ``confidence_millionths``; ``candidates``; ``guessed_encodings``; ``replaced``; ``extracted_texts``;
        ``lost_pages``; ``meta_nulls.<field>``; ``dead_letters.<stage>.<error>``.
    """
    tokens, sentences, entities = tables["tokens"], tables["sentences"], without_candidates(tables["entities"])
    uncertainty = np.asarray(tokens["uncertainty"].drop_null().to_numpy()).astype(np.float64)
    refined = _values(tokens, "refined")
    counts: Counter[str] = Counter(
        {
            "documents": tables["documents"].num_rows,
            "sentences": sentences.num_rows,
            "tokens": tokens.num_rows,
            "entities": entities.num_rows,
            "uncertain_tokens": int((uncertainty > _limit(threshold)).sum()),
            "refined_tokens": int(refined.sum()),
            "changed_tokens": int(is_changed(tokens).sum()),
            **_count_repeated_names(tokens),
            "refined_sentences": _sentences_with(refined, _values(sentences, "n_tokens").astype(np.int64)),
        }
    )
    counts.update(f"{OF_TYPE}{label}" for label in entities["label"].to_pylist())
    confidence = np.asarray(entities["confidence"].drop_null().to_numpy()).astype(np.float64)
    if len(confidence):
        counts[SCORED], counts[CONFIDENCE] = len(confidence), int(np.rint(1e6 * confidence).sum())
    if candidates := tables["entities"].num_rows - entities.num_rows:
        counts["candidates"] = candidates
    guesses = tables["documents"]["encoding_confidence"]
    if guesses.null_count < len(guesses):
        counts[GUESSED_ENCODINGS] = len(guesses) - guesses.null_count
    if replaced := int(_values(tables["documents"], "replaced").sum()):
        counts[REPLACED] = replaced
    if extracted := len(guesses) - tables["documents"]["parts"].null_count:
        counts[EXTRACTED] = extracted
    for names in tables["documents"]["meta_nulls"].drop_null().to_pylist():
        counts.update(f"{META_NULLS}{name}" for name in orjson.loads(names))
    if "errors" in tables:
        dead_letters = without_lost_pages(tables["errors"])
        if lost := tables["errors"].num_rows - dead_letters.num_rows:
            counts[LOST_PAGES] = lost
        reasons = (dead_letters[name].to_pylist() for name in ("stage", "error"))
        counts.update(f"dead_letters.{stage}.{error}" for stage, error in zip(*reasons, strict=True))
    return dict(counts)


def count_margins(documents: Sequence[AnnotatedDocument], *, threshold: float | None) -> dict[str, float]:
    """Count what the tables do not contain about documents that have just been annotated.

    Returns:
        Name to number: tokens that are ``near_ties``; for a bf16 run also ``bf16.compared_tokens``, and
        ``bf16.changed_tokens`` whose labels differ from those in fp32.
    """
    counts: Counter[str] = Counter(near_ties=0)
    for document in documents:
        counts["near_ties"] += sum(_near_ties(prediction, _limit(threshold)) for prediction in document.predictions)
        for prediction, reference in zip(document.predictions, document.in_fp32 or (), strict=False):
            counts["bf16.compared_tokens"] += len(prediction.labels)
            counts["bf16.changed_tokens"] += sum(
                label != other for label, other in zip(prediction.labels, reference.labels, strict=True)
            )
    return dict(counts)


def is_changed(tokens: pa.Table) -> NDArray[np.bool_]:
    """Tell of each word whether stage two changed its label; see also ``TokenRow.changed``."""
    differs: NDArray[np.bool_] = _values(tokens, "ner") != _values(tokens, "draft_ner")
    return differs & _values(tokens, "refined").astype(np.bool_)


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


def _limit(threshold: float | None) -> float:
    return math.inf if threshold is None else threshold


def _values(table: pa.Table, name: str) -> NDArray[np.generic]:
    return np.asarray(table[name].to_numpy())


def _sentences_with(marked: NDArray[np.generic], lengths: NDArray[np.int64]) -> int:
    """Count the sentences with a marked word; every sentence has a word."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    return len(np.unique(owners[marked.astype(np.bool_)]))
