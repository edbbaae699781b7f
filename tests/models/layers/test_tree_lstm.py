"""The Child-Sum Tree-LSTM equals naive recursion; malformed trees are rejected."""

import random

import pytest
import torch
from torch import Tensor

from concord.models.data.sentence import Sentence, TreeError
from concord.models.layers.tree_lstm import TreeLstm, grow_forest

INPUTS, HIDDEN = 6, 5


@pytest.fixture
def layer() -> TreeLstm:
    torch.manual_seed(0)
    return TreeLstm(INPUTS, HIDDEN).double()


def tree(*heads: int) -> Sentence:
    return Sentence(words=tuple(f"w{number}" for number in range(1, len(heads) + 1)), heads=heads)


def random_tree(chance: random.Random, words: int, *, roots: int = 1) -> Sentence:
    """Attach every word to an earlier one in a random order."""
    order = chance.sample(range(words), words)
    heads = [0] * words
    for place in range(roots, words):
        heads[order[place]] = order[chance.randrange(place)] + 1
    return tree(*heads)


def vectors(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive(layer: TreeLstm, inputs: Tensor, heads: tuple[int, ...]) -> Tensor:
    """Compute the state of every word recursively, from the formulas."""
    computed: dict[int, tuple[Tensor, Tensor]] = {}

    def state(place: int) -> tuple[Tensor, Tensor]:
        if place not in computed:
            children = [state(child) for child, head in enumerate(heads) if head == place + 1]
            forget, entering, candidate, leaving = layer.input(inputs[place]).chunk(4)
            total = sum((hidden for hidden, _ in children), torch.zeros(HIDDEN, dtype=inputs.dtype))
            gates = layer.state(total).chunk(3)
            cell = (entering + gates[0]).sigmoid() * (candidate + gates[1]).tanh()
            for hidden, child_cell in children:
                cell = cell + (forget + layer.forget_state(hidden)).sigmoid() * child_cell
            computed[place] = ((leaving + gates[2]).sigmoid() * cell.tanh(), cell)
        return computed[place]

    return torch.stack([state(place)[0] for place in range(len(heads))])


@pytest.mark.parametrize("roots", [1, 3])
def test_states_and_gradients_equal_those_of_naive_recursion(layer: TreeLstm, roots: int) -> None:
    chance = random.Random(roots)
    sentences = [random_tree(chance, words, roots=min(roots, words)) for words in (1, 2, 7, 12, 30)]
    inputs = vectors(5, 30, INPUTS).requires_grad_()
    found = layer(inputs, grow_forest(sentences))
    weights = vectors(5, 30, HIDDEN, seed=2)
    expected = torch.zeros((), dtype=torch.float64)
    for row, sentence in enumerate(sentences):
        words = len(sentence.words)
        alone = naive(layer, inputs[row, :words], sentence.heads or ())
        assert torch.allclose(found[row, :words], alone, atol=1e-14)
        assert not found[row, words:].any()
        expected = expected + (alone * weights[row, :words]).sum()
    parameters = [inputs, *layer.parameters()]
    for left, right in zip(
        torch.autograd.grad((found * weights).sum(), parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        assert torch.allclose(left, right, atol=1e-12)


@torch.no_grad()
def test_root_state_is_the_mean_over_the_roots(layer: TreeLstm) -> None:
    sentences = [tree(0, 1, 0, 3, 0), tree(2, 0)]
    forest = grow_forest(sentences)
    states = layer(vectors(2, 5, INPUTS), forest)
    found = forest.root_states(states)
    assert torch.allclose(found[0], states[0, [0, 2, 4]].mean(dim=0), atol=1e-15)
    assert torch.equal(found[1], states[1, 1])


@pytest.mark.parametrize(
    ("heads", "fault"),
    [
        ((2, 3, 1, 0), "word 1, 'w1', of the sentence 'w1 w2 w3 w4': its heads lead back to it"),
        ((0, 2), "word 2, 'w2', of the sentence 'w1 w2': its heads lead back to it"),
        ((2, 1), "word 1, 'w1', of the sentence 'w1 w2': no word of the sentence is a root"),
        ((0, 3), "word 2, 'w2', of the sentence 'w1 w2': expected a head from 0 to 2, got 3"),
        ((0, -1), "word 2, 'w2', of the sentence 'w1 w2': expected a head from 0 to 2, got -1"),
    ],
)
def test_malformed_tree_error_names_sentence_and_word(heads: tuple[int, ...], fault: str) -> None:
    with pytest.raises(TreeError, match=fault):
        grow_forest([tree(0, 1, 1), tree(*heads)])


def test_sentence_without_heads_is_rejected() -> None:
    with pytest.raises(TreeError, match="got none for the sentence 'It rained'"):
        grow_forest([tree(0), Sentence(words=("It", "rained"))])


def test_number_of_steps_is_the_height_of_the_tree() -> None:
    chain, star = tree(*range(300)), tree(0, *[1] * 299)
    assert len(grow_forest([chain]).levels) == 300
    assert len(grow_forest([star]).levels) == 2
    assert [level.words for level in grow_forest([chain, star]).levels][:3] == [300, 2, 1]
