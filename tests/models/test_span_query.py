"""Span queries: the probability of a span against enumeration of all label sequences."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf import Crf
from concord.models.decoders.distribution import (
    LabelDistribution,
    SampledDistribution,
    SoftmaxDistribution,
    SpanQuery,
    joint_probability,
)
from concord.models.labels import BIO, BIOES, LabelScheme, Span, encode_spans
from concord.models.taggers.token_table import span_query
from concord.models.taggers.two_stage import span_probability

Build = Callable[..., Any]
LENGTHS = [1, 2, 3, 4]
MASK = torch.arange(4)[None, :] < torch.tensor(LENGTHS)[:, None]


def vocabulary_of(kinds: Sequence[str], scheme: LabelScheme) -> Vocabulary:
    return Vocabulary(words=(), characters=(), labels=scheme.label_set(kinds), scheme=scheme)


def random_scores(labels: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(len(LENGTHS), 4, labels, dtype=torch.float64, generator=generator)
    return torch.where(MASK[:, :, None], scores, 1e3 * scores)


def random_crf(vocabulary: Vocabulary, seed: int, *, spread: float = 1.0) -> Crf:
    torch.manual_seed(seed)
    crf = Crf(vocabulary.labels, vocabulary.scheme, legal_mode=True).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_(0.0, spread)
    return crf


def enumerated(distribution: LabelDistribution, row: int, vocabulary: Vocabulary) -> dict[tuple[int, ...], float]:
    """Return the probability of every label sequence of a sentence."""
    found = {}
    for path in product(range(len(vocabulary.labels)), repeat=LENGTHS[row]):
        labels = torch.zeros(MASK.shape, dtype=torch.int64)
        labels[row, : LENGTHS[row]] = torch.tensor(path)
        found[path] = float(distribution.log_prob(labels)[row].exp())
    return found


def spans_of(path: Sequence[int], vocabulary: Vocabulary) -> tuple[Span, ...]:
    return vocabulary.scheme.entities([vocabulary.labels[label] for label in path])


def ask(row: int, span: Span, vocabulary: Vocabulary) -> SpanQuery:
    """Query one span, from the labels of a sentence with no other span."""
    labels = torch.zeros(MASK.shape, dtype=torch.int64)
    assert vocabulary.scheme.spans is not None
    names = encode_spans([span], LENGTHS[row], vocabulary.scheme.spans)
    labels[row, : LENGTHS[row]] = torch.tensor([vocabulary.labels.index(name) for name in names])
    query = span_query(labels, [(0, length) for length in LENGTHS], range(len(LENGTHS)), vocabulary)
    assert query is not None
    return query


def every_span(kinds: Sequence[str], length: int) -> list[Span]:
    return [Span(start, end, kind) for start in range(length) for end in range(start + 1, length + 1) for kind in kinds]


def assert_exact(distribution: LabelDistribution, vocabulary: Vocabulary, kinds: Sequence[str]) -> None:
    for row, length in enumerate(LENGTHS):
        expected: defaultdict[Span, float] = defaultdict(float)
        for path, share in enumerated(distribution, row, vocabulary).items():
            for span in spans_of(path, vocabulary):
                expected[span] += share
        for span in every_span(kinds, length):
            (found,) = distribution.span_probability(ask(row, span, vocabulary)).tolist()
            assert found == pytest.approx(expected[span], abs=1e-6), span


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "kinds"), [(BIO, ("X", "Y")), (BIO, ("X",)), (BIOES, ("X",))])
@torch.inference_mode()
def test_span_probability_sums_over_all_label_sequences_with_the_span(
    scheme: LabelScheme, kinds: Sequence[str]
) -> None:
    vocabulary = vocabulary_of(kinds, scheme)
    scores = random_scores(len(vocabulary.labels), seed=1)
    assert_exact(SoftmaxDistribution(scores, MASK), vocabulary, kinds)
    assert_exact(random_crf(vocabulary, seed=2)(scores, MASK), vocabulary, kinds)


@pytest.mark.parametrize("spread", [60.0, 400.0])
@torch.inference_mode()
def test_span_probability_is_exact_for_scores_far_apart(spread: float) -> None:
    vocabulary = vocabulary_of(("X",), BIO)
    assert_exact(random_crf(vocabulary, seed=3, spread=spread)(random_scores(3, seed=4), MASK), vocabulary, ("X",))


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["softmax", "crf"])
@torch.inference_mode()
def test_span_probability_of_weight_samples_is_the_mean_of_joint_probabilities(decoder: str) -> None:
    vocabulary = vocabulary_of(("X",), BIO)
    decode: Any = SoftmaxDistribution if decoder == "softmax" else random_crf(vocabulary, seed=7)
    samples = [decode(random_scores(3, seed=seed), MASK) for seed in range(8, 11)]
    sampled, query = SampledDistribution(samples[0], samples), ask(3, Span(0, 3, "X"), vocabulary)
    expected = 0.0
    for sample in samples:
        paths = enumerated(sample, 3, vocabulary)
        expected += sum(share for path, share in paths.items() if Span(0, 3, "X") in spans_of(path, vocabulary)) / 3
    assert float(sampled.span_probability(query)) == pytest.approx(expected, abs=1e-6)
    means = torch.stack([sample.marginals() for sample in samples]).mean(dim=0)
    assert abs(float(joint_probability(means, query)) - expected) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["softmax", "crf"])
@pytest.mark.parametrize("scheme", [BIO, BIOES])
@torch.inference_mode()
def test_span_probability_of_both_stages_is_joint_over_samples_and_constant_in_stage_two(
    scheme: LabelScheme, decoder: str
) -> None:
    vocabulary = vocabulary_of(("X",), scheme)
    labels = len(vocabulary.labels)
    samples = torch.stack([random_scores(labels, seed=seed).softmax(dim=-1) for seed in range(3)])
    decode: Any = SoftmaxDistribution if decoder == "softmax" else random_crf(vocabulary, seed=8)
    decided = decode(random_scores(labels, seed=9), MASK)
    span, row = Span(0, 3, "X"), 3
    query = ask(row, span, vocabulary)
    shares = enumerated(decided, row, vocabulary)
    for pattern in product([False, True], repeat=4):
        refined = torch.zeros(MASK.shape, dtype=torch.bool)
        refined[row] = torch.tensor(pattern)
        # All mixtures of a drafted label sequence of a sample and a label sequence of stage two, taken apart by word.
        wanted = {path for path in product(range(labels), repeat=4) if span in spans_of(path, vocabulary)}
        drafts = {tuple(path[word] for word in range(4) if not pattern[word]) for path in wanted}
        seconds = {tuple(path[word] for word in range(4) if pattern[word]) for path in wanted}
        drafted = sum(
            float(sample[row, [word for word in range(4) if not pattern[word]], list(path)].prod()) / 3
            for sample in samples
            for path in drafts
        )
        second = sum(
            share
            for path, share in shares.items()
            if tuple(path[word] for word in range(4) if pattern[word]) in seconds
        )
        found = float(span_probability(samples, decided, refined, query))
        assert found == pytest.approx(drafted * second, abs=1e-6), pattern


@pytest.mark.slow
@given(st.lists(st.sampled_from(BIOES.label_set(["X", "Y"])), min_size=1, max_size=12), st.data())
def test_pieces_of_a_cut_sentence_add_up_to_its_spans(labels: list[str], data: st.DataObject) -> None:
    for scheme in (BIO, BIOES):
        names = [label for label in labels if scheme is BIOES or label[0] not in "ES"] or ["O"]
        seam = data.draw(st.integers(1, len(names)))
        left, right = scheme.entity_pieces(names[:seam]), scheme.entity_pieces(names[seam:] or ["O"])
        pieces = {*left, *(Span(span.start + seam, span.end + seam, span.label) for span in right)}
        for span in scheme.entities(names):
            cuts = sorted({span.start, span.end, *({seam} if span.start < seam < span.end else ())})
            assert all(Span(start, end, span.label) in pieces for start, end in pairwise(cuts))


class _Certain(SoftmaxDistribution):
    """Labels every window as a row of two-word entities, with the same probability for each word."""

    def __init__(self, vocabulary: Vocabulary, mask: Tensor) -> None:
        names = [vocabulary.labels.index(name) for name in ("B-PER", "E-PER")]
        chosen = torch.tensor([names[place % 2] for place in range(mask.shape[1])])
        super().__init__(4 * torch.nn.functional.one_hot(chosen, len(vocabulary.labels)).expand(*mask.shape, -1), mask)


def test_an_entity_across_a_seam_has_the_product_of_the_probabilities_of_its_parts(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagger = build("bilstm_softmax", window_words=8, window_overlap=2)
    monkeypatch.setattr(
        type(tagger), "distribution", lambda self, batch: _Certain(self.vocabulary, batch.mask), raising=True
    )
    ((prediction,),) = tagger.predict_documents([[Sentence(words=("Ada",) * 26)]])
    # Windows keep the words 0..6, 7..12, 13..18 and 19..25, so that three entities cross a seam.
    assert [(span.start, span.end) for span in prediction.spans] == [(place, place + 2) for place in range(0, 26, 2)]
    sure = prediction.probabilities[0]
    assert prediction.confidences == pytest.approx([sure**2] * 13)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [BIO, BIOES])
def test_a_span_is_no_more_probable_than_its_least_probable_word(
    scheme: LabelScheme, build: Build, documents: list[list[Sentence]]
) -> None:
    sentences = [sentence for document in documents for sentence in document]
    vocabulary = Vocabulary.from_sentences(sentences, scheme=scheme)
    spans = Counter[str]()
    for name, seed in product(("bilstm_crf", "uanet", "variational_lstm", "structured_refinement"), range(2)):
        tagger = build(name, vocabulary=vocabulary, seed=seed)
        for threshold in (-1.0, 1.5, 9.0):
            for prediction in tagger.predict_documents([sentences], PredictOptions(threshold=threshold))[0]:
                spans[name] += len(prediction.spans)
                for span, confidence in zip(prediction.spans, prediction.confidences, strict=True):
                    assert 0 < confidence <= min(prediction.probabilities[span.start : span.end]) + 1e-6
    assert all(spans[name] for name in ("bilstm_crf", "uanet", "structured_refinement"))
