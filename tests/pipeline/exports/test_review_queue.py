"""Annotation queues: the least sure sentences first, within quotas, the same for the same seed."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from concord_testing.exports import annotate_texts, write_texts
from hypothesis import given
from hypothesis import strategies as st

from concord.models.config import ConfigError
from concord.pipeline.exports.review_queue import Choice, Quotas, draw, review
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.document_rows import (
    CollectedDocument,
    CollectedSentence,
    DocumentRow,
    EntityRow,
    SentenceRow,
    TokenRow,
    read_collection,
)

TEXTS = {
    "a": "Anna saw it. Nobody cares. the Bob Smith left.",
    "b": "a b c d e f g h Carla i j. \U0001f600 Dora ran.",
    "c": "nothing here.",
    "empty": "",
}
ALL = Quotas(size=100, per_document=None, per_type=None, seed=1)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an annotated collection; it must not be changed."""
    folder = tmp_path_factory.mktemp("collection")
    annotate_texts(write_texts(folder / "texts.jsonl", TEXTS), folder / "out")
    return folder / "out"


def invented(doc_id: str, decisions: list[tuple[str, float, float]]) -> CollectedDocument:
    """Give a document of one sentence for each (label, probability, nats): a word that is an entity or none."""
    sentences, entities = [], []
    for number, (label, probability, nats) in enumerate(decisions):
        ner = "O" if label == "O" else f"B-{label}"
        place = (2 * number, 2 * number + 1)
        word = TokenRow(1, *place, "w", "w", None, None, None, None, 0, "root", ner, ner, probability, nats, False)
        sentences.append(CollectedSentence(SentenceRow(number, *place, 1, False), (word,)))
        if label != "O":
            entities.append(EntityRow(len(entities), number, *place, 1, 1, "w", label, probability, nats, False))
    row = DocumentRow(doc_id, "", 0, "", 2 * len(decisions), len(sentences), len(sentences), len(entities), "", None)
    return CollectedDocument(row, tuple(sentences), tuple(entities))


def places(choices: list[Choice]) -> list[tuple[str, int]]:
    return [(choice.doc_id, choice.sent_id) for choice in choices]


def test_the_least_sure_decision_makes_the_score(output: Path) -> None:
    choices = draw(read_collection(open_collection(output)), ALL)
    assert [choice.rank for choice in choices] == list(range(1, len(choices) + 1))
    assert [choice.score for choice in choices] == sorted((choice.score for choice in choices), reverse=True)
    # The fake tagger is the less sure of a word the longer it is, and half as much of an entity.
    found = {(choice.doc_id, choice.sent_id): (choice.score, choice.type, choice.reason) for choice in choices}
    assert found["c", 0] == (pytest.approx(0.35), "O", "O 'nothing' with probability 0.65")
    assert found["a", 1] == (pytest.approx(0.3), "O", "O 'cares.' with probability 0.70")
    assert found["b", 0][1:] == ("PER", "PER 'Carla' with probability 0.88")


def test_a_sentence_in_pieces_is_one(output: Path) -> None:
    assert [place for place in places(draw(read_collection(open_collection(output)), ALL)) if place[0] == "b"] == [
        ("b", 2),
        ("b", 0),
    ]


def test_the_entropy_parts_equal_scores() -> None:
    documents = [invented("a", [("O", 0.5, 0.1), ("PER", 0.5, 0.3), ("O", 0.5, 0.2), ("O", 0.4, 0.0)])]
    assert places(draw(documents, ALL)) == [("a", 3), ("a", 1), ("a", 2), ("a", 0)]


def test_quotas_bound_documents_and_types() -> None:
    documents = [
        invented("a", [("PER", 0.1, 0), ("PER", 0.2, 0), ("LOC", 0.3, 0), ("O", 0.4, 0)]),
        invented("b", [("PER", 0.5, 0), ("LOC", 0.6, 0), ("PER", 0.7, 0)]),
    ]

    def drawn(**quotas: Any) -> list[tuple[str, int]]:
        return places(
            draw(documents, Quotas(**{"size": 9, "per_document": None, "per_type": None, "seed": 1} | quotas))
        )

    assert drawn(size=2) == [("a", 0), ("a", 1)]
    assert drawn(per_document=1) == [("a", 0), ("b", 0)]
    assert drawn(per_type=1) == [("a", 0), ("a", 2), ("a", 3)]
    assert drawn(per_type=2, per_document=2) == [("a", 0), ("a", 1), ("b", 1)]


decisions = st.tuples(st.sampled_from(["PER", "LOC", "O"]), st.sampled_from([0.25, 0.5, 0.75]), st.just(0.0))
quotas = st.builds(
    Quotas,
    size=st.integers(1, 6),
    per_document=st.none() | st.integers(1, 3),
    per_type=st.none() | st.integers(1, 3),
    seed=st.integers(0, 3),
)


@given(collection=st.lists(st.lists(decisions, max_size=5), max_size=4), quotas=quotas)
def test_a_queue_is_what_taking_one_after_the_other_gives(
    collection: list[list[tuple[str, float, float]]], quotas: Quotas
) -> None:
    documents = [invented(f"d{number}", found) for number, found in enumerate(collection)]
    unbounded = draw(documents, Quotas(size=999, per_document=None, per_type=None, seed=quotas.seed))
    expected: list[Choice] = []
    for choice in unbounded:
        own = [taken for taken in expected if taken.doc_id == choice.doc_id]
        alike = [taken for taken in expected if taken.type == choice.type]
        if (
            len(expected) < quotas.size
            and (quotas.per_document is None or len(own) < quotas.per_document)
            and (quotas.per_type is None or len(alike) < quotas.per_type)
        ):
            expected.append(choice)
    assert places(draw(documents, quotas)) == places(expected)


def test_the_seed_decides_between_equals_and_the_order_of_documents_does_not() -> None:
    documents = [invented(f"d{number}", [("PER", 0.5, 0.1)]) for number in range(20)]
    queues = [tuple(places(draw(documents, Quotas(size=20, per_document=1, per_type=None, seed=s)))) for s in range(3)]
    assert len(set(queues)) == 3
    again = draw(reversed(documents), Quotas(size=20, per_document=1, per_type=None, seed=1))
    assert tuple(places(again)) == queues[1]
    assert Counter(queues[0]) == Counter(queues[1])


def test_a_queue_for_label_studio_shows_sentences_in_the_order_of_need(output: Path, tmp_path: Path) -> None:
    report = review(output, tmp_path / "queue.json", to="label-studio", quotas=ALL)
    tasks = json.loads((tmp_path / "queue.json").read_bytes())
    assert [task["data"]["rank"] for task in tasks] == [choice.rank for choice in report.choices]
    for task, choice in zip(tasks, report.choices, strict=True):
        data = task["data"]
        assert (data["doc_id"], data["sent_id"], data["score"]) == (choice.doc_id, choice.sent_id, choice.score)
        assert TEXTS[data["doc_id"]][data["start_char"] :].startswith(data["text"])
        for region in task["predictions"][0]["result"]:
            units = data["text"].encode("utf-16-le")[2 * region["value"]["start"] : 2 * region["value"]["end"]]
            assert units.decode("utf-16-le") == region["value"]["text"]
    shown = {task["data"]["text"]: [r["value"]["text"] for r in task["predictions"][0]["result"]] for task in tasks}
    assert shown["the Bob Smith left."] == ["Bob Smith"]
    assert shown["a b c d e f g h Carla i j."] == ["Carla"]
    assert shown["\U0001f600 Dora ran."] == ["Dora"]
    assert report.labels == ("PER",)


def test_an_annotator_may_choose_types_that_the_queue_does_not_hold(output: Path, tmp_path: Path) -> None:
    report = review(output, tmp_path / "queue", to="brat", quotas=ALL, done={"a", "b"})
    assert {choice.doc_id for choice in report.choices} == {"c"}
    assert report.labels == ("PER",)
    assert "[entities]\nPER\n" in (tmp_path / "queue" / "annotation.conf").read_text()


def test_a_queue_of_json_lines_has_offsets_within_the_sentence(output: Path, tmp_path: Path) -> None:
    review(output, tmp_path / "queue.jsonl", to="jsonl", quotas=ALL)
    for record in map(json.loads, (tmp_path / "queue.jsonl").read_bytes().splitlines()):
        rows = [*record["entities"], *(word for sentence in record["sentences"] for word in sentence["tokens"])]
        assert all(record["text"][row["start_char"] : row["end_char"]] == row["text"] for row in rows)


def test_a_queue_for_brat_has_a_file_a_sentence(output: Path, tmp_path: Path) -> None:
    report = review(output, tmp_path / "queue", to="brat", quotas=ALL)
    assert len(list((tmp_path / "queue").glob("*.ann"))) == len(report.choices)


def test_documents_that_are_done_are_left_out(output: Path, tmp_path: Path) -> None:
    report = review(output, tmp_path / "queue.json", to="label-studio", quotas=ALL, done={"a", "c"})
    assert {choice.doc_id for choice in report.choices} == {"b"}


def test_a_sentence_whose_text_has_changed_is_left_out_and_named(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts.jsonl", TEXTS)
    annotate_texts(source, tmp_path / "out")
    write_texts(source, TEXTS | {"c": "something here."})
    report = review(tmp_path / "out", tmp_path / "queue.json", to="label-studio", quotas=ALL)
    assert report.left_out == 1
    assert report.errors == tmp_path / "queue.json.errors.jsonl"
    assert {choice.doc_id for choice in report.choices} == {"a", "b"}


def test_a_queue_is_not_written_over(output: Path, tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_text("annotated by hand")
    with pytest.raises(ConfigError, match="expected a new name"):
        review(output, tmp_path / "queue.json", to="label-studio", quotas=ALL)
