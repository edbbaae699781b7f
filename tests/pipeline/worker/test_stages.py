"""The stages of a shard and the worker around them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from concord_testing import fakes, runs

from concord.models.data.outputs import DEFAULT_OPTIONS, Prediction, PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.errors import ModelError
from concord.models.labels import Span
from concord.models.terms import Term, TermMatcher
from concord.pipeline.config import TaggerRunConfig
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import PlanError, StoreError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.output.schema import Signature
from concord.pipeline.output.shard_stats import count_margins, count_rows
from concord.pipeline.output.tables import annotated_tables, error_table
from concord.pipeline.plan import Plan
from concord.pipeline.planning.planner import Planner
from concord.pipeline.worker.shard_worker import build_worker
from concord.pipeline.worker.stages import ParseStage, TagStage

DEAD_LETTER = DeadLetter(doc_id=None, source_uri="/in", position=0, stage="read", error="e", message="m")


def documents(*texts: str) -> list[Document]:
    return [
        Document(doc_id=f"d{number}", text=text, source_uri="/in", source_position=number)
        for number, text in enumerate(texts)
    ]


def parsed(*texts: str) -> list[ParsedDocument]:
    return [fakes.parsed_document(document) for document in documents(*texts)]


def test_parse_stage_parses_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    parse = fakes.FakeParser.parse

    def record(self: fakes.FakeParser, documents: Sequence[Document], **_: Any) -> list[ParsedDocument | DeadLetter]:
        calls.append([document.doc_id for document in documents])
        return parse(self, documents)

    monkeypatch.setattr(fakes.FakeParser, "parse", record)
    results = ParseStage(fakes.FakeParser(), batch_documents=2).run(documents("a", "b", "c"))
    assert calls == [["d0", "d1"], ["d2"]]
    assert [result.document.doc_id for result in results if isinstance(result, ParsedDocument)] == ["d0", "d1", "d2"]


def test_parse_stage_makes_a_dead_letter_of_only_the_document_that_fails_or_has_wrong_offsets() -> None:
    texts = [*["a"] * 5, "b PARSERFAULT", "a", "a LOSTTEXT", "a"]
    results = ParseStage(fakes.FakeParser(), batch_documents=100).run(documents(*texts))
    assert len(results) == 9
    letter, offsets = [result for result in results if isinstance(result, DeadLetter)]
    assert (letter.doc_id, letter.source_uri, letter.position) == ("d5", "/in", 5)
    assert (letter.stage, letter.error) == ("parse", "parse_failed")
    assert letter.message == "document 'd5': RuntimeError: the parser cannot do this"
    assert (offsets.doc_id, offsets.stage, offsets.error) == ("d7", "parse", "offsets")


def test_stages_pass_dead_letters_through() -> None:
    assert DEAD_LETTER in ParseStage(fakes.FakeParser(), batch_documents=9).run([*documents("a"), DEAD_LETTER])
    assert DEAD_LETTER in TagStage(fakes.FakeTagger(), TaggerRunConfig()).run([*parsed("a"), DEAD_LETTER])
    assert ParseStage(fakes.FakeParser(), batch_documents=9).run([DEAD_LETTER]) == [DEAD_LETTER]
    assert TagStage(fakes.FakeTagger(), TaggerRunConfig()).run([DEAD_LETTER]) == [DEAD_LETTER]


def test_store_error_ends_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("no space")

    monkeypatch.setattr(fakes.FakeParser, "parse", fail)
    with pytest.raises(StoreError):
        ParseStage(fakes.FakeParser(), batch_documents=9).run(documents("a", "b"))


def test_tag_stage_joins_pieces_of_a_sentence_and_cuts_the_predictions() -> None:
    text = "a b c d e f g New York City now ends."
    (document,) = parsed(text)
    assert [(len(sentence.words), sentence.continues) for sentence in document.sentences] == [(8, False), (4, True)]
    tagger = fakes.FakeTagger()
    (result,) = TagStage(tagger, TaggerRunConfig()).run([document])
    ((sentence,),) = tagger.calls[0]
    assert sentence.words == tuple(text.split())
    assert sentence.heads == (0, 1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11)
    assert isinstance(result, AnnotatedDocument)
    first, second = result.predictions
    assert first.labels == ("O",) * 7 + ("B-PER",)
    assert second.labels == ("I-PER", "I-PER", "O", "O")
    assert (first.spans, second.spans) == ((Span(7, 10, "PER"),), ())
    for field in ("draft_labels", "probabilities", "margins", "uncertainty", "refined"):
        assert [len(getattr(first, field)), len(getattr(second, field))] == [8, 4]


def test_tag_stage_says_which_entities_are_terms() -> None:
    terms = TermMatcher([Term(label="PER", pattern=text) for text in ("New York City", "Ada", "c")])
    tagger = fakes.FakeTagger()
    texts = parsed("a b c d e f g New York City now Ends.", "Ada Smith met c.", "Ada met Bob.", "no name")
    results = TagStage(tagger, TaggerRunConfig(), terms=terms).run(texts)
    (call,) = tagger.calls
    assert [[sentence.terms for sentence in document] for document in call] == [
        [("O", "O", "B-PER", *"OOOO", "B-PER", "I-PER", "I-PER", "O", "O")],
        [("B-PER", "O", "O", "O")],
        [("B-PER", "O", "O")],
        [None],
    ]
    found = [result.predictions for result in results if isinstance(result, AnnotatedDocument)]
    sources = [[(prediction.spans, prediction.sources) for prediction in predictions] for predictions in found]
    assert sources == [
        [((Span(7, 10, "PER"),), ("terms",)), ((Span(3, 4, "PER"),), ("model",))],
        [((Span(0, 2, "PER"),), ("model",))],
        [((Span(0, 1, "PER"), Span(2, 3, "PER")), ("terms", "model"))],
        [((), ())],
    ]


def test_tag_stage_calls_the_tagger_once_unless_a_document_fails_which_alone_is_a_dead_letter() -> None:
    tagger = fakes.FakeTagger()
    TagStage(tagger, TaggerRunConfig()).run(parsed("a b. c", "", "d"))
    (call,) = tagger.calls
    assert [[sentence.words for sentence in document] for document in call] == [[("a", "b."), ("c",)], [], [("d",)]]
    results = TagStage(tagger, TaggerRunConfig()).run(parsed("a", "b TAGGERFAULT", "c", "d", "e"))
    assert [type(result).__name__ for result in results].count("AnnotatedDocument") == 4
    (letter,) = [result for result in results if isinstance(result, DeadLetter)]
    assert (letter.doc_id, letter.stage, letter.error) == ("d1", "tag", "tag_failed")


class ChangedTagger(fakes.FakeTagger):
    """Changes predictions of sentences that start with ``bad``."""

    def __init__(self, change: Callable[[Prediction], Prediction]) -> None:
        super().__init__()
        self._change = change

    def predict_documents(
        self, documents: Sequence[Sequence[Sentence]], options: PredictOptions = DEFAULT_OPTIONS, **call: Any
    ) -> list[list[Prediction]]:
        answers = super().predict_documents(documents, options, **call)
        return [
            [
                self._change(answer) if sentence.words[0] == "bad" else answer
                for sentence, answer in zip(document, answers_of, strict=True)
            ]
            for document, answers_of in zip(documents, answers, strict=True)
        ]


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: replace(answer, labels=answer.labels[1:]),
        lambda answer: replace(answer, uncertainty=(float("nan"),) * 2),
        lambda answer: replace(answer, probabilities=(float("inf"),) * 2),
    ],
)
def test_invalid_prediction_becomes_a_dead_letter(change: Callable[[Prediction], Prediction]) -> None:
    results = TagStage(ChangedTagger(change), TaggerRunConfig()).run(parsed("a b", "bad b"))
    assert [type(result).__name__ for result in results] == ["AnnotatedDocument", "DeadLetter"]


@pytest.mark.parametrize(("configured", "own", "used"), [(None, 0.35, 0.35), (0.1, 0.35, 0.1), (0.1, None, None)])
def test_threshold_of_the_run_applies_unless_the_tagger_has_one_stage(
    configured: float | None, own: float | None, used: float | None
) -> None:
    tagger = fakes.FakeTagger()
    tagger.threshold = own  # type: ignore[assignment]
    assert TagStage(tagger, TaggerRunConfig(threshold=configured)).threshold == used


def test_count_rows_counts_outcomes() -> None:
    (annotated,) = TagStage(fakes.FakeTagger(), TaggerRunConfig()).run(parsed("Anna saw it. quickly"))
    assert isinstance(annotated, AnnotatedDocument)
    tables = annotated_tables([annotated], Signature(parser="p", tagger="t"))
    tables["errors"] = error_table([DEAD_LETTER, DEAD_LETTER], Signature(parser="p", tagger="t"))
    counts = count_rows(tables, threshold=0.35)
    assert counts == {
        "documents": 1,
        "sentences": 2,
        "tokens": 4,
        "entities": 1,
        "scored_entities": 1,
        "confidence_millionths": 900_000,
        "entities.PER": 1,
        "uncertain_tokens": 2,
        "refined_tokens": 2,
        "refined_sentences": 2,
        "changed_tokens": 1,
        "repeated_names": 0,
        "unlabelled_names": 0,
        "dead_letters.read.e": 2,
    }


def test_count_rows_counts_repeated_names_that_are_labelled_once() -> None:
    # Runs of capitalized words are names, so that those in upper case within a run of their own are, too.
    documents = [
        found
        for found in TagStage(fakes.FakeTagger(), TaggerRunConfig()).run(
            parsed("Anna Smith saw it. anna Smith left. Anna Smith slept", "the Anna Smith is one. Bob fell. Bob")
        )
        if isinstance(found, AnnotatedDocument)
    ]
    counts = count_rows(annotated_tables(documents, Signature(parser="p", tagger="t")), threshold=0.35)
    assert (counts["repeated_names"], counts["unlabelled_names"]) == (3, 1)


def test_near_ties_are_small_margins_and_uncertainties_at_the_threshold() -> None:
    (annotated,) = TagStage(fakes.FakeTagger(), TaggerRunConfig()).run(parsed("a bb ccc dddd"))
    assert isinstance(annotated, AnnotatedDocument)
    (prediction,) = annotated.predictions
    near = replace(prediction, margins=(0.5, 9e-6, 0.5, 2e-5), uncertainty=(0.35, 0.1, 0.350009, 0.36))
    documents = [replace(annotated, predictions=(near,))]
    assert count_margins(documents, threshold=0.35) == {"near_ties": 3}
    assert count_margins(documents, threshold=None) == {"near_ties": 1}


class ShakyTagger(fakes.FakeTagger):
    """Loses every entity when it computes in bf16."""

    def predict_documents(
        self, documents: Sequence[Sequence[Sentence]], options: PredictOptions = DEFAULT_OPTIONS, **call: Any
    ) -> list[list[Prediction]]:
        answers = super().predict_documents(documents, options, **call)
        if options.precision == "fp32":
            return answers
        return [
            [replace(answer, labels=("O",) * len(answer.labels), spans=(), confidences=()) for answer in document]
            for document in answers
        ]


def test_bf16_run_counts_labels_that_differ_from_fp32_among_the_first_words_of_a_shard() -> None:
    results = TagStage(ShakyTagger(), TaggerRunConfig(precision="bf16")).run(parsed("Anna saw it.", "no name"))
    documents = [result for result in results if isinstance(result, AnnotatedDocument)]
    counts = count_margins(documents, threshold=0.35)
    assert (counts["bf16.compared_tokens"], counts["bf16.changed_tokens"]) == (3, 1)
    tagger = ShakyTagger()
    TagStage(tagger, TaggerRunConfig(precision="bf16")).run(parsed("word " * 2500, "more words", "and more"))
    TagStage(tagger, TaggerRunConfig(precision="bf16")).run(parsed(*["some words"] * 30))
    assert [len(call) for call in tagger.calls] == [3, 1, 30, 3]


def plan_for(tmp_path: Path, *extra: str) -> Plan:
    source = runs.write_collection(tmp_path / "in.jsonl", documents=3, extra=extra)
    config = runs.job(source, tmp_path / "out", planning={"shard_bytes": 10**6})
    return Planner(runs.resolved(config)).resolve()


def test_shard_is_committed_with_its_dead_letters_in_input_order(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, "SURROGATE", "x TAGGERFAULT", "", "PARSERFAULT", "LOSTTEXT")
    report, timings = fakes.build_fake_worker(plan).run(plan.shards[0])
    assert (report.read, report.annotated, report.unchanged, report.dead_letters) == (8, 4, 0, 4)
    assert report.stats["documents"] == 4
    # The word of the document that no table can hold was tagged too.
    assert timings.words == report.stats["tokens"] + 1
    errors = read_part(OutputFolder(tmp_path / "out").part(report, "errors")).to_pylist()
    assert [(row["doc_id"], row["stage"], row["error"]) for row in errors] == [
        ("d3", "write", "write_failed"),
        ("d4", "tag", "tag_failed"),
        ("d6", "parse", "parse_failed"),
        ("d7", "parse", "offsets"),
    ]
    documents = read_part(OutputFolder(tmp_path / "out").part(report, "documents"))
    assert documents["doc_id"].to_pylist() == ["d0", "d1", "d2", "d5"]
    assert documents["n_tokens"].to_pylist()[-1] == 0


def test_shard_with_only_dead_letters_is_committed(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    worker = fakes.build_fake_worker(plan)
    fakes.wrap_stage(
        worker.tag_stage,
        lambda _run, records, **_: [replace(DEAD_LETTER, position=number) for number, _ in enumerate(records)],
    )
    report, _ = worker.run(plan.shards[0])
    assert (report.annotated, report.dead_letters) == (0, 3)
    assert [report.files[name].rows for name in ("documents", "sentences", "tokens", "entities")] == [0, 0, 0, 0]


def test_committed_shard_is_not_done_again(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    worker = fakes.build_fake_worker(plan)
    first, _ = worker.run(plan.shards[0])
    fakes.wrap_stage(worker.read_stage, lambda *_: pytest.fail("read again"))
    second, timings = worker.run(plan.shards[0])
    assert second == first
    assert timings.words == 0


def test_worker_whose_driver_is_gone_writes_nothing_into_a_newer_generation(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    folder = OutputFolder(tmp_path / "out")
    folder.write_plan(plan)
    worker = fakes.build_fake_worker(plan)
    folder.write_plan(plan.model_copy(update={"generation": 1}))
    with pytest.raises(PlanError, match="generation 0 is dropped, since 1 has been started"):
        worker.run(plan.shards[0])
    assert not (tmp_path / "out" / "_run" / "parts").exists()


def test_build_worker_rejects_a_missing_tagger(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        build_worker(plan_for(tmp_path))
