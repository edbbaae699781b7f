"""Certain labels are kept, are in the memory, and send other occurrences of their words to stage two."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from concord.models.data.sentence import Sentence
from concord.models.options import PredictOptions
from concord.models.two_stage.certain_labels import CertainLabels
from concord.models.two_stage.config import MemoryConfig
from concord.models.two_stage.document_memory import DocumentMemory, number_words
from concord.models.two_stage.refine_network import RefineNetwork

Documents = list[list[Sentence]]
Draw = Callable[..., Documents]
NEVER = 100.0
"""A threshold above every entropy."""


@pytest.fixture(params=["uanet", "doc_uanet"])
def tagger(request: pytest.FixtureRequest, build: Callable[..., Any]) -> Any:
    return build(request.param)


def test_no_certain_labels_change_nothing(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(0, documents=3)
    assert tagger.predict_documents(documents) == tagger.predict_documents(documents, certain=[{}, {}, {}])


@pytest.mark.parametrize("threshold", [-1.0, 0.5, NEVER])
def test_certain_labels_are_kept(tagger: Any, random_documents: Draw, threshold: float) -> None:
    documents = random_documents(1, documents=2)
    documents[1].insert(0, Sentence(words=("Zed", "Ran", "home")))
    kind = tagger.entity_types[0]
    words = sum(len(sentence.words) for sentence in documents[1])
    certain = {0: f"B-{kind}", 1: f"I-{kind}", 2: "O", words - 1: f"B-{kind}"}
    found = tagger.predict_documents(documents, PredictOptions(threshold=threshold), certain=[{}, certain])
    labels = [label for prediction in found[1] for label in prediction.labels]
    chances = [chance for prediction in found[1] for chance in prediction.probabilities]
    assert [labels[place] for place in certain] == list(certain.values())
    if tagger.calibration is None:
        assert [chances[place] for place in certain] == [1.0] * 4
    # Nothing passes from one document to another, but other batches round differently.
    plain = tagger.predict_documents(documents, PredictOptions(threshold=threshold))[0]
    assert [entry.labels for entry in found[0]] == [entry.labels for entry in plain]
    for entry, other in zip(found[0], plain, strict=True):
        assert entry.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_other_occurrences_are_read_again_with_the_certain_label(
    build: Callable[..., Any], record_calls: Callable[..., Any]
) -> None:
    tagger = build("doc_uanet")
    kind = tagger.entity_types[0]
    document = [
        Sentence(words=("Zed", "ran", "home")),
        Sentence(words=("then", "zed", "slept")),
        Sentence(words=("a",)),
    ]
    with record_calls(RefineNetwork) as calls:
        table = tagger.tabulate([document], PredictOptions(threshold=NEVER), certain=[{0: f"B-{kind}"}])
    drafted = tagger.vocabulary.labels[int(table.draft[4])]
    assert table.label[0] == tagger.vocabulary.labels.index(f"S-{kind}")
    # Only where stage one drafts another type than the certain one.
    disagrees = not drafted.endswith(kind)
    assert table.refined.tolist() == [False] * 4 + [disagrees] + [False] * 2
    if disagrees:
        [(_, arguments)] = calls
        contents = arguments[3]
        assert contents.probabilities.max(dim=-1).values.tolist() == [1.0]


def test_agreeing_drafts_stay(build: Callable[..., Any]) -> None:
    tagger = build("doc_uanet")
    document = [Sentence(words=("Zed", "ran", "home")), Sentence(words=("then", "zed", "slept"))]
    plain = tagger.tabulate([document], PredictOptions(threshold=NEVER))
    prefix, _, kind = tagger.vocabulary.labels[int(plain.draft[4])].partition("-")
    found = tagger.tabulate([document], PredictOptions(threshold=NEVER), certain=[{0: f"B-{kind}" if kind else prefix}])
    assert torch.equal(found.label[1:], plain.label[1:])
    assert not found.refined.any()


def test_certain_words_are_read_before_other_occurrences() -> None:
    config = MemoryConfig(slots=2)
    words = number_words([["a", "b", "a", "a", "A", "b"]], "lower")
    options: dict[str, Any] = {"hidden": 2, "labels": 3, "device": torch.device("cpu")}
    plain = DocumentMemory(words, config, **options).index
    first = DocumentMemory(words, config, **options, first=[4]).index
    assert plain.tolist() == [[2, 3], [5, -1], [0, 3], [0, 2], [0, 2], [1, -1]]
    assert first.tolist() == [[4, 2], [5, -1], [4, 0], [4, 0], [0, 2], [1, -1]]
    assert torch.equal(DocumentMemory(words, MemoryConfig(slots=0), **options, first=[4]).index, torch.empty(6, 0))


def test_contradicting_certain_labels_leave_other_occurrences_to_stage_two(build: Callable[..., Any]) -> None:
    tagger = build("doc_uanet")
    kind = tagger.entity_types[0]
    document = [Sentence(words=("Zed", "Zed", "zed"))]
    table = tagger.tabulate([document], PredictOptions(threshold=NEVER), certain=[{0: f"B-{kind}", 1: "O"}])
    assert table.refined.tolist() == [False, False, True]


def test_unknown_types_and_words_that_are_not_there(build: Callable[..., Any]) -> None:
    tagger = build("doc_uanet")
    document = [Sentence(words=("Zed", "ran"))]
    assert CertainLabels.of([document], [{}], tagger.vocabulary, "lower") is None
    plain = tagger.predict_documents([document])
    assert tagger.predict_documents([document], certain=[{0: "B-NOSUCHTYPE"}]) == plain
    with pytest.raises(ValueError, match="words from 0 to 1"):
        tagger.predict_documents([document], certain=[{2: "O"}])
    with pytest.raises(ValueError, match="two stages"):
        build("bilstm_crf").predict_documents([document], certain=[{0: "O"}])
