"""BERT encoders without the library transformers, whose import takes longer than all else that a tagger needs.

Words are split exactly as by its ``BertTokenizer``; states are those of its ``BertModel`` but for rounding, to int8
where the encoder's precision says so.

Sums of linear layers in int8 are exact, so a row's result depends on that row alone. Each row of the input is scaled by
its own largest value to integers of at most 127, each row of the weight by its own to at most 64; the integers are
multiplied and summed exactly, and the sums are scaled back, first by column and then by row. Which of torch's products
is used is decided by what the processor does fastest, and changes no bit; on a GPU it is that of its tensor cores.
"""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, layer_norm, linear, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from concord.models.data.batch import send
from concord.models.words.encoder_config import Precision
from concord.models.words.subwords import SubwordTokenizer

_INPUT, _WEIGHT = 127, 64
"""The largest integers. Processors without VNNI add pairs of products in 16 bits: 2 * 255 * 64 fits in them, while
weights of up to 127 would saturate without a word."""
_EXACT_COLUMNS = (1 << 24) // (_INPUT * _WEIGHT)
"""Sums of products over more columns may be ones that float32 rounds."""
_FEWEST_ROWS = 32
_PASS_ROWS = 256
"""About as many as the encoder multiplies at once; which product is the fastest depends on it."""
_ZERO = 128
"""Added to inputs where a product reads unsigned integers."""

Product = Callable[[Tensor], Tensor]
"""Multiplies rows of whole numbers, float32, ``(N, in)``, by a weight; returns the sums, each times the scale of its
column, in float32, ``(N, out)``."""
MakeProduct = Callable[[Tensor, Tensor], Product]
"""Makes the product with a weight, int8, ``(out, in)``, and the scale of each column of its sums, float32, ``(out,)``.
"""


class Int8Linear:
    """A linear layer of whose weight only the rounded integers are kept."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """Round a weight, shape ``(out, in)``; the bias, ``(out,)``, stays in float32."""
        scale = weight.abs().amax(dim=1).clamp_min(1e-12) / _WEIGHT
        self._bias = bias
        integers = (weight / scale[:, None]).round().to(torch.int8)
        self._product = fastest_product(weight.device.type)(integers, scale)

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply rows of float32, shape ``(N, in)``, to ``(N, out)``."""
        # Two extremes are found in less time than absolute values are written to memory.
        largest = torch.maximum(rows.amax(dim=1, keepdim=True), rows.amin(dim=1, keepdim=True).neg_())
        scale = largest.clamp_min_(1e-12).div_(_INPUT)
        sums = self._product((rows / scale).round_())
        return torch.addcmul(self._bias, sums, scale, out=sums)


def onednn_product(weight: Tensor, scale: Tensor) -> Product:
    """Return oneDNN's product, the fastest with VNNI."""
    multiply = torch.ops.onednn.qlinear_pointwise
    packed = torch.ops.onednn.qlinear_prepack(weight.contiguous(), None)  # it reads past strides
    zeros = torch.zeros(len(weight), dtype=torch.int32)

    def multiply_rows(rows: Tensor) -> Tensor:
        # Without AMX, oneDNN multiplies signed rows in a plain loop.
        unsigned = rows.to(torch.int8).view(torch.uint8).add_(_ZERO)
        sums: Tensor = multiply(unsigned, 1.0, _ZERO, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        return sums

    return multiply_rows


def tensor_core_product(weight: Tensor, scale: Tensor) -> Product:
    """Return cuBLAS's product, which multiplies no fewer than 17 rows."""
    columns = weight.t()

    def multiply(rows: Tensor) -> Tensor:
        integers = nn.functional.pad(rows.to(torch.int8), (0, 0, 0, max(0, _FEWEST_ROWS - len(rows))))
        return torch._int_mm(integers, columns)[: len(rows)].float().mul_(scale)

    return multiply


def fbgemm_product(weight: Tensor, scale: Tensor) -> Product:
    """Return FBGEMM's product, which needs AVX2."""
    engine = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "fbgemm"
        with warnings.catch_warnings():
            # That tensors with a scale are to go; a torch without them has the other products.
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
            zeros = torch.zeros(len(weight), dtype=torch.int64)
            scaled = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
            packed = torch.ops.quantized.linear_prepack(scaled, None)
    finally:
        torch.backends.quantized.engine = engine
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return lambda rows: multiply(rows, 1.0, _ZERO, packed)


def float_product(weight: Tensor, scale: Tensor) -> Product:
    """Return the product in float32, whose partial sums are small enough to be exact."""
    parts = weight.float().split(_EXACT_COLUMNS, dim=1)

    def multiply(rows: Tensor) -> Tensor:
        sums = [linear(left, right) for left, right in zip(rows.split(_EXACT_COLUMNS, dim=1), parts, strict=True)]
        return (sums[0] if len(sums) == 1 else torch.stack(sums).double().sum(dim=0).float()).mul_(scale)

    return multiply


@cache
def fastest_product(device: str = "cpu") -> MakeProduct:
    """Return the maker of products that is the fastest on a kind of device, of those that are exact.

    On a CPU their speed is measured; on a GPU the first one that is exact is taken.
    """
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(-_INPUT, _INPUT + 1, (_PASS_ROWS, 384), generator=generator).float()
    weight = torch.randint(-_WEIGHT, _WEIGHT + 1, (1152, 384), generator=generator, dtype=torch.int8)
    scale = torch.rand(len(weight), generator=generator)
    rows[:4], weight[:4], weight[4:8] = _INPUT, _WEIGHT, -_WEIGHT
    few = rows[:_FEWEST_ROWS]
    exact = (few.double() @ weight.double().t()).float() * scale
    own_rows, own_weight, own_scale = rows.to(device), weight.to(device), scale.to(device)
    found: dict[MakeProduct, Product] = {}
    for make in (onednn_product, fbgemm_product, float_product) if device == "cpu" else (tensor_core_product,):
        try:
            product = make(own_weight, own_scale)
            with torch.autocast(device, enabled=False):  # it would round the sums
                if torch.equal(product(own_rows[:_FEWEST_ROWS]).cpu(), exact):
                    found[make] = product
        except (RuntimeError, AttributeError):
            continue  # this build of torch does not have it
    with torch.autocast(device, enabled=False):
        turns = [{make: _seconds(product, own_rows) for make, product in found.items()} for _ in range(5)]
    return min(found, key=lambda make: min(turn[make] for turn in turns), default=float_product)


def _seconds(product: Product, rows: Tensor) -> float:
    started = time.thread_time()  # other processes may hold the processor meanwhile
    product(rows)
    return time.thread_time() - started


# Values of config.json that the network below has; a key that is missing has the same value.
_NETWORK = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
_STREAMS = ("query", "key", "value")
_TOKENIZERS = ("BertTokenizer", "BertTokenizerFast")


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """Windows of subwords, N in all, one after the other."""

    numbers: Tensor
    """Shape ``(N,)``, int64, on the network's device."""
    places: Tensor
    """The place of each subword in its window, shape ``(N,)``, int64."""
    lengths: Sequence[tuple[int, int]]
    """How many windows in a row have one length, and that length in subwords."""
    padded: tuple[Tensor, Tensor, Tensor] | None = None
    """On a GPU, the subwords of each window, shape ``(windows, longest)``, int64; which of these are not padding; and
    the cell of each subword among them, ``(N,)``, int64. None on a CPU."""


class Bert:
    """The network of a BERT encoder for inference only, in float32 but for the products of its layers.

    These are in int8 or float32, as its precision says; in float32, where autocast is on, in bfloat16.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        *,
        precision: Precision,
        table: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Store the weights, by their names in model.safetensors; the values are those of config.json.

        A table returns the embeddings of subword numbers, ``(N,)`` to ``(N, width)``; None for those of the weights.
        """
        self.width: int = config["hidden_size"]
        self.positions: int = config["max_position_embeddings"]
        self._layers: int = config["num_hidden_layers"]
        self._heads: int = config["num_attention_heads"]
        self._epsilon: float = config["layer_norm_eps"]
        self._weights = dict(weights)
        self._device = weights["embeddings.LayerNorm.weight"].device
        self._table = table or partial(embedding, weight=weights["embeddings.word_embeddings.weight"])
        for layer in range(self._layers):
            for kind in ("weight", "bias"):
                # One product of matrices is faster than three.
                names = [f"encoder.layer.{layer}.attention.self.{stream}.{kind}" for stream in _STREAMS]
                joined = torch.cat([self._weights.pop(name) for name in names])
                self._weights[f"encoder.layer.{layer}.attention.self.{kind}"] = joined
        self._products: dict[str, Int8Linear] = {}
        if precision == "int8":
            for name in self._product_names():
                weight, bias = (self._weights[f"{name}.{kind}"] for kind in ("weight", "bias"))
                self._products[name] = Int8Linear(weight, bias)
                del self._weights[f"{name}.weight"]

    def states(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the embeddings and the states of each layer, shape ``(N, width)``, float32.

        The rows are windows of subword numbers, N in all. Only attention knows where a window ends. On a CPU it reads
        neighbouring windows of one length together, so that nothing is padded; on a GPU, all of them at once.
        """
        with torch.autocast(self._device.type, enabled=False) if self._products else nullcontext():
            windows = self._arrange(rows)
            states = [self._embed(windows.numbers, windows.places)]
            for layer in range(self._layers):
                states.append(self._transform(f"encoder.layer.{layer}", states[-1], windows))
            return states

    def _arrange(self, rows: Sequence[Sequence[int]]) -> Windows:
        numbers = torch.tensor(list(chain.from_iterable(rows)))
        places = torch.cat([torch.arange(len(row)) for row in rows])
        lengths = [(sum(1 for _ in windows), length) for length, windows in groupby(map(len, rows))]
        if self._device.type == "cpu":
            return Windows(numbers=numbers, places=places, lengths=lengths)
        index = pad_sequence(list(torch.arange(len(numbers)).split(list(map(len, rows)))), True, padding_value=-1)
        inside = index >= 0
        cells = inside.flatten().nonzero()[:, 0]
        numbers, places, index, inside, cells = send(self._device, numbers, places, index.clamp(min=0), inside, cells)
        return Windows(numbers=numbers, places=places, lengths=lengths, padded=(index, inside, cells))

    def _embed(self, numbers: Tensor, places: Tensor) -> Tensor:
        types, positions = (
            self._weights[f"embeddings.{name}_embeddings.weight"] for name in ("token_type", "position")
        )
        return self._normalize("embeddings", self._table(numbers) + types[0] + embedding(places, positions))

    def _transform(self, layer: str, states: Tensor, windows: Windows) -> Tensor:
        attended = self._project(f"{layer}.attention.output.dense", self._attend(layer, states, windows))
        states = self._normalize(f"{layer}.attention.output", attended + states)
        inner = gelu(self._project(f"{layer}.intermediate.dense", states))
        return self._normalize(f"{layer}.output", self._project(f"{layer}.output.dense", inner) + states)

    def _attend(self, layer: str, states: Tensor, windows: Windows) -> Tensor:
        projected = self._project(f"{layer}.attention.self", states).unflatten(1, (len(_STREAMS), self._heads, -1))
        if windows.padded is not None:
            index, inside, cells = windows.padded
            query, key, value = projected[index].permute(2, 0, 3, 1, 4)
            found = scaled_dot_product_attention(query, key, value, attn_mask=inside[:, None, None])
            return found.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, cells)
        sizes = [count * length for count, length in windows.lengths]
        attended = []
        for part, shape in zip(projected.split(sizes), windows.lengths, strict=True):
            query, key, value = part.unflatten(0, shape).permute(2, 0, 3, 1, 4)
            attended.append(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2).flatten(0, 1))
        return torch.cat(attended)

    def _project(self, name: str, states: Tensor) -> Tensor:
        if name in self._products:
            return self._products[name](states)
        weights = self._rounded if torch.is_autocast_enabled(self._device.type) else self._weights
        return linear(states, weights[f"{name}.weight"], weights[f"{name}.bias"])

    @cached_property
    def _rounded(self) -> dict[str, Tensor]:
        """The weights of products in bfloat16, which autocast would round in every pass."""
        names = [f"{name}.{kind}" for name in self._product_names() for kind in ("weight", "bias")]
        return {name: self._weights[name].bfloat16() for name in names}

    def _product_names(self) -> list[str]:
        parts = ("attention.self", "attention.output.dense", "intermediate.dense", "output.dense")
        return [f"encoder.layer.{layer}.{part}" for layer in range(self._layers) for part in parts]

    def _normalize(self, name: str, states: Tensor) -> Tensor:
        weight, bias = (self._weights[f"{name}.LayerNorm.{kind}"] for kind in ("weight", "bias"))
        return layer_norm(states, weight.shape, weight, bias, self._epsilon)


def read_bert(
    folder: Path, *, weights_name: str, precision: Precision, device: str, replaced: Mapping[str, Tensor] | None = None
) -> tuple[Bert, SubwordTokenizer] | None:
    """Read a Hugging Face folder; None if it has another network or tokenizer, which transformers has to read.

    The weights in ``replaced`` take the place of those of the same names in the folder.

    Raises:
        OSError, ValueError, KeyError, SafetensorError: when its files are damaged.
    """
    config = _read_json(folder / "config.json")
    if config.get("model_type") != "bert" or any(config.get(key, value) != value for key, value in _NETWORK.items()):
        return None
    tokenizer = _read_tokenizer(folder)
    with safe_open(folder / weights_name, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(("embeddings.", "encoder."))]  # noqa: SIM118
        is_float32 = all(file.get_slice(name).get_dtype() == "F32" for name in names if name.endswith("weight"))
    if tokenizer is None or not names or not is_float32:
        return None
    weights = load_file(folder / weights_name, device=device)
    weights |= {name: value.to(device) for name, value in (replaced or {}).items()}
    return Bert(config, {name: weights[name] for name in names}, precision=precision), tokenizer


def _read_tokenizer(folder: Path) -> SubwordTokenizer | None:
    """Read tokenizer.json if it does what tokenizer_config.json says, which transformers goes by."""
    if not all((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    config, stored = _read_json(folder / "tokenizer_config.json"), _read_json(folder / "tokenizer.json")
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        "strip_accents": config.get("strip_accents"),
        "lowercase": config.get("do_lower_case", True),
    }
    from tokenizers import Tokenizer  # only the extra 'hf' brings it

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokens = [config.get(f"{name}_token", f"[{name.upper()}]") for name in ("cls", "sep", "pad", "unk")]
    known = [tokenizer.token_to_id(token) for token in tokens if isinstance(token, str)]
    numbers = [number for number in known if number is not None]
    if (
        config.get("tokenizer_class") not in _TOKENIZERS
        or stored["normalizer"] != normalizer
        or stored["pre_tokenizer"] != {"type": "BertPreTokenizer"}
        or stored["model"].get("type", "WordPiece") != "WordPiece"
        or len(numbers) < len(tokens)
    ):
        return None

    def split(words: list[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch_fast(words, add_special_tokens=False)]

    start, end, padding, unknown = numbers
    return SubwordTokenizer(split=split, start=start, end=end, padding=padding, unknown=unknown)


def _read_json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_bytes())
    return values
