"""Annotation queues: the least confident sentences first, within quotas, reproducible by seed."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from concord_testing.exports import annotate_texts, write_texts
from hypothesis import given
from hypothesis import strategies as st

from concord.models.errors import ConfigError
from concord.pipeline.corrections.correction import Correction, Mark, Seen
from concord.pipeline.exchange.review_queue import QueuedSentence, Quotas, select_sentences, write_review_queue
from concord.pipeline.output.collection import (
    CollectedDocument,
    DocumentRow,
    EntityRow,
    SentenceRow,
    TokenRow,
    open_collection,
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
    """Return an annotated collection; tests must not modify it."""
    folder = tmp_path_factory.mktemp("collection")
    annotate_texts(write_texts(folder / "texts.jsonl", TEXTS), folder / "out")
    return folder / "out"


def invent_document(doc_id: str, decisions: list[tuple[str, float, float]]) -> CollectedDocument:
    """Return a document with one sentence of one word for each (label, probability, nats)."""
    sentences: list[SentenceRow] = []
    entities: list[EntityRow] = []
    for number, (label, probability, nats) in enumerate(decisions):
        ner = "O" if label == "O" else f"B-{label}"
        offsets = (2 * number, 2 * number + 1)
        word = TokenRow(1, *offsets, "w", "w", None, None, None, None, 0, "root", ner, ner, probability, nats, False)
        sentences.append(SentenceRow(number, *offsets, 1, False, (word,)))
        if label != "O":
            entities.append(EntityRow(len(entities), number, *offsets, 1, 1, "w", label, probability, nats, False))
    row = DocumentRow(doc_id, "", 0, "", 2 * len(decisions), len(sentences), len(sentences), len(entities), "", None)
    return CollectedDocument(row, tuple(sentences), tuple(entities))


def addresses(queue: list[QueuedSentence]) -> list[tuple[str, int]]:
    return [(choice.doc_id, choice.sent_id) for choice in queue]


def test_score_is_that_of_the_least_confident_decision(output: Path) -> None:
    choices = select_sentences(read_collection(open_collection(output)), ALL)
    assert [choice.rank for choice in choices] == list(range(1, len(choices) + 1))
    assert [choice.score for choice in choices] == sorted((choice.score for choice in choices), reverse=True)
    # The fake tagger is less confident of longer words, and half as much so of entities.
    found = {(choice.doc_id, choice.sent_id): (choice.score, choice.type, choice.reason) for choice in choices}
    assert found["c", 0][0] == pytest.approx(0.35)
    assert found["c", 0][1:] == ("O", "O 'nothing' with probability 0.65")
    assert found["a", 1][0] == pytest.approx(0.3)
    assert found["a", 1][1:] == ("O", "O 'cares.' with probability 0.70")
    assert found["b", 0][1:] == ("PER", "PER 'Carla' with probability 0.88")
    asked = {choice.doc_id: (choice.asked_start, choice.asked_end) for choice in choices if choice.sent_id == 0}
    assert {name: TEXTS[name][start:end] for name, (start, end) in asked.items()}.items() >= {
        ("b", "Carla"),
        ("c", "nothing"),
    }
    # The pieces of an over-long sentence are one.
    assert [address for address in addresses(choices) if address[0] == "b"] == [("b", 2), ("b", 0)]


def test_entropy_orders_sentences_of_equal_score() -> None:
    documents = [invent_document("a", [("O", 0.5, 0.1), ("PER", 0.5, 0.3), ("O", 0.5, 0.2), ("O", 0.4, 0.0)])]
    assert addresses(select_sentences(documents, ALL)) == [("a", 3), ("a", 1), ("a", 2), ("a", 0)]


def test_quotas_limit_documents_and_types() -> None:
    documents = [
        invent_document("a", [("PER", 0.1, 0), ("PER", 0.2, 0), ("LOC", 0.3, 0), ("O", 0.4, 0)]),
        invent_document("b", [("PER", 0.5, 0), ("LOC", 0.6, 0), ("PER", 0.7, 0)]),
    ]

    def selected(**quotas: Any) -> list[tuple[str, int]]:
        return addresses(
            select_sentences(
                documents, Quotas(**{"size": 9, "per_document": None, "per_type": None, "seed": 1} | quotas)
            )
        )

    assert selected(size=2) == [("a", 0), ("a", 1)]
    assert selected(per_document=1) == [("a", 0), ("b", 0)]
    assert selected(per_type=1) == [("a", 0), ("a", 2), ("a", 3)]
    assert selected(per_type=2, per_document=2) == [("a", 0), ("a", 1), ("b", 1)]


decisions = st.tuples(st.sampled_from(["PER", "LOC", "O"]), st.sampled_from([0.25, 0.5, 0.75]), st.just(0.0))
quotas = st.builds(
    Quotas,
    size=st.integers(1, 6),
    per_document=st.none() | st.integers(1, 3),
    per_type=st.none() | st.integers(1, 3),
    seed=st.integers(0, 3),
)


@pytest.mark.slow
@given(collection=st.lists(st.lists(decisions, max_size=5), max_size=4), quotas=quotas)
def test_select_sentences_equals_taking_one_after_the_other(
    collection: list[list[tuple[str, float, float]]], quotas: Quotas
) -> None:
    documents = [invent_document(f"d{number}", found) for number, found in enumerate(collection)]
    everything = Quotas(size=999, per_document=None, per_type=None, seed=quotas.seed)
    by_score = partial(select_sentences, documents, disputed_every=1_000)
    expected: list[QueuedSentence] = []
    for choice in by_score(everything):
        own = [taken for taken in expected if taken.doc_id == choice.doc_id]
        same_type = [taken for taken in expected if taken.type == choice.type]
        if (
            len(expected) < quotas.size
            and (quotas.per_document is None or len(own) < quotas.per_document)
            and (quotas.per_type is None or len(same_type) < quotas.per_type)
        ):
            expected.append(choice)
    assert addresses(by_score(quotas)) == addresses(expected)


def test_ties_are_broken_by_seed_and_not_by_document_order() -> None:
    documents = [invent_document(f"d{number}", [("PER", 0.5, 0.1)]) for number in range(20)]
    queues = [
        tuple(addresses(select_sentences(documents, Quotas(size=20, per_document=1, per_type=None, seed=s))))
        for s in range(3)
    ]
    assert len(set(queues)) == 3
    again = select_sentences(reversed(documents), Quotas(size=20, per_document=1, per_type=None, seed=1))
    assert tuple(addresses(again)) == queues[1]
    assert Counter(queues[0]) == Counter(queues[1])


def test_label_studio_queue_lists_sentences_by_rank(output: Path, tmp_path: Path) -> None:
    report = write_review_queue(output, tmp_path / "queue.json", to="label-studio", quotas=ALL)
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


def test_queues_of_other_forms_and_without_excluded_documents(output: Path, tmp_path: Path) -> None:
    write_review_queue(output, tmp_path / "queue.jsonl", to="jsonl", quotas=ALL)
    for record in map(json.loads, (tmp_path / "queue.jsonl").read_bytes().splitlines()):
        rows = [*record["entities"], *(word for sentence in record["sentences"] for word in sentence["tokens"])]
        assert all(record["text"][row["start_char"] : row["end_char"]] == row["text"] for row in rows)
    report = write_review_queue(output, tmp_path / "all", to="brat", quotas=ALL)
    assert len(list((tmp_path / "all").glob("*.ann"))) == len(report.choices)
    # Types are offered that none of its sentences has.
    report = write_review_queue(output, tmp_path / "queue", to="brat", quotas=ALL, exclude={"a", "b"})
    assert {choice.doc_id for choice in report.choices} == {"c"}
    assert report.labels == ("PER",)
    assert "[entities]\nPER\n" in (tmp_path / "queue" / "annotation.conf").read_text()
    with pytest.raises(ConfigError, match="expected a new name"):
        write_review_queue(output, tmp_path / "queue", to="label-studio", quotas=ALL)


def test_sentence_is_left_out_and_reported_when_its_text_has_changed(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts.jsonl", TEXTS)
    annotate_texts(source, tmp_path / "out")
    write_texts(source, TEXTS | {"c": "something here."})
    report = write_review_queue(tmp_path / "out", tmp_path / "queue.json", to="label-studio", quotas=ALL)
    assert report.left_out == 1
    assert report.errors == tmp_path / "queue.json.errors.jsonl"
    assert {choice.doc_id for choice in report.choices} == {"a", "b"}


def named(doc_id: str, *sentences: str) -> CollectedDocument:
    """Return a document of words such as ``Ford/B-ORG/0.99``, by default ``O`` and as sure as that."""
    found: list[SentenceRow] = []
    entities: list[EntityRow] = []
    start = 0
    for number, sentence in enumerate(sentences):
        words = []
        for place, (word, label, value) in enumerate(
            ((*one.split("/"), "O", "0.99")[:3] for one in sentence.split()), 1
        ):
            sure = float(value) if label != "O" or "/" in sentence else 0.99
            offsets = (start, start + len(word))
            words.append(TokenRow(place, *offsets, word, word, *(None,) * 6, label, label, sure, 0.0, False))
            if label != "O":
                kind = label.removeprefix("B-")
                entities.append(EntityRow(len(entities), number, *offsets, place, place, word, kind, sure, 0.0, False))
            start += len(word) + 1
        found.append(SentenceRow(number, words[0].start_char, start - 1, len(words), False, tuple(words)))
    row = DocumentRow(doc_id, "", 0, "", start, len(found), 0, len(entities), "", None)
    return CollectedDocument(row, tuple(found), tuple(entities))


RECURRING = named(
    "news",
    *("Ford/B-PER/0.99 slept", "Ford/B-PER/0.99 ran", "Ford/B-PER/0.99 fell"),
    *("Ford/B-ORG/0.98 closed", "yesterday Ford woke", "May/O/0.95 came"),
)
FILLING = named("doubt", *(f"w{number}/O/0.5{number} x" for number in range(10)))


def reasons(documents: list[CollectedDocument], *log: Correction, every: int = 2) -> list[str]:
    quotas = Quotas(size=6, per_document=None, per_type=None, seed=1)
    queue = select_sentences(documents, quotas, log=log, disputed_every=every)
    return [one.reason for one in queue]


def test_some_of_the_queue_are_names_with_another_label_elsewhere() -> None:
    found = reasons([RECURRING, FILLING])
    assert [reason for reason in found if "elsewhere" in reason] == [
        "O 'Ford', 3 times PER elsewhere",
        "ORG 'Ford', 3 times PER elsewhere",
    ]
    assert [index for index, reason in enumerate(found, 1) if "elsewhere" in reason] == [2, 4]
    assert not any("elsewhere" in reason for reason in reasons([RECURRING, FILLING], every=10))
    queue = select_sentences([RECURRING, FILLING], ALL, disputed_every=2)
    assert len(set(addresses(queue))) == len(queue) == 16
    assert [one.rank for one in queue] == list(range(1, 17))


def test_names_that_people_called_something_else_come_first() -> None:
    text = "Ford and May"
    ford, may = (
        Mark(start=text.index(name), end=text.index(name) + len(name), type="LOC", text=name)
        for name in text.split(" and ")
    )
    seen = Seen(doc_id="other", tagger="t", generation=0)
    said = [
        Correction.of(None, ford, text=text, seen=seen, who="ada"),
        Correction.of(ford, ford.model_copy(update={"type": "ORG"}), text=text, seen=seen, who="ada"),
        Correction.of(may, None, text=text, seen=seen, who="ada"),
    ]
    found = [reason for reason in reasons([RECURRING, FILLING], *said, every=1) if "called" in reason]
    assert found[0] == "PER 'Ford', which people called LOC or ORG"
    assert "O 'Ford', which people called LOC or ORG" in found
    # What was undone was not said, and what people said themselves contradicts nobody.
    undone = reasons([RECURRING, FILLING], said[1], said[1].undone(who="ada"), every=1)
    assert not any("called" in reason for reason in undone)
    assert not any("ORG 'Ford', which" in reason or "elsewhere" in reason for reason in found)


def test_the_entities_of_a_document_are_read_as_often_for_many_sentences_as_for_few() -> None:
    class Counted(tuple[EntityRow, ...]):
        read = 0

        def __iter__(self) -> Iterator[EntityRow]:
            Counted.read += 1
            return super().__iter__()

    times = []
    for sentences in (RECURRING.sentences[:2], RECURRING.sentences):
        Counted.read = 0
        select_sentences([CollectedDocument(RECURRING.row, sentences, Counted(RECURRING.entities))], ALL)
        times.append(Counted.read)
    assert times[0] == times[1]


def test_a_corrected_entity_is_not_disputed_again() -> None:
    corrected = tuple(row._replace(source="corrected") if row.label == "ORG" else row for row in RECURRING.entities)
    document = CollectedDocument(RECURRING.row, RECURRING.sentences, corrected)
    assert not any(reason.startswith("ORG 'Ford', 3") for reason in reasons([document, FILLING]))
