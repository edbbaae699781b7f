"""Linear layers in int8, for inference: their sums are exact, so a row's result depends on that row alone.

Each row of the input is scaled by its own largest value to integers of at most 127, each row of the weight by its own
to at most 64; the integers are multiplied and summed exactly, and the sums are scaled back. Which of torch's products
is used is decided by what the processor does fastest, and changes no bit; on a GPU it is that of its tensor cores.
"""

import time
import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_INPUT, _WEIGHT = 127, 64
"""The largest integers. Processors without VNNI add pairs of products in 16 bits: 2 * 255 * 64 fits in them, while
weights of up to 127 would saturate without a word."""
_EXACT_COLUMNS = (1 << 24) // (_INPUT * _WEIGHT)
"""Sums of products over more columns may be ones that float32 rounds."""
_FEWEST_ROWS = 32
_ZERO = 128
"""Added to inputs where a product reads unsigned integers."""

Product = Callable[[Tensor], Tensor]
"""Multiplies rows of whole numbers, float32, ``(N, in)``, by a weight; returns the sums in float32, ``(N, out)``."""


class Int8Linear:
    """A linear layer of whose weight only the rounded integers are kept."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """Round a weight, shape ``(out, in)``; the bias, ``(out,)``, stays in float32."""
        self._scale = weight.abs().amax(dim=1).clamp_min(1e-12) / _WEIGHT
        self._bias = bias
        integers = (weight / self._scale[:, None]).round().to(torch.int8)
        self._product = fastest_product(weight.device.type)(integers)

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply rows of float32, shape ``(N, in)``, to ``(N, out)``."""
        scale = rows.abs().amax(dim=1, keepdim=True).clamp_min_(1e-12).div_(_INPUT)
        sums = self._product((rows / scale).round_())
        return torch.addcmul(self._bias, sums.mul_(scale), self._scale)


def onednn_product(weight: Tensor) -> Product:
    """Return oneDNN's product, the fastest with VNNI; without AVX-512 torch has a loop in its place."""
    columns = weight.t()
    return lambda rows: torch._int_mm(rows.to(torch.int8), columns).float()


def tensor_core_product(weight: Tensor) -> Product:
    """Return cuBLAS's product, which multiplies no fewer than 17 rows."""
    columns = weight.t()

    def multiply(rows: Tensor) -> Tensor:
        integers = nn.functional.pad(rows.to(torch.int8), (0, 0, 0, max(0, _FEWEST_ROWS - len(rows))))
        return torch._int_mm(integers, columns)[: len(rows)].float()

    return multiply


def fbgemm_product(weight: Tensor) -> Product:
    """Return FBGEMM's product, which needs AVX2."""
    engine = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "fbgemm"
        with warnings.catch_warnings():
            # That tensors with a scale are to go; a torch without them has the other products.
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
            scaled = torch._make_per_tensor_quantized_tensor(weight, 1.0, 0)
            packed = torch.ops.quantized.linear_prepack(scaled, None)
    finally:
        torch.backends.quantized.engine = engine
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return lambda rows: multiply(rows, 1.0, _ZERO, packed)


def float_product(weight: Tensor) -> Product:
    """Return the product in float32, whose partial sums are small enough to be exact."""
    parts = weight.float().split(_EXACT_COLUMNS, dim=1)

    def multiply(rows: Tensor) -> Tensor:
        sums = [linear(left, right) for left, right in zip(rows.split(_EXACT_COLUMNS, dim=1), parts, strict=True)]
        return sums[0] if len(sums) == 1 else torch.stack(sums).double().sum(dim=0).float()

    return multiply


@cache
def fastest_product(device: str = "cpu") -> Callable[[Tensor], Product]:
    """Return the maker of products that is the fastest on a kind of device, of those that are exact.

    On a CPU their speed is measured; on a GPU the first one that is exact is taken.
    """
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(-_INPUT, _INPUT + 1, (64, 384), generator=generator).float()
    weight = torch.randint(-_WEIGHT, _WEIGHT + 1, (384, 384), generator=generator, dtype=torch.int8)
    rows[:4], weight[:4], weight[4:8] = _INPUT, _WEIGHT, -_WEIGHT
    exact = rows.double() @ weight.double().t()
    own_rows, own_weight = rows.to(device), weight.to(device)
    found: dict[Callable[[Tensor], Product], float] = {}
    for make in (onednn_product, fbgemm_product, float_product) if device == "cpu" else (tensor_core_product,):
        try:
            product = make(own_weight)
            with torch.autocast(device, enabled=False):  # it would round the sums
                if torch.equal(product(own_rows).double().cpu(), exact):
                    found[make] = min(_seconds(product, own_rows) for _ in range(3))
        except (RuntimeError, AttributeError):
            continue  # this build of torch does not have it
    return min(found, key=lambda make: found[make], default=float_product)


def _seconds(product: Product, rows: Tensor) -> float:
    started = time.perf_counter()
    product(rows)
    return time.perf_counter() - started
