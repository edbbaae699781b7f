"""The CRF against enumeration of all label sequences."""

from collections.abc import Callable
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from concord.models.decoders.crf import Crf, CrfDistribution, LinearChain, log_space_marginals, log_space_partition
from concord.models.decoders.crf_messages import Factors, Messages, Packing, _plan, scan_messages, tree_messages
from concord.models.labels import BIO, BIOES, TOKENS, LabelScheme, decode_spans, encode_spans

LENGTHS = torch.tensor([1, 2, 4, 5])
MASK = torch.arange(5)[None, :] < LENGTHS[:, None]


def random_crf(labels: tuple[str, ...], scheme: LabelScheme = BIO, *, legal_mode: bool = False, seed: int = 0) -> Crf:
    torch.manual_seed(seed)
    crf = Crf(labels, scheme, legal_mode=legal_mode).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    return crf


def random_emissions(labels: int, *, seed: int = 1) -> Tensor:
    """Draw emissions for sentences of ``LENGTHS``; padded ones are large, so that reading them would show."""
    generator = torch.Generator().manual_seed(seed)
    emissions = torch.randn(len(LENGTHS), 5, labels, dtype=torch.float64, generator=generator)
    return torch.where(MASK[:, :, None], emissions, 1e3 * emissions)


def scored_paths(crf: Crf, emissions: Tensor) -> dict[tuple[int, ...], float]:
    """Score every label sequence of one sentence, emissions of shape (T, L), one term at a time."""
    start, end, transitions = crf.start.detach(), crf.end.detach(), crf.transitions.detach()
    scores = {}
    for path in product(range(emissions.shape[1]), repeat=emissions.shape[0]):
        score = float(start[path[0]]) + float(end[path[-1]])
        score += sum(float(emissions[step, label]) for step, label in enumerate(path))
        score += sum(float(transitions[left, right]) for left, right in pairwise(path))
        scores[path] = score
    return scores


def sentences(crf: Crf, emissions: Tensor) -> list[dict[tuple[int, ...], float]]:
    return [scored_paths(crf, emissions[row, :length]) for row, length in enumerate(LENGTHS.tolist())]


@pytest.fixture(params=[1, 2, 3])
def labels(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return BIO.label_set(["X"])[: request.param]


@pytest.mark.slow
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


def test_gradient_of_the_partition_equals_the_marginals_and_is_0_where_padded(labels: tuple[str, ...]) -> None:
    crf, emissions = random_crf(labels), random_emissions(len(labels)).requires_grad_()
    distribution: CrfDistribution = crf(emissions, MASK)
    (gradient,) = torch.autograd.grad(distribution.log_partition().sum(), emissions)
    assert torch.equal(gradient[~MASK], torch.zeros_like(gradient[~MASK]))
    assert float((gradient - distribution.marginals()).detach().abs().max()) < 1e-12


@torch.inference_mode()
def test_marginals_of_long_sentences_are_probabilities_in_single_precision() -> None:
    labels = BIOES.label_set(["A", "B", "C"])
    crf = random_crf(labels)
    emissions = 30 * torch.rand(2, 500, len(labels), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 500, dtype=torch.bool)
    single, double = crf.float()(emissions.float(), mask).marginals(), crf.double()(emissions, mask).marginals()
    assert single.dtype == torch.float32
    assert float(single.max()) <= 1
    assert float((single - double).abs().max()) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [BIO, BIOES])
@torch.inference_mode()
def test_legal_mode_is_the_best_well_formed_sequence(scheme: LabelScheme) -> None:
    labels = scheme.label_set(["X"])
    for seed in range(5):
        crf = random_crf(labels, scheme, legal_mode=True, seed=seed)
        emissions = random_emissions(len(labels), seed=seed)
        mode = crf(emissions, MASK).mode()
        for row, scores in enumerate(sentences(crf, emissions)):
            legal = {path: score for path, score in scores.items() if _is_well_formed(path, labels, scheme)}
            best = max(legal, key=lambda path: legal[path])
            assert tuple(mode[row, : len(best)].tolist()) == best


@pytest.mark.parametrize("scheme", [BIO, BIOES])
@torch.inference_mode()
def test_legal_mode_returns_only_well_formed_sequences_in_single_precision(scheme: LabelScheme) -> None:
    labels = scheme.label_set(["A", "B", "C"])
    crf = random_crf(labels, scheme, legal_mode=True).float()
    lengths = torch.arange(1, 65)
    mask = torch.arange(64)[None, :] < lengths[:, None]
    mode = crf(30 * torch.randn(64, 64, len(labels)), mask).mode()
    for row, length in enumerate(lengths.tolist()):
        assert _is_well_formed(tuple(mode[row, :length].tolist()), labels, scheme)


@torch.inference_mode()
def test_legal_mode_does_not_change_marginals_and_partition() -> None:
    labels = BIO.label_set(["X"])
    free, legal = random_crf(labels), random_crf(labels, legal_mode=True)
    emissions = random_emissions(len(labels))
    assert torch.equal(free(emissions, MASK).marginals(), legal(emissions, MASK).marginals())
    assert torch.equal(free(emissions, MASK).log_partition(), legal(emissions, MASK).log_partition())


@pytest.mark.parametrize("multiply", [scan_messages, tree_messages])
@torch.inference_mode()
def test_scan_and_tree_sum_over_all_prefixes_and_suffixes(
    multiply: Callable[[Factors], Messages], labels: tuple[str, ...]
) -> None:
    crf, emissions = random_crf(labels), random_emissions(len(labels))
    factors = Factors.of(emissions, crf.transitions, crf.start, crf.end, Packing.of(MASK))
    assert factors is not None
    found, packing = multiply(factors), factors.packing
    joint = packing.pad(found.before * found.after)
    assert torch.equal(found.after[packing.followed], found.suffixes @ factors.transitions.T)
    for row, scores in enumerate(sentences(crf, emissions)):
        length = int(LENGTHS[row])
        total = torch.tensor(list(scores.values()), dtype=torch.float64).logsumexp(0)
        assert abs(float(found.log_partition[row] - total)) < 1e-12
        expected = torch.zeros(5, len(labels), dtype=torch.float64)
        for path, score in scores.items():
            expected[range(length), path] += float((score - total).exp())
        shares = joint[row, :length] / joint[row, :length].sum(dim=1, keepdim=True)
        assert float((shares - expected[:length]).abs().max()) < 1e-12


@pytest.mark.parametrize("multiply", [scan_messages, tree_messages])
@torch.inference_mode()
def test_long_sentences_with_scores_far_apart_stay_in_range(multiply: Callable[[Factors], Messages]) -> None:
    chain, mask = LinearChain(4).double(), torch.arange(300)[None, :] < torch.tensor([[300], [1], [299], [64]])
    generator = torch.Generator().manual_seed(1)
    emissions = 90 * torch.rand(4, 300, 4, dtype=torch.float64, generator=generator)
    scores = (emissions, 50 * chain.transitions.copy_(torch.eye(4)), chain.start, chain.end)
    factors = Factors.of(*scores, Packing.of(mask))
    assert factors is not None
    assert factors.interval < 3
    found = multiply(factors)
    joint = found.before * found.after
    marginals = factors.packing.pad(joint / joint.sum(dim=1, keepdim=True))
    assert torch.allclose(found.log_partition, log_space_partition(*scores, mask), atol=0, rtol=1e-13)
    assert torch.allclose(marginals, log_space_marginals(*scores, mask), atol=1e-10, rtol=0)


def test_tree_multiplies_pairs_of_real_matrices_only_and_equals_the_scan() -> None:
    lengths = torch.tensor([5, 100, *[5] * 30, 1, 2])
    mask = torch.arange(100)[None, :] < lengths[:, None]
    packing = Packing.of(mask)
    # Wang et al. (2021), section 3.4: n words have n - 1 matrices, and n - 2 products make one of them.
    rounds, owners = _plan(packing.sizes, torch.device("cpu"))
    assert sum(len(found.left) for found in rounds) == int((lengths - 2).clamp(min=0).sum())
    assert (len(rounds), len(owners)) == (7, int((lengths > 1).sum()))
    chain, generator = LinearChain(4).double(), torch.Generator().manual_seed(1)
    emissions = torch.randn(len(lengths), 100, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    weights = torch.randn(len(lengths), dtype=torch.float64, generator=generator)
    outcomes = []
    for multiply in (scan_messages, tree_messages):
        factors = Factors.of(emissions, chain.transitions, chain.start, chain.end, packing)
        assert factors is not None
        found = multiply(factors).log_partition
        outcomes.append((found, *torch.autograd.grad((weights * found).sum(), (emissions, *chain.parameters()))))
    for by_scan, by_tree in zip(*outcomes, strict=True):
        assert torch.allclose(by_scan, by_tree, rtol=0, atol=1e-10)


def test_marginals_by_the_tree_have_the_gradients_of_the_scan() -> None:
    """Structured Refinement trains through marginals, on a GPU by the tree, and so differentiates them twice."""
    chain, generator = LinearChain(3).double(), torch.Generator().manual_seed(1)
    emissions = torch.randn(*MASK.shape, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    packing = Packing.of(MASK)
    weights = torch.randn(int(MASK.sum()), 3, dtype=torch.float64, generator=generator)
    inputs = (emissions, *chain.parameters())
    outcomes = []
    for multiply in (scan_messages, tree_messages):
        factors = Factors.of(emissions, chain.transitions, chain.start, chain.end, packing)
        assert factors is not None
        found = multiply(factors)
        joint = found.before * found.after
        marginals = joint / joint.sum(dim=1, keepdim=True)
        first = torch.autograd.grad((weights * marginals).sum(), inputs, create_graph=True)
        assert all(bool(gradient.any()) for gradient in first)
        squares = torch.stack([gradient.square().sum() for gradient in first]).sum()
        outcomes.append((marginals, *first, *torch.autograd.grad(squares, inputs)))
    for by_scan, by_tree in zip(*outcomes, strict=True):
        assert torch.allclose(by_scan, by_tree, rtol=0, atol=1e-10)


@pytest.mark.parametrize("forbidden", [-1e4, -2e2])
def test_scores_too_far_apart_for_factors_are_summed_in_log_space(forbidden: float) -> None:
    labels = BIO.label_set(["X"])
    crf, emissions = random_crf(labels), random_emissions(3).requires_grad_()
    with torch.no_grad():
        crf.transitions[0, 2] = crf.start[2] = forbidden
        emissions[3, 2] = torch.tensor([0.0, -5e3, 5e3])
    distribution: CrfDistribution = crf(emissions, MASK)
    marginals = distribution.marginals().detach()
    for row, scores in enumerate(sentences(crf, emissions.detach())):
        length = int(LENGTHS[row])
        total = torch.tensor(list(scores.values()), dtype=torch.float64).logsumexp(0)
        assert float(distribution.log_partition()[row].detach()) == pytest.approx(float(total), rel=1e-13, abs=1e-12)
        expected = torch.zeros(5, 3, dtype=torch.float64)
        for path, score in scores.items():
            expected[range(length), path] += float((score - total).exp())
        assert float((marginals[row] - expected).abs().max()) < 1e-10
    distribution.log_prob(torch.zeros(MASK.shape, dtype=torch.int64)).sum().backward()
    assert emissions.grad is not None
    assert bool(emissions.grad.isfinite().all())
    assert torch.equal(emissions.grad[~MASK], torch.zeros_like(emissions.grad[~MASK]))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1.0, 400.0])
def test_explicit_gradient_of_the_likelihood_equals_finite_differences(spread: float) -> None:
    chain, emissions = LinearChain(3).double(), random_emissions(3).requires_grad_()
    gold = torch.randint(3, MASK.shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        chain.transitions.normal_(generator=torch.Generator().manual_seed(3))
        chain.start[1] = spread
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)

    def likelihood(emissions: Tensor, *scores: Tensor) -> Tensor:
        del scores  # the chain's own, which gradcheck moves in place
        distribution: CrfDistribution = chain(emissions, MASK)
        return distribution.log_prob(gold) * weights

    assert torch.autograd.gradcheck(likelihood, (emissions, *chain.parameters()), atol=1e-6, rtol=1e-6)


@torch.inference_mode()
def test_mode_of_many_labels_is_the_best_sequence() -> None:
    torch.manual_seed(4)
    chain, emissions = LinearChain(600), torch.randn(4, 5, 600)
    chain.transitions.normal_()
    mode = chain(emissions, MASK).mode()
    for row, length in enumerate(LENGTHS.tolist()):
        score, came_from = emissions[row, 0], []
        for step in range(1, length):
            score, arrived = (score[:, None] + chain.transitions + emissions[row, step]).max(dim=0)
            came_from.append(arrived)
        best = [int(score.argmax())]
        for arrived in reversed(came_from):
            best.insert(0, int(arrived[best[0]]))
        assert mode[row].tolist() == best + [0] * (5 - length)


def _is_well_formed(path: tuple[int, ...], labels: tuple[str, ...], scheme: LabelScheme) -> bool:
    names = tuple(labels[number] for number in path)
    assert scheme.spans is not None
    return encode_spans(decode_spans(names, scheme.spans), len(names), scheme.spans) == names


def test_sums_over_many_labels_equal_those_in_log_space() -> None:
    labels = tuple(f"N{number:03}" for number in range(150))
    crf, lengths = random_crf(labels, TOKENS, seed=4), torch.tensor([5, 1, 3])
    emissions = (3 * torch.randn(3, 5, 150, dtype=torch.float64)).requires_grad_()
    mask = torch.arange(5) < lengths[:, None]
    scores = (emissions, crf.transitions, crf.start, crf.end)
    distribution: CrfDistribution = crf(emissions, mask)
    by_products = distribution.log_partition()
    plain = log_space_partition(*scores, mask)
    assert torch.allclose(by_products, plain, rtol=1e-10, atol=1e-12)
    assert torch.allclose(distribution.marginals(), log_space_marginals(*scores, mask), rtol=1e-10, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(by_products.sum(), scores), torch.autograd.grad(plain.sum(), scores), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
