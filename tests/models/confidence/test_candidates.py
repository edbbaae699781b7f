"""Candidates: the spans that a tagger may have missed, and their probabilities."""

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.confidence import Calibration, Guarantee, Temperature, find_spans
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.labels import BIO, BIOES, TOKENS, LabelScheme, Span, encode_spans
from concord.models.taggers.base import Tagger

Build = Callable[..., Tagger]
SENTENCE = Sentence(words=("Ada", "saw", "Rome"), labels=("B-PER", "O", "B-LOC"))


def enumerated(probabilities: np.ndarray, vocabulary: Vocabulary, least: float) -> dict[Span, float]:
    """Return the spans of one sentence by trying all of them."""
    scheme = vocabulary.scheme.spans
    assert scheme is not None
    words, found = len(probabilities), {}
    for span in (Span(start, end, kind) for start in range(words) for end in range(start + 1, words + 1) for kind in
                 vocabulary.entity_types):  # fmt: skip
        labels = encode_spans([span], words, scheme)[span.start : span.end]
        columns = [vocabulary.labels.index(label) for label in labels]
        needed = list(probabilities[range(span.start, span.end), columns])
        if scheme == "BIO" and span.end < words:
            needed.append(1 - probabilities[span.end, vocabulary.labels.index(f"I-{span.label}")])
        if min(needed) >= least:
            found[span] = float(min(needed))
    return found


@pytest.mark.parametrize("scheme", [BIO, BIOES])
@given(lengths=st.lists(st.integers(0, 5), max_size=4), least=st.sampled_from([0.001, 0.05, 0.4]), seed=st.integers(0))
def test_spans_are_those_of_an_enumeration(scheme: LabelScheme, lengths: list[int], least: float, seed: int) -> None:
    vocabulary = Vocabulary.from_sentences([SENTENCE], scheme=scheme)
    shape = sum(lengths), len(vocabulary.labels)
    probabilities = np.random.default_rng(seed).dirichlet([0.3] * shape[1], size=shape[0]).reshape(shape)
    sentences = np.split(probabilities, np.cumsum(lengths)[:-1]) if lengths else []
    expected = [enumerated(sentence, vocabulary, least) for sentence in sentences]
    found = find_spans(probabilities, lengths, vocabulary, least=least)
    assert [list(spans) for spans in found] == [sorted(spans) for spans in expected]
    assert found == [pytest.approx(spans) for spans in expected]


def test_longest_candidate_has_ten_words() -> None:
    vocabulary = Vocabulary.from_sentences([SENTENCE], scheme=BIOES)
    [found] = find_spans(np.full((30, len(vocabulary.labels)), 0.1), [30], vocabulary, least=0.1)
    assert max(span.end - span.start for span in found) == 10
    assert len(found) == 2 * sum(30 - length for length in range(10))


def test_word_labels_have_no_spans() -> None:
    vocabulary = Vocabulary.from_sentences([Sentence(words=("Ada",), labels=("NNP",))], scheme=TOKENS)
    assert find_spans(np.ones((2, 1)), [1, 1], vocabulary, least=0.1) == [{}, {}]


@pytest.mark.parametrize("name", ["bilstm_crf", "doc_uanet"])
def test_candidates_are_the_same_in_any_batch_and_change_no_label(name: str, build: Build) -> None:
    tagger = build(name)
    words = [tuple(f"w{number}" for number in range(length)) for length in (1, 7, 3, 12, 2)]
    documents = [[Sentence(words=sentence) for sentence in words], [Sentence(words=words[1])]]
    tagger.calibration = Calibration(
        tokens=Temperature(temperature=1.0), guarantee=Guarantee(recall=0.9, threshold=0.02, documents=20)
    )
    plain = tagger.predict_documents(documents)
    found = [
        tagger.predict_documents(documents, PredictOptions(batch_words=most), candidates=True) for most in (1, 4096)
    ]
    for small, large, without in zip(*(chain(*predictions) for predictions in (*found, plain)), strict=True):
        assert (small.spans, small.sources) == (large.spans, large.sources)
        assert small.confidences == pytest.approx(large.confidences, abs=1e-6)
        entities = len(without.spans)
        assert (small.labels, small.spans[:entities]) == (without.labels, without.spans)
        assert set(small.sources[:entities]) <= {"model"}
        assert set(small.sources[entities:]) <= {"candidate"}
    assert any("candidate" in prediction.sources for prediction in found[0][0])


def test_tagger_without_a_guarantee_refuses_candidates(build: Build) -> None:
    with pytest.raises(ConfigError, match="expected a tagger with a guarantee"):
        build("bilstm_crf").predict_documents([[SENTENCE]], candidates=True)
