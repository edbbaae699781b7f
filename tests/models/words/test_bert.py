"""BERT without transformers: states and subwords of the library, folders that only it can read, long words."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from concord.models.words.bert import Bert, read_bert
from concord.models.words.encoder_config import WEIGHTS_NAME, Precision
from concord.models.words.subwords import SubwordTokenizer, window_bounds

ODD_WORDS = ["", " ", "\x00", "[SEP]", "[CLS]x", "\u200d", "\U0001f469\u200d\U0001f680", "e\u0301", "\u4e2d\u6587"]
WORDS = ["Ada", "laughed", "LETTERS", "paris", "unheardof", "naïve", "O'Neil", "a" * 120, "x\ny", *ODD_WORDS]

pytestmark = pytest.mark.encoder


@pytest.fixture
def folder(tiny_encoder: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny encoder, to be changed."""
    return Path(shutil.copytree(tiny_encoder, tmp_path / "encoder"))


def read(folder: Path, *, precision: Precision = "float32") -> tuple[Bert, SubwordTokenizer] | None:
    return read_bert(folder, weights_name=WEIGHTS_NAME, precision=precision, device="cpu")


def test_states_and_subwords_are_those_of_transformers(tiny_encoder: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    vocabulary = len((tiny_encoder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    found = read(tiny_encoder)
    assert found is not None
    network, tokenizer = found
    library = AutoModel.from_pretrained(tiny_encoder).eval()
    splitter = AutoTokenizer.from_pretrained(tiny_encoder)
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for lengths in ([3], [14], [14, 14], [14, 5, 3, 13]):
            attention = torch.tensor([[place < length for place in range(max(lengths))] for length in lengths]).long()
            numbers = torch.randint(5, vocabulary, attention.shape, generator=generator) * attention
            expected = library(input_ids=numbers, attention_mask=attention, output_hidden_states=True).hidden_states
            rows = [row[:length].tolist() for row, length in zip(numbers, lengths, strict=True)]
            states = network.states(rows)
            assert len(states) == len(expected)
            for found_layer, layer in zip(states, expected, strict=True):
                assert torch.allclose(found_layer, layer[attention.bool()], atol=1e-5)
    special = (tokenizer.start, tokenizer.end, tokenizer.padding, tokenizer.unknown)
    assert special == (splitter.cls_token_id, splitter.sep_token_id, splitter.pad_token_id, splitter.unk_token_id)
    assert tokenizer.split(WORDS) == splitter(WORDS, add_special_tokens=False)["input_ids"]


def test_states_in_int8_are_close_to_those_in_float32_and_depend_on_their_row_alone(tiny_encoder: Path) -> None:
    exact, rounded = read(tiny_encoder), read(tiny_encoder, precision="int8")
    assert exact is not None
    assert rounded is not None
    rows = [[5, 6, 7, 8], [9, 10], [11, 12, 13], [5, 6, 7, 9]]
    with torch.inference_mode():
        expected, found = exact[0].states(rows), rounded[0].states(rows)
        alone = [rounded[0].states([row])[-1] for row in rows]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            under_autocast = rounded[0].states(rows)[-1]
    assert torch.equal(found[0], expected[0])
    assert not torch.equal(found[-1], expected[-1])
    assert float(torch.cosine_similarity(found[-1], expected[-1], dim=1).min()) > 0.99
    assert torch.equal(found[-1], torch.cat(alone))
    assert torch.equal(found[-1], under_autocast)


def test_states_in_bfloat16_are_close_to_those_in_float32(folder: Path) -> None:
    found = read(folder)
    assert found is not None
    rows = [[5, 6, 7, 8], [9, 10]]
    with torch.inference_mode():
        exact = found[0].states(rows)[-1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = found[0].states(rows)[-1]
    assert rough.dtype == torch.float32
    assert not torch.equal(exact, rough)
    assert torch.allclose(exact, rough, atol=0.1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", {"model_type": "roberta"}),
        ("config.json", {"hidden_act": "relu"}),
        ("config.json", {"is_decoder": True}),
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer_config.json", {"tokenizer_class": "AlbertTokenizer"}),
        ("tokenizer_config.json", {"cls_token": {"content": "[CLS]"}}),
        ("tokenizer_config.json", {"sep_token": "[NONE]"}),
    ],
)
def test_another_network_or_tokenizer_is_left_to_transformers(folder: Path, name: str, change: dict[str, Any]) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    assert read(folder) is None


def test_weights_of_another_precision_are_left_to_transformers(folder: Path) -> None:
    weights = {name: weight.half() for name, weight in load_file(folder / WEIGHTS_NAME).items()}
    save_file(weights, folder / WEIGHTS_NAME)
    assert read(folder) is None


def test_folder_without_a_tokenizer_file_is_left_to_transformers(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert read(folder) is None


CAPACITY = 510


@given(st.lists(st.integers(1, 500) | st.integers(1, 3), max_size=200), st.sampled_from([0, 1, 32, 500]))
@example([31] * 24, 32)
@example([64] * 16, 32)
@example([127, 383] * 9, 32)
@example([500, 1] * 60, 32)
def test_windows_keep_each_word_once_at_bounded_cost(counts: list[int], overlap_words: int) -> None:
    bounds = window_bounds(counts, capacity=CAPACITY, overlap_words=overlap_words)
    kept = [word for _, _, begin, end in bounds for word in range(begin, end)]
    assert kept == list(range(len(counts)))
    costs = [sum(counts[first:last]) for first, last, _, _ in bounds]
    assert all(cost <= CAPACITY for cost in costs)
    assert all(first <= begin < end <= last for first, last, begin, end in bounds)
    assert 3 * sum(costs) <= 4 * sum(counts) + CAPACITY
    for left, right in pairwise(bounds):
        assert 0 <= left[1] - right[0] <= overlap_words
        assert sum(counts[right[0] : left[1]]) <= CAPACITY // 4


@given(st.lists(st.integers(1, 3), max_size=2000))
def test_neighbours_share_words_where_those_have_few_subwords(counts: list[int]) -> None:
    bounds = window_bounds(counts, capacity=CAPACITY, overlap_words=32)
    assert all(left[1] - right[0] == 32 for left, right in pairwise(bounds))
    for first, last, _, _ in bounds[:-1]:
        assert CAPACITY - 3 < sum(counts[first:last]) <= CAPACITY
