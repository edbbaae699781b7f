"""Taggers whose encoder reads passages of a document at once."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from concord.models.data.outputs import Prediction, PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.training.fit import CaseNoise, change_case
from concord.models.words.encoder import load_encoder
from concord.models.words.encoder_config import BUNDLED_NAME, EncoderConfig

pytestmark = pytest.mark.slow

ENCODER = {"source": BUNDLED_NAME, "passage_words": 20}
Build = Callable[..., Any]
Draw = Callable[..., list[list[Sentence]]]


def tagger_of(build: Build, name: str, **changes: Any) -> Any:
    """Return a tiny tagger over the bundled encoder."""
    section = ["representation"] if name == "bilstm_crf" else ["draft_representation", "refine_representation"]
    sections = {key: {"word_dimension": 4, "characters": None, "encoder_dimension": 8} for key in section}
    return build(name, **sections, encoder=ENCODER | changes)


def numbers(found: list[list[Prediction]]) -> list[Any]:
    return [(one.labels, one.uncertainty, one.probabilities) for document in found for one in document]


@pytest.mark.parametrize("name", ["bilstm_crf", "doc_uanet"])
def test_predictions_depend_on_the_document_alone(name: str, build: Build, random_documents: Draw) -> None:
    tagger = tagger_of(build, name)
    documents = random_documents(5, documents=4, sentences=9)
    together = tagger.predict_documents(documents)
    alone = [tagger.predict_documents([document])[0] for document in documents]
    small = tagger.predict_documents(documents[::-1], PredictOptions(batch_words=30))[::-1]
    for found in (alone, small):
        for left, right in zip(numbers(together), numbers(found), strict=True):
            assert left[0] == right[0]
            assert left[2] == pytest.approx(right[2], abs=1e-5)


def test_a_sentence_is_read_with_its_neighbours(build: Build, random_documents: Draw) -> None:
    tagger = tagger_of(build, "doc_uanet")
    (document,) = random_documents(7, documents=1, sentences=8)
    windows = tagger.windows([document])
    batch = tagger.encode([window.sentence for window in windows])
    features = tagger.encoder_features(batch)
    encoder = load_encoder(tagger.config.encoder, "cpu")
    for row, sentence in enumerate(batch.sentences):
        (whole,) = encoder.features([sentence.passage.words])
        place = slice(sentence.passage_start, sentence.passage_start + len(sentence.words))
        assert torch.equal(features[row, : len(sentence.words)], whole[place])
    alone = tagger_of(build, "doc_uanet", passage_words=0).predict_documents([document])
    assert numbers(alone) != numbers(tagger.predict_documents([document]))


def test_a_document_of_one_sentence_is_read_as_without_passages(build: Build, random_documents: Draw) -> None:
    documents = random_documents(3, documents=6, sentences=1)
    found = [tagger_of(build, "doc_uanet", passage_words=words).predict_documents(documents) for words in (0, 20)]
    assert numbers(found[0]) == numbers(found[1])


def test_each_passage_is_encoded_once_in_a_call(
    build: Build, random_documents: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagger = tagger_of(build, "doc_uanet")
    encoder = load_encoder(tagger.config.encoder, "cpu")
    encode = encoder.features
    read: list[Sequence[str]] = []

    def count(words: Sequence[Sequence[str]]) -> list[torch.Tensor]:
        read.extend(words)
        return encode(words)

    monkeypatch.setattr(encoder, "features", count)
    documents = random_documents(11, documents=3, sentences=10)
    tagger.predict_documents(documents, PredictOptions(batch_words=16))
    assert sum(len(words) for words in read) == sum(
        len(sentence.words) for document in documents for sentence in document
    )


def test_kept_features_are_those_of_passages(build: Build, random_documents: Draw) -> None:
    tagger = tagger_of(build, "doc_uanet", last_layers=3)
    documents = random_documents(13, documents=2, sentences=6)
    tagger.keep_features(documents)
    kept = load_encoder(tagger.config.encoder, "cpu").kept
    passages = {one.passage.words for document in tagger.with_passages(documents) for one in document}
    assert kept.keys() == passages
    with torch.inference_mode():
        tagger.train()
        trained = [one for document in tagger.with_passages(documents) for one in document]
        tagger.encoder_features(tagger.encode(trained))
    assert all(one.passage.features is None for one in trained)


def test_a_sentence_of_another_case_is_read_alone(build: Build, random_documents: Draw) -> None:
    (document,) = tagger_of(build, "doc_uanet").with_passages(random_documents(17, documents=1))
    ((unit,),) = change_case([[document]], CaseNoise(upper=0.5), random.Random(1))
    assert {one.passage is None for one in unit} == {True, False}
    assert all((one.passage is None) == (one.words != old.words) for one, old in zip(unit, document, strict=True))


def test_a_tuned_encoder_reads_no_passages() -> None:
    with pytest.raises(ValueError, match="passage_words"):
        EncoderConfig.from_mapping({"source": "folder", "sha256": None, "tuned": True, "passage_words": 20})
