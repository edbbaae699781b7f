"""The variational LSTM: masks shared by all steps of a sentence, and weight samples with masks folded in."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from concord.models.layers import lstm as lstm_module
from concord.models.layers.lstm import draw_mask, run_lstm
from concord.models.layers.variational_lstm import (
    LstmSample,
    VariationalLstm,
    VariationalLstmConfig,
    run_masked_lstm,
    run_samples,
)

INPUTS, HIDDEN = 5, 4
LENGTHS = torch.tensor([3, 8, 1, 6])


def slow_lstm(lstm: nn.LSTM, inputs: Tensor, state_mask: Tensor) -> Tensor:
    """Run both directions over one sentence, step by step, following the equations.

    Args:
        inputs: shape ``(T, D)``, already masked by z_x.
        state_mask: z_h for both directions, shape ``(2, H)``.

    Returns:
        Shape ``(T, 2H)``.
    """
    streams = []
    for direction, suffix in enumerate(("", "_reverse")):
        input_weight, state_weight = (getattr(lstm, f"weight_{name}_l0{suffix}") for name in ("ih", "hh"))
        bias = getattr(lstm, f"bias_ih_l0{suffix}") + getattr(lstm, f"bias_hh_l0{suffix}")
        hidden = cell = torch.zeros(lstm.hidden_size, dtype=inputs.dtype)
        outputs = []
        for word in inputs if direction == 0 else inputs.flip(0):
            gates = input_weight @ word + state_weight @ (hidden * state_mask[direction]) + bias
            entering, forgetting, candidate, leaving = gates.split(lstm.hidden_size)
            cell = forgetting.sigmoid() * cell + entering.sigmoid() * candidate.tanh()
            hidden = leaving.sigmoid() * cell.tanh()
            outputs.append(hidden)
        stream = torch.stack(outputs)
        streams.append(stream if direction == 0 else stream.flip(0))
    return torch.cat(streams, dim=1)


def make_lstm(rate: float, *, layers: int = 1, hidden: int = HIDDEN) -> VariationalLstm:
    torch.manual_seed(3)
    config = VariationalLstmConfig(
        hidden=hidden, layers=layers, input_dropout=rate, recurrent_dropout=rate, output_dropout=rate
    )
    return VariationalLstm(config, INPUTS).double()


def lstm_layers(lstm: VariationalLstm | LstmSample) -> list[nn.LSTM]:
    return [layer for layer in lstm.layers if isinstance(layer, nn.LSTM)]


def make_inputs(sentences: int = len(LENGTHS), steps: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(sentences, steps, INPUTS, dtype=torch.float64, generator=generator)


def folded_mask(folded: Tensor, original: Tensor) -> Tensor:
    """Return the factor of each column, which must be the same in every row."""
    factors = folded / original
    assert torch.allclose(factors, factors[:1].expand_as(factors), atol=1e-12, rtol=0)
    return factors[0]


@torch.no_grad()
def test_masked_lstm_equals_a_naive_loop() -> None:
    lstm, inputs = lstm_layers(make_lstm(0.5))[0], make_inputs()
    mask = draw_mask((2, len(LENGTHS), HIDDEN), 0.5, like=inputs)
    found = run_masked_lstm(lstm, inputs, LENGTHS, mask)
    for row, length in enumerate(LENGTHS.tolist()):
        expected = slow_lstm(lstm, inputs[row, :length], mask[:, row])
        assert float((found[row, :length] - expected).abs().max()) < 1e-12
        assert not found[row, length:].any()


def test_input_masks_are_shared_by_steps_but_not_by_sentences() -> None:
    """A masked feature has a zero gradient at all steps of its sentence, an unmasked one at none."""
    lstm = make_lstm(0.5, hidden=12)
    inputs = make_inputs(sentences=6).requires_grad_()
    hidden, _ = lstm(inputs, torch.full((6,), 8))
    hidden.sum().backward()
    assert inputs.grad is not None
    kept = inputs.grad != 0
    assert torch.equal(kept, kept[:, :1].expand_as(kept))
    assert len({tuple(row) for row in kept[:, 0].tolist()}) > 1


def test_state_masks_are_shared_by_steps_but_not_by_sentences() -> None:
    """The weights that read a unit masked by z_h get no gradient from the sentence."""
    lstm = make_lstm(0.5, hidden=12)
    hidden, _ = lstm(make_inputs(sentences=6), torch.full((6,), 8))
    patterns = set()
    for direction in ("", "_reverse"):
        weight = lstm_layers(lstm)[0].get_parameter(f"weight_hh_l0{direction}")
        for row in range(6):
            (gradient,) = torch.autograd.grad(hidden[row].sum(), weight, retain_graph=True)
            patterns.add(tuple((gradient != 0).any(dim=0).tolist()))
    # With new masks at each of 8 steps a unit would have no gradient once in 256 times.
    shares = [sum(pattern) / len(pattern) for pattern in patterns]
    assert len(patterns) == 12
    assert 0.2 < sum(shares) / len(shares) < 0.8


@torch.no_grad()
def test_output_masks_are_shared_by_steps_but_not_by_sentences() -> None:
    lstm = make_lstm(0.25, hidden=12)
    hidden, masked = lstm(make_inputs(sentences=6), torch.full((6,), 8))
    factors = masked / hidden
    assert torch.allclose(factors, factors[:, :1].expand_as(factors), atol=1e-12)
    values = factors[:, 0].flatten()
    assert all(abs(value) < 1e-12 or abs(value - 1 / 0.75) < 1e-6 for value in values.tolist())
    assert not torch.equal(factors[0, 0], factors[1, 0])


@torch.no_grad()
def test_every_call_draws_new_masks_also_in_evaluation_mode() -> None:
    lstm, inputs = make_lstm(0.5), make_inputs()
    assert not torch.equal(lstm(inputs, LENGTHS)[0], lstm(inputs, LENGTHS)[0])
    lstm.eval()
    assert not torch.equal(lstm(inputs, LENGTHS)[1], lstm(inputs, LENGTHS)[1])


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
def test_masks_folded_into_weights_equal_masks_on_activations(layers: int) -> None:
    lstm, inputs = make_lstm(0.4, layers=layers), make_inputs()
    (sample,) = lstm.draw_samples(1, seed=11)
    found = sample(inputs, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        states = inputs[row, :length]
        for folded, original in zip(lstm_layers(sample), lstm_layers(lstm), strict=True):
            masks = {
                name: folded_mask(folded.get_parameter(f"weight_{name}"), original.get_parameter(f"weight_{name}"))
                for name in ("ih_l0", "ih_l0_reverse", "hh_l0", "hh_l0_reverse")
            }
            assert torch.equal(masks["ih_l0"], masks["ih_l0_reverse"])
            state_mask = torch.stack([masks["hh_l0"], masks["hh_l0_reverse"]])
            states = slow_lstm(original, states * masks["ih_l0"], state_mask)
        assert float((found[row, :length] - states).abs().max()) < 1e-12


def test_masks_are_zero_or_the_inverse_of_the_keep_probability() -> None:
    mask = draw_mask((10_000,), 0.25, like=torch.zeros(()), generator=torch.Generator().manual_seed(0))
    assert sorted(set(mask.tolist())) == pytest.approx([0.0, 1 / 0.75])
    assert 0.97 < float(mask.mean()) < 1.03


def are_equal(left: LstmSample, right: LstmSample) -> bool:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return torch.equal(left.output_mask, right.output_mask) and all(torch.equal(*pair) for pair in pairs)


def test_samples_differ_and_depend_only_on_the_seed_and_change_nothing() -> None:
    lstm = make_lstm(0.4)
    before, random_state = {name: value.clone() for name, value in lstm.state_dict().items()}, torch.get_rng_state()
    five, two, other = lstm.draw_samples(5, seed=7), lstm.draw_samples(2, seed=7), lstm.draw_samples(2, seed=8)
    assert all(torch.equal(value, before[name]) for name, value in lstm.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    torch.manual_seed(99)
    again = lstm.draw_samples(5, seed=7)
    assert all(map(are_equal, five, again))
    assert all(map(are_equal, five[:2], two))
    for left, right in [(five[0], five[1]), (five[3], five[4]), (two[0], other[0])]:
        assert not are_equal(left, right)


@torch.no_grad()
def test_sample_without_dropout_is_the_plain_lstm() -> None:
    lstm, inputs = make_lstm(0.0), make_inputs()
    plain, _ = run_lstm(lstm_layers(lstm)[0], inputs, LENGTHS)
    for sample in lstm.draw_samples(2, seed=1):
        assert torch.equal(sample(inputs, LENGTHS), plain)
        assert torch.equal(sample.output_mask, torch.ones(2 * HIDDEN, dtype=torch.float64))
    assert torch.equal(lstm(inputs, LENGTHS)[1], plain)


def read_all(samples: Sequence[LstmSample], inputs: Tensor, lengths: Tensor) -> tuple[Tensor, int]:
    """Return the states of all samples, ``(M, B, T, 2H)``, and how many samples were run on their own."""
    runs: list[object] = []
    hooks = [sample.register_forward_hook(lambda *_: runs.append(None)) for sample in samples]
    states = torch.zeros(len(samples), inputs.shape[0] * inputs.shape[1], 2, HIDDEN, dtype=inputs.dtype)
    written = torch.zeros(states.shape[:3], dtype=torch.int64)
    for chosen, *sides in run_samples(samples, inputs, lengths):
        for direction, (cells, found) in enumerate(zip(*sides, strict=True)):
            states[chosen, cells, direction] = found.to(states)
            written[chosen, cells, direction] += 1
    for hook in hooks:
        hook.remove()
    words = torch.arange(inputs.shape[1]) < lengths[:, None]
    assert torch.equal(written, words.flatten()[None, :, None].expand_as(written).long())
    return states.view(len(samples), *inputs.shape[:2], 2 * HIDDEN), len(runs)


def read_alone(samples: Sequence[LstmSample], inputs: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([sample(inputs, lengths) for sample in samples])


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("number", [1, 4, 7])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
def test_samples_read_together_as_they_do_one_by_one(
    layers: int, number: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where sentences are read in groups, and gates computed a few words ahead."""
    lstm, inputs = make_lstm(rate, layers=layers), make_inputs()
    samples = lstm.draw_samples(number, seed=11)
    together, alone = read_all(samples, inputs, LENGTHS)
    assert alone == 0
    assert float((together - read_alone(samples, inputs, LENGTHS)).abs().max()) < 1e-12
    for row, length in enumerate(LENGTHS.tolist()):
        sentence, _ = read_all(samples, inputs[row : row + 1, :length], LENGTHS[row : row + 1])
        assert float((sentence[:, 0] - together[:, row, :length]).abs().max()) < 1e-12
    for sentences, words in ((1, 3), (3, 1), (3, 4)):
        monkeypatch.setattr(lstm_module, "_SENTENCES", sentences)
        monkeypatch.setattr(lstm_module, "_WORDS_AHEAD", words)
        assert float((read_all(samples, inputs, LENGTHS)[0] - together).abs().max()) < 1e-12


def test_samples_read_one_by_one_with_gradient_in_bfloat16_and_where_drawn_apart() -> None:
    """The result is that of each sample's own LSTM, bit for bit."""
    lstm = make_lstm(0.4).float()
    inputs, four = make_inputs().float(), lstm.draw_samples(4, seed=11)
    with torch.no_grad():
        states, alone = read_all(four[:3], inputs, LENGTHS)
        assert alone == 3
        assert torch.equal(states, read_alone(four[:3], inputs, LENGTHS))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert read_all(four, inputs, LENGTHS)[1] == 4
    inputs.requires_grad_()
    states, alone = read_all(four, inputs, LENGTHS)
    assert alone == 4
    (found,) = torch.autograd.grad(states.square().sum(), inputs)
    (expected,) = torch.autograd.grad(read_alone(four, inputs, LENGTHS).square().sum(), inputs)
    assert torch.equal(found, expected)
    assert all(parameter.grad is None for parameter in lstm.parameters())
