"""The CRF against plain enumeration of all label sequences."""

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from models.decoders.crf import Crf, CrfDistribution
from models.labels import Scheme, decode_spans, encode_spans, label_set

LENGTHS = torch.tensor([1, 2, 4, 5])
MASK = torch.arange(5)[None, :] < LENGTHS[:, None]


def random_crf(labels: tuple[str, ...], scheme: Scheme = "BIO", *, legal_mode: bool = False, seed: int = 0) -> Crf:
    torch.manual_seed(seed)
    crf = Crf(labels, scheme, legal_mode=legal_mode).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    return crf


def random_emissions(labels: int, *, seed: int = 1) -> Tensor:
    """Draw emissions for sentences of ``LENGTHS``; the padded ones are large, so that reading them would show."""
    generator = torch.Generator().manual_seed(seed)
    emissions = torch.randn(len(LENGTHS), 5, labels, dtype=torch.float64, generator=generator)
    return torch.where(MASK[:, :, None], emissions, 1e3 * emissions)


def scored_paths(crf: Crf, emissions: Tensor) -> dict[tuple[int, ...], float]:
    """Score every label sequence of one sentence, emissions of shape (T, L), one term at a time."""
    scores = {}
    for path in product(range(emissions.shape[1]), repeat=emissions.shape[0]):
        score = float(crf.start[path[0]]) + float(crf.end[path[-1]])
        score += sum(float(emissions[step, label]) for step, label in enumerate(path))
        score += sum(float(crf.transitions[left, right]) for left, right in pairwise(path))
        scores[path] = score
    return scores


def sentences(crf: Crf, emissions: Tensor) -> list[dict[tuple[int, ...], float]]:
    return [scored_paths(crf, emissions[row, :length]) for row, length in enumerate(LENGTHS.tolist())]


@pytest.fixture(params=[1, 2, 3])
def labels(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return label_set(["X"], "BIO")[: request.param]


@torch.inference_mode()
def test_partition_log_prob_marginals_and_mode_equal_enumeration(labels: tuple[str, ...]) -> None:
    crf, emissions = random_crf(labels), random_emissions(len(labels))
    distribution: CrfDistribution = crf(emissions, MASK)
    log_partition, marginals, mode = distribution.log_partition(), distribution.marginals(), distribution.mode()
    for row, scores in enumerate(sentences(crf, emissions)):
        length = int(LENGTHS[row])
        total = torch.tensor(list(scores.values()), dtype=torch.float64).logsumexp(0)
        assert abs(float(log_partition[row] - total)) < 1e-12
        expected = torch.zeros(5, len(labels), dtype=torch.float64)
        for path, score in scores.items():
            expected[range(length), path] += float((score - total).exp())
        assert float((marginals[row] - expected).abs().max()) < 1e-12
        best = max(scores, key=lambda path: scores[path])
        assert mode[row].tolist() == [*best, *[0] * (5 - length)]
        for path, score in scores.items():
            gold = torch.full_like(mode, -100)
            gold[row, :length] = torch.tensor(path)
            assert abs(float(distribution.log_prob(gold)[row]) - float(score - total)) < 1e-12


def test_gradient_of_the_partition_is_the_marginals_and_exactly_0_where_padded(labels: tuple[str, ...]) -> None:
    crf, emissions = random_crf(labels), random_emissions(len(labels)).requires_grad_()
    distribution: CrfDistribution = crf(emissions, MASK)
    (gradient,) = torch.autograd.grad(distribution.log_partition().sum(), emissions)
    assert torch.equal(gradient[~MASK], torch.zeros_like(gradient[~MASK]))
    assert float((gradient - distribution.marginals()).detach().abs().max()) < 1e-12


def test_gradient_of_the_loss_is_exactly_0_where_padded(labels: tuple[str, ...]) -> None:
    crf, emissions = random_crf(labels), random_emissions(len(labels)).requires_grad_()
    crf(emissions, MASK).log_prob(torch.zeros(MASK.shape, dtype=torch.int64)).sum().backward()
    assert emissions.grad is not None
    assert torch.equal(emissions.grad[~MASK], torch.zeros_like(emissions.grad[~MASK]))
    assert torch.equal(emissions.grad[MASK].isfinite(), torch.ones_like(emissions.grad[MASK], dtype=torch.bool))


@torch.inference_mode()
def test_marginals_sum_to_1_at_words_and_are_0_where_padded(labels: tuple[str, ...]) -> None:
    marginals = random_crf(labels)(random_emissions(len(labels)), MASK).marginals()
    assert torch.allclose(marginals.sum(dim=2), MASK.double(), atol=1e-12, rtol=0)


@torch.inference_mode()
def test_marginals_of_long_sentences_are_probabilities_in_single_precision() -> None:
    labels = label_set(["A", "B", "C"], "BIOES")
    crf = random_crf(labels)
    emissions = 30 * torch.rand(2, 500, len(labels), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 500, dtype=torch.bool)
    single, double = crf.float()(emissions.float(), mask).marginals(), crf.double()(emissions, mask).marginals()
    assert single.dtype == torch.float32
    assert float(single.max()) <= 1
    assert float((single - double).abs().max()) < 1e-5


@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
@torch.inference_mode()
def test_legal_mode_is_the_best_well_formed_sequence(scheme: Scheme) -> None:
    labels = label_set(["X"], scheme)
    for seed in range(5):
        crf = random_crf(labels, scheme, legal_mode=True, seed=seed)
        emissions = random_emissions(len(labels), seed=seed)
        mode = crf(emissions, MASK).mode()
        for row, scores in enumerate(sentences(crf, emissions)):
            legal = {path: score for path, score in scores.items() if _is_well_formed(path, labels, scheme)}
            best = max(legal, key=lambda path: legal[path])
            assert tuple(mode[row, : len(best)].tolist()) == best


@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
@torch.inference_mode()
def test_legal_mode_gives_only_well_formed_sequences_in_single_precision(scheme: Scheme) -> None:
    labels = label_set(["A", "B", "C"], scheme)
    crf = random_crf(labels, scheme, legal_mode=True).float()
    lengths = torch.arange(1, 65)
    mask = torch.arange(64)[None, :] < lengths[:, None]
    mode = crf(30 * torch.randn(64, 64, len(labels)), mask).mode()
    for row, length in enumerate(lengths.tolist()):
        assert _is_well_formed(tuple(mode[row, :length].tolist()), labels, scheme)


@torch.inference_mode()
def test_legal_mode_leaves_marginals_and_partition_alone() -> None:
    labels = label_set(["X"], "BIO")
    free, legal = random_crf(labels), random_crf(labels, legal_mode=True)
    emissions = random_emissions(len(labels))
    assert torch.equal(free(emissions, MASK).marginals(), legal(emissions, MASK).marginals())
    assert torch.equal(free(emissions, MASK).log_partition(), legal(emissions, MASK).log_partition())


def _is_well_formed(path: tuple[int, ...], labels: tuple[str, ...], scheme: Scheme) -> bool:
    names = tuple(labels[number] for number in path)
    return encode_spans(decode_spans(names, scheme), len(names), scheme) == names


def test_many_labels_give_what_the_plain_sums_give(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = tuple(f"N{number:03}" for number in range(150))
    crf, lengths = random_crf(labels, "TOKENS", seed=4), torch.tensor([5, 1, 3])
    emissions = (3 * torch.randn(3, 5, 150, dtype=torch.float64)).requires_grad_()
    mask = torch.arange(5) < lengths[:, None]

    def results() -> list[torch.Tensor]:
        distribution = crf(emissions, mask)
        gradient = torch.autograd.grad(distribution.log_partition().sum(), [emissions, crf.transitions])
        return [distribution.log_partition(), distribution.marginals(), *gradient]

    by_products = results()
    monkeypatch.setattr("models.decoders.crf_scan._FEW_LABELS", 150)
    for one, other in zip(by_products, results(), strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def test_a_batch_cut_into_groups_has_the_mode_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    crf, emissions = random_crf(label_set(["X"], "BIO")), random_emissions(3)
    expected = crf(emissions, MASK).mode()
    monkeypatch.setattr("models.decoders.crf._MOST_CELLS", 2 * 3**2)
    assert torch.equal(crf(emissions, MASK).mode(), expected)
