from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from concord_testing import runs

from concord.models.evaluation.consistency import Consistency
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import PlanError, ReconciliationError
from concord.pipeline.report.statistics import Limits, measure_quality

FinishRun = Callable[..., Path]

NEWS = {
    "yard": (
        "Baxter|B-ORG|B-PER|0.9 closes the|O|O|0.4 yard",
        "Alan|B-PER Baxter|I-PER runs Baxter|B-ORG|B-ORG|0.4",
        "Baxter|B-PER is in Goole|B-LOC",
    ),
    "fair": ("Goole|B-LOC|O|0.6 waits", "Nobody came to Goole|B-LOC"),
    "coda": ("Quiet words here",),
}


def dead_letter(position: int, error: str = "malformed_json") -> DeadLetter:
    return DeadLetter(
        doc_id=None, source_uri="/data/a.jsonl", position=position, stage="read", error=error, message=f"at {position}"
    )


def test_quality_counts_the_rows_of_the_tables(finish_run: FinishRun) -> None:
    found = measure_quality(finish_run(NEWS, dead_letters=[dead_letter(7)]))
    assert (found.manifest.read, found.manifest.annotated, found.manifest.dead_letters) == (4, 3, 1)
    assert (found.documents, found.sentences, found.tokens, found.entities) == (3, 6, 21, 7)
    assert [(kind.label, kind.drafted, kind.count, kind.names) for kind in found.types] == [
        ("LOC", 2, 3, (("Goole", 3),)),
        ("ORG", 1, 2, (("Baxter", 2),)),
        ("PER", 3, 2, (("Alan Baxter", 1), ("Baxter", 1))),
    ]


def test_quality_counts_the_words_stage_two_decided_and_changed(finish_run: FinishRun) -> None:
    found = measure_quality(finish_run(NEWS))
    assert (found.refined, found.changed) == (4, 2)
    changes = [(change.draft, change.label, change.count) for change in found.changes]
    assert changes == [("B-PER", "B-ORG", 1), ("O", "B-LOC", 1)]
    sentence, position = found.changes[0].examples[0]
    assert (sentence.doc_id, sentence.tokens[position].text) == ("yard", "Baxter")


def test_quality_measures_recurring_names_before_and_after_stage_two(finish_run: FinishRun) -> None:
    found = measure_quality(finish_run(NEWS))
    assert found.consistency == Consistency(names=2, occurrences=5, agreeing=4)
    assert found.draft_consistency == Consistency(names=2, occurrences=5, agreeing=3)
    assert [(name.name, name.doc_id, name.labels) for name in found.least_consistent] == [
        ("Baxter", "yard", {"ORG": 2, "PER": 1})
    ]


def test_quality_orders_sentences_by_their_most_uncertain_word(finish_run: FinishRun) -> None:
    found = measure_quality(finish_run(NEWS))
    assert [(item.doc_id, item.sent_id) for item in found.uncertain_sentences[:3]] == [
        ("yard", 0),
        ("fair", 0),
        ("yard", 1),
    ]
    assert sum(found.histogram) == found.tokens
    assert (found.histogram[0], found.histogram[8], found.histogram[12], found.histogram[-1]) == (17, 2, 1, 1)


def test_quality_keeps_only_the_most_uncertain_sentences(finish_run: FinishRun) -> None:
    found = measure_quality(finish_run(NEWS), Limits(uncertain_sentences=2))
    assert [(item.doc_id, item.sent_id) for item in found.uncertain_sentences] == [("yard", 0), ("fair", 0)]


@pytest.mark.slow
def test_quality_picks_the_documents_richest_in_entities_that_are_not_long(finish_run: FinishRun) -> None:
    assert [item.row.doc_id for item in measure_quality(finish_run(NEWS)).whole_documents] == [
        "yard",
        "fair",
        "coda",
    ]
    limits = Limits(long_document_tokens=8, whole_documents=2)
    assert [item.row.doc_id for item in measure_quality(finish_run(NEWS), limits).whole_documents] == ["fair", "coda"]


def test_quality_drops_rare_names_when_there_are_too_many(finish_run: FinishRun) -> None:
    found = measure_quality(finish_run(NEWS), Limits(distinct_names=2))
    assert not found.names_are_exact
    assert [kind.count for kind in found.types] == [3, 2, 2]


def test_quality_groups_dead_letters_by_reason(finish_run: FinishRun) -> None:
    dead_letters = [dead_letter(place) for place in range(5)] + [dead_letter(9, "invalid_utf8")]
    found = measure_quality(finish_run(NEWS, dead_letters=dead_letters))
    assert [(reason.stage, reason.error, reason.count, len(reason.examples)) for reason in found.reasons] == [
        ("read", "malformed_json", 5, 3),
        ("read", "invalid_utf8", 1, 1),
    ]
    assert found.reasons[0].examples[0]["position"] == 0


def test_quality_of_a_run_without_a_document(finish_run: FinishRun) -> None:
    found = measure_quality(finish_run({}, dead_letters=[dead_letter(0)]))
    assert (found.documents, found.tokens, found.types, found.histogram, found.whole_documents) == (0, 0, (), (), ())


def test_quality_refuses_an_unfinished_run(finish_run: FinishRun, tmp_path: Path) -> None:
    output = finish_run(NEWS)
    runs.unfinish(output)
    with pytest.raises(PlanError, match="not finished"):
        measure_quality(output)
    with pytest.raises(PlanError):
        measure_quality(tmp_path / "nothing")


def test_quality_refuses_a_run_with_a_missing_record(finish_run: FinishRun) -> None:
    path = finish_run(NEWS) / "_run" / "manifest.json"
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"annotated": 2}))
    with pytest.raises(ReconciliationError, match="3 records"):
        measure_quality(path.parent.parent)
