"""Tables of annotated documents, and the check of offsets."""

import hashlib
import re
from dataclasses import replace

import pyarrow as pa
import pytest
from concord_testing import fakes
from hypothesis import given
from hypothesis import strategies as st

from concord.models.data.outputs import Prediction
from concord.models.labels import Span
from concord.pipeline.documents import (
    AnnotatedDocument,
    DeadLetter,
    Document,
    ParsedDocument,
    ParsedSentence,
    ParsedWord,
    part_finder,
)
from concord.pipeline.output.schema import SCHEMA_VERSION, SCHEMAS, Signature
from concord.pipeline.output.tables import annotated_tables, error_table
from concord.pipeline.worker.stages import find_offset_fault


def document(text: str, doc_id: str = "d") -> Document:
    return Document(doc_id=doc_id, text=text, source_uri="/in.jsonl", source_position=7, meta='{"k":1}')


def word(start: int, text: str, *, end: int | None = None, form: str | None = None, head: int = 0) -> ParsedWord:
    end = start + len(text) if end is None else end
    return fakes.parsed_word(start, text, head, end_char=end, word=form or text, lemma=None)


def parsed(text: str, *sentences: tuple[ParsedWord, ...]) -> ParsedDocument:
    return ParsedDocument(document=document(text), sentences=tuple(ParsedSentence(words=words) for words in sentences))


def prediction(*labels: str, spans: tuple[Span, ...] = (), confidence: float = 0.5) -> Prediction:
    return Prediction(
        labels=labels,
        draft_labels=("O",) * len(labels),
        probabilities=(0.75,) * len(labels),
        margins=(0.5,) * len(labels),
        uncertainty=tuple(number / 4 for number in range(len(labels))),
        refined=tuple(number == 1 for number in range(len(labels))),
        spans=spans,
        confidences=(confidence,) * len(spans),
    )


def tables_of(*documents: AnnotatedDocument, keep_text: bool = False) -> dict[str, pa.Table]:
    signature = Signature(parser="p@1", tagger="t@2", calibration="tokens: isotonic")
    return annotated_tables(documents, signature, keep_text=keep_text)


def test_annotated_tables_have_the_schemas_and_signatures() -> None:
    tables = tables_of(AnnotatedDocument(parsed=parsed("Hi", (word(0, "Hi"),)), predictions=(prediction("O"),)))
    assert list(tables) == ["documents", "sentences", "tokens", "entities"]
    assert all(field.metadata[b"description"] for schema in SCHEMAS.values() for field in schema)
    for name, table in tables.items():
        assert table.schema.equals(SCHEMAS[name])
        assert table.schema.metadata[b"concord.schema_version"] == str(SCHEMA_VERSION).encode()
        assert table.schema.metadata[b"concord.parser"] == b"p@1"
        assert table.schema.metadata[b"concord.tagger"] == b"t@2"
        assert table.schema.metadata[b"concord.calibration"] == b"tokens: isotonic"


def test_annotated_tables_contain_the_values_of_the_documents() -> None:
    text = "Ann Lee met.  Bob\U0001f600"
    annotated = AnnotatedDocument(
        parsed=parsed(
            text, (word(0, "Ann", head=2), word(4, "Lee"), word(8, "met.", head=2)), (word(14, "Bob\U0001f600"),)
        ),
        predictions=(prediction("B-PER", "I-PER", "O", spans=(Span(0, 2, "PER"),), confidence=0.375), prediction("O")),
    )
    tables = tables_of(annotated)
    assert tables["documents"].to_pylist() == [
        {
            "doc_id": "d",
            "source_uri": "/in.jsonl",
            "source_position": 7,
            "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "n_chars": 18,
            "n_sentences": 2,
            "n_tokens": 4,
            "n_entities": 1,
            "n_candidates": 0,
            "parser": "p@1",
            "tagger": "t@2",
            "status": "annotated",
            "meta": '{"k":1}',
            "language": None,
            "language_confidence": None,
            "encoding": None,
            "encoding_confidence": None,
            "meta_nulls": None,
            "replaced": 0,
            "parts": None,
            "lost": None,
            "source_sha256": None,
            "raw_text": None,
        }
    ]
    assert tables["sentences"].select(["sent_id", "start_char", "end_char", "n_tokens"]).to_pylist() == [
        {"sent_id": 0, "start_char": 0, "end_char": 12, "n_tokens": 3},
        {"sent_id": 1, "start_char": 14, "end_char": 18, "n_tokens": 1},
    ]
    assert tables["tokens"]["token_id"].to_pylist() == [1, 2, 3, 1]
    assert tables["tokens"]["sent_id"].to_pylist() == [0, 0, 0, 1]
    assert tables["tokens"]["head"].to_pylist() == [2, 0, 2, 0]
    assert tables["tokens"]["ner"].to_pylist() == ["B-PER", "I-PER", "O", "O"]
    assert tables["tokens"]["refined"].to_pylist() == [False, True, False, False]
    assert tables["entities"].to_pylist() == [
        {
            "doc_id": "d",
            "entity_id": 0,
            "sent_id": 0,
            "start_char": 0,
            "end_char": 7,
            "start_token": 1,
            "end_token": 2,
            "text": "Ann Lee",
            "name": "Ann Lee",
            "label": "PER",
            "canonical": "Ann Lee",
            "identity": 0,
            "value": None,
            "confidence": 0.375,
            "uncertainty": 0.25,
            "refined": True,
            "source": "model",
        }
    ]


def test_names_of_one_person_share_identity_and_canonical_name_across_sentences() -> None:
    text = "Ann Lee met Bob. Lee left."
    annotated = AnnotatedDocument(
        parsed=parsed(
            text,
            (word(0, "Ann"), word(4, "Lee"), word(8, "met"), word(12, "Bob"), word(15, ".")),
            (word(17, "Lee"), word(21, "left"), word(25, ".")),
        ),
        predictions=(
            prediction("B-PER", "I-PER", "O", "B-PER", "O", spans=(Span(0, 2, "PER"), Span(3, 4, "PER"))),
            prediction("B-PER", "O", "O", spans=(Span(0, 1, "PER"),)),
        ),
    )
    entities = tables_of(annotated, annotated)["entities"]
    assert entities["canonical"].to_pylist() == ["Ann Lee", "Bob", "Ann Lee"] * 2
    assert entities["identity"].to_pylist() == [0, 1, 0] * 2


def test_dates_and_amounts_have_a_value_unless_the_words_beside_them_say_otherwise() -> None:
    text = "Ann paid $3.5\n million in May 1945."
    words: tuple[ParsedWord, ...]
    words = (word(0, "Ann"), word(4, "paid"), word(9, "$"), word(10, "3.5"), word(15, "million"), word(23, "in"))
    spans: tuple[Span, ...] = (Span(0, 1, "PER"), Span(2, 5, "MONEY"), Span(6, 8, "DATE"))
    labels = ("B-PER", "O", "B-MONEY", "I-MONEY", "I-MONEY", "O", "B-DATE", "I-DATE", "O")
    annotated = AnnotatedDocument(
        parsed=parsed(text, (*words, word(26, "May"), word(30, "1945"), word(34, "."))),
        predictions=(prediction(*labels, spans=spans),),
    )
    assert tables_of(annotated)["entities"]["value"].to_pylist() == [None, "3500000 USD", "1945-05"]
    words = (word(0, "$3.5"), word(4, "bn", head=1), word(7, "in", head=1), word(10, "1274", head=1))
    spans = (Span(0, 1, "MONEY"), Span(3, 4, "DATE"))
    annotated = AnnotatedDocument(
        parsed=parsed("$3.5bn in 1274 B.C.", words), predictions=(prediction("O", "O", "O", "O", spans=spans),)
    )
    assert tables_of(annotated)["entities"]["value"].to_pylist() == [None, None]


def test_documents_hold_their_encoding_and_on_demand_their_text() -> None:
    read = replace(document("Hi"), encoding="cp1252", encoding_confidence=0.5)
    annotated = AnnotatedDocument(
        parsed=ParsedDocument(document=read, sentences=(ParsedSentence(words=(word(0, "Hi"),)),)),
        predictions=(prediction("O"),),
    )
    (row,) = tables_of(annotated)["documents"].to_pylist()
    assert (row["encoding"], row["encoding_confidence"], row["raw_text"]) == ("cp1252", 0.5, None)
    (row,) = tables_of(annotated, keep_text=True)["documents"].to_pylist()
    assert row["raw_text"] == "Hi"


def test_pages_are_found_before_chapters() -> None:
    rows = [{"kind": "chapter", "label": "One", "start": 0}, {"kind": "page", "label": "iv", "start": 4}]

    assert [str(part_finder(rows)(offset)) for offset in (2, 4, 9)] == ["None", "p. iv", "p. iv"]
    assert str(part_finder(rows[:1])(9)) == "One"
    assert part_finder(None)(0) is None


def test_an_entity_across_pieces_belongs_to_the_piece_where_it_starts_and_says_who_labelled_it() -> None:
    first = replace(prediction("O", "B-LOC", spans=(Span(1, 3, "LOC"),)), sources=("terms",))
    annotated = AnnotatedDocument(
        parsed=parsed("in New York now", (word(0, "in"), word(3, "New")), (word(7, "York"), word(12, "now"))),
        predictions=(first, prediction("I-LOC", "O")),
    )
    (entity,) = tables_of(annotated)["entities"].to_pylist()
    assert (entity["sent_id"], entity["start_token"], entity["end_token"]) == (0, 2, 3)
    assert (entity["start_char"], entity["end_char"], entity["text"]) == (3, 11, "New York")
    assert entity["source"] == "terms"


def test_an_empty_document_is_one_row_of_documents_only() -> None:
    tables = tables_of(AnnotatedDocument(parsed=parsed(" \n"), predictions=()))
    assert [tables[name].num_rows for name in ("documents", "sentences", "tokens", "entities")] == [1, 0, 0, 0]
    assert all(table.num_rows == 0 for table in tables_of().values())


@pytest.mark.parametrize(
    ("broken", "labels", "message"),
    [
        (word(0, "Hi")._replace(lemma="\ud800"), ("O",), "."),
        (word(0, "Hi")._replace(word=None), ("O",), "."),  # type: ignore[arg-type]
        (word(0, "Hi"), ("O", "O"), "expected length 1 but got length 2"),
    ],
)
def test_annotated_tables_refuse_what_the_schema_does_not_allow(
    broken: ParsedWord, labels: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tables_of(AnnotatedDocument(parsed=parsed("Hi", (broken,)), predictions=(prediction(*labels),)))


def test_error_table_escapes_what_utf8_cannot_encode() -> None:
    dead_letter = DeadLetter(doc_id=None, source_uri="/in\udcff", position=3, stage="read", error="e", message="\ud800")
    (row,) = error_table([dead_letter], Signature(parser="p", tagger="t")).to_pylist()
    assert row["source_uri"] == "/in\\udcff"
    assert row["message"] == "\\ud800"
    assert row["doc_id"] is None


def test_name_of_an_entity_has_single_spaces_and_no_invisible_characters() -> None:
    entity = prediction("B-PER", "I-PER", spans=(Span(0, 2, "PER"),))
    for hidden in ("\u00ad", "\u061c", "\u200b", "\u200f", "\u2066", "\u2060", "\ufeff"):
        text = f"{hidden}Anna {hidden}\u00a0\n Smi{hidden}th{hidden}"
        words = (word(0, text[:5], form="Anna"), word(10, text[10:], form="Smith"))
        tables = tables_of(AnnotatedDocument(parsed=parsed(text, words), predictions=(entity,)))
        [row] = tables["entities"].to_pylist()
        assert (row["name"], row["text"]) == ("Anna Smith", text)


@given(st.text(alphabet="ab \n\t\u00a0\u2028e\u0301\U0001f600.", max_size=60))
def test_find_offset_fault_accepts_words_between_white_space(text: str) -> None:
    assert find_offset_fault(fakes.parsed_document(document(text))) is None


SHARED = (word(0, "don't", form="do"), word(0, "don't", form="not"))


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        (parsed("a b", (word(0, "a"), word(2, "b"))), None),
        (parsed("don't go", (*SHARED, word(6, "go"))), None),
        (parsed("cannot", (word(0, "can"), word(3, "not"))), None),
        (parsed("", ()), "expected a word or more"),
        (parsed("a b", (word(0, "a"),)), "' b' is in no word"),
        (parsed("x a b", (word(2, "a"), word(4, "b"))), "'x ' is in no word"),
        (parsed("a . b", (word(0, "a"), word(4, "b"))), "is in no word"),
        (parsed("a b", (word(2, "b"), word(0, "a"))), "is in no word"),
        (parsed("ab", (word(0, "ab"), word(1, "b"))), "expected offsets within 2..2"),
        (parsed("ab", (word(0, "ab"), word(0, "a"))), "expected offsets within 2..2"),
        (parsed("ab", (word(0, "ab", end=3),)), "expected offsets within 0..2"),
        (parsed("ab", (word(0, "", end=0), word(0, "ab"))), "expected offsets within"),
        (parsed("ab", (word(0, "aB"),)), "expected 'ab', got 'aB'"),
        (parsed("don't", (SHARED[0], SHARED[1]._replace(text="not"))), 'expected "don\'t"'),
        (parsed("a \u0600", (word(0, "a"),)), "is in no word"),
        (parsed("a \u200b", (word(0, "a"),)), None),
        (parsed("\ufeff a", (word(2, "a"),)), None),
    ],
)
def test_find_offset_fault_describes_the_fault(case: ParsedDocument, fault: str | None) -> None:
    found = find_offset_fault(case)
    assert (found is None) if fault is None else (found is not None and fault in found)


PORTUGUESE = "A fábrica pagou $3.5 milhões à cidade do Porto, e os vereadores do Porto disseram que ainda não chega."


def in_portuguese(parser: str, text: str = PORTUGUESE) -> dict[str, pa.Table]:
    words = tuple(word(match.start(), match[0], head=0) for match in re.finditer(r"\w+(?:\.\w+)?|[^\w\s]", text))
    places = [number for number, one in enumerate(words) if one.text == "Porto"]
    amount = next(number for number, one in enumerate(words) if one.text == "$")
    spans = (Span(amount, amount + 2, "MONEY"), *(Span(place, place + 1, "LOC") for place in places))
    annotated = AnnotatedDocument(
        parsed=parsed(text, words), predictions=(prediction(*["O"] * len(words), spans=spans),)
    )
    return annotated_tables([annotated], Signature(parser=parser, tagger="t"))


def test_the_rules_of_english_decide_no_value_in_another_language() -> None:
    tables = in_portuguese("stanza/parser_en@1")
    assert tables["documents"]["language"].to_pylist() == ["pt"]
    assert tables["documents"]["language_confidence"].to_pylist()[0] >= 0.9
    assert tables["entities"]["value"].to_pylist() == [None, None, None]
    assert tables["entities"]["identity"].to_pylist() == [0, 1, 1]
    assert tables["entities"]["canonical"].to_pylist() == ["$3.5", "Porto", "Porto"]


@pytest.mark.parametrize(("parser", "value"), [("stanza/parser_en@1", "3.5 USD"), ("stanza/parser_multi@1", None)])
def test_a_text_of_unknown_language_is_english_where_it_is_parsed_as_english(parser: str, value: str | None) -> None:
    tables = in_portuguese(parser, "$3.5, Porto")
    assert tables["documents"]["language"].to_pylist() == [None]
    assert tables["entities"]["value"].to_pylist()[0] == value
