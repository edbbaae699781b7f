"""Int8 products: exact sums on every processor, and rows that depend on nothing but themselves."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest
import torch
from concord_testing.checkout import CHECKOUT
from torch import Tensor

from concord.models.words import bert
from concord.models.words.bert import (
    Int8Linear,
    MakeProduct,
    Product,
    fastest_product,
    fbgemm_product,
    float_product,
    onednn_product,
    tensor_core_product,
)

PRODUCTS: tuple[MakeProduct, ...] = (onednn_product, fbgemm_product, float_product, tensor_core_product)
# The child process compares every product that this build of torch has with sums in float64.
CHECK = """
import torch
from concord.models.words.bert import fastest_product, fbgemm_product, float_product, onednn_product

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(2)
for inner in (384, 1536):
    rows = torch.randint(-127, 128, (40, inner), generator=generator).float()
    weight = torch.randint(-64, 65, (48, inner), generator=generator, dtype=torch.int8)
    rows[:6], weight[:6], weight[6:12] = 127, 64, -64
    rows[6:9] = -127
    scale = torch.rand(48, generator=generator)
    exact = (rows.double() @ weight.double().t()).float() * scale
    found = []
    for make in (onednn_product, fbgemm_product, float_product):
        try:
            sums = make(weight, scale)(rows)
        except (RuntimeError, AttributeError):
            continue
        found.append(f"{make.__name__}={torch.equal(sums, exact)}")
    found.append(f"fastest={torch.equal(fastest_product()(weight, scale)(rows), exact)}")
    print(*found)
"""


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Let the fastest product be looked for again, before and after the test."""
    fastest_product.cache_clear()
    yield
    fastest_product.cache_clear()


def make_available(make: MakeProduct, weight: Tensor, scale: Tensor) -> Product:
    """Return a product; skip the test where this build of torch does not have it."""
    try:
        product = make(weight, scale)
        product(torch.zeros(1, weight.shape[1]))
    except (RuntimeError, AttributeError) as error:
        pytest.skip(f"this build of torch has no {make.__name__}: {error}")
    return product


def draw_integers(generator: torch.Generator, rows: int, inner: int, *, outer: int = 24) -> tuple[Tensor, Tensor]:
    """Draw rows and a weight of whole numbers, of which the first ones have the largest possible sums."""
    left = torch.randint(-127, 128, (rows, inner), generator=generator).float()
    right = torch.randint(-64, 65, (outer, inner), generator=generator, dtype=torch.int8)
    left[::3], right[:3], right[3:6] = 127, 64, -64
    left[1::5] = -127
    return left, right


@pytest.mark.parametrize("inner", [384, 1536, 2064, 5000])
@pytest.mark.parametrize("make", PRODUCTS)
def test_products_are_exact(make: MakeProduct, inner: int) -> None:
    generator = torch.Generator().manual_seed(inner)
    _, weight = draw_integers(generator, 1, inner)
    scale = torch.rand(len(weight), generator=generator)
    product = make_available(make, weight.t().contiguous().t(), scale)
    for rows in (1, 2, 3, 7, 16, 33, 64, 70):
        left, _ = draw_integers(generator, rows, inner)
        exact = left.double() @ weight.double().t()
        # Sums of more than 24 bits are rounded once before they are scaled.
        assert torch.equal(product(left), exact.float() * scale)


def test_partial_sums_in_float32_stay_exact_up_to_the_largest_part() -> None:
    columns = bert._EXACT_COLUMNS
    assert 127 * 64 * columns <= 2**24 < 127 * 64 * (columns + 1)
    rows, weight = torch.full((1, columns), 127.0), torch.full((1, columns), 64, dtype=torch.int8)
    rows[0, -1], weight[0, -1] = 1, 1
    assert float_product(weight, torch.ones(1))(rows).item() == 127 * 64 * (columns - 1) + 1


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_products_are_exact_with_the_instructions_of_other_processors(isa: str) -> None:
    """Without VNNI, oneDNN adds pairs of products in 16 bits."""
    variables = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    command = [sys.executable, "-c", CHECK]
    child = subprocess.run(
        command, cwd=CHECKOUT, env=variables, capture_output=True, text=True, check=False, timeout=120
    )
    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        answers = dict(answer.split("=") for answer in line.split())
        assert answers.keys() >= {"float_product", "fastest"}
        assert set(answers.values()) == {"True"}, line


def wrong_product(weight: Tensor, scale: Tensor) -> Product:
    """Return a product whose sums saturate."""
    return lambda rows: float_product(weight, scale)(rows).clamp(-(2**16), 2**16)


def missing_product(weight: Tensor, scale: Tensor) -> Product:
    raise RuntimeError("not compiled with this engine")


def product_failing_later(weight: Tensor, scale: Tensor) -> Product:
    def multiply(rows: Tensor) -> Tensor:
        raise RuntimeError("not implemented for 'Char'")

    return multiply


def undefined_product(weight: Tensor, scale: Tensor) -> Product:
    raise AttributeError("'_OpNamespace' 'onednn' object has no attribute 'qlinear_pointwise'")


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("fake", [wrong_product, missing_product, product_failing_later, undefined_product])
def test_products_that_are_wrong_or_missing_are_not_used(fake: MakeProduct, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert, "onednn_product", fake)
    monkeypatch.setattr(bert, "fbgemm_product", fake)
    seconds = count()
    monkeypatch.setattr(bert, "_seconds", lambda product, rows: float(next(seconds)))  # earlier ones seem faster
    assert fastest_product() is float_product


@pytest.mark.usefixtures("forgotten")
def test_products_are_compared_where_autocast_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert, "onednn_product", missing_product)
    monkeypatch.setattr(bert, "fbgemm_product", missing_product)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fastest_product() is float_product


@pytest.mark.usefixtures("forgotten")
def test_the_fastest_product_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([5.0, 9.0, 8.0, 3.0, 2.0, 8.0, *[4.0, 2.5, 8.0] * 3])
    monkeypatch.setattr(bert, "_seconds", lambda product, rows: next(seconds))
    first, second = (lambda weight, scale: float_product(weight, scale) for _ in range(2))
    monkeypatch.setattr(bert, "onednn_product", first)
    monkeypatch.setattr(bert, "fbgemm_product", second)
    assert fastest_product() is second


def test_the_engine_of_quantized_products_is_left_as_it_was() -> None:
    before = torch.backends.quantized.engine
    make_available(fbgemm_product, torch.ones(4, 4, dtype=torch.int8), torch.ones(4))
    assert torch.backends.quantized.engine == before


@pytest.mark.parametrize("shape", [(24, 384), (384, 96), (7, 130), (5, 3)])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_row_does_not_depend_on_the_others(shape: tuple[int, int], threads: int) -> None:
    generator = torch.Generator().manual_seed(5)
    layer = Int8Linear(torch.randn(shape, generator=generator), torch.randn(shape[0], generator=generator))
    rows = torch.randn(300, shape[1], generator=generator) * torch.rand(300, 1, generator=generator).exp2()
    expected = layer(rows)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count in (1, 1, 2, 3, 5, 16, 31, 64, 100, 257, 300):
            chosen = torch.randperm(300, generator=generator)[:count]
            assert torch.equal(layer(rows[chosen]), expected[chosen])
    finally:
        torch.set_num_threads(before)


def test_layer_is_close_to_the_one_in_float32() -> None:
    generator = torch.Generator().manual_seed(7)
    weight, bias = torch.randn(96, 384, generator=generator), torch.randn(96, generator=generator)
    rows = torch.randn(50, 384, generator=generator)
    exact = torch.nn.functional.linear(rows, weight, bias)
    found = Int8Linear(weight, bias)(rows)
    assert found.dtype == torch.float32
    assert float((found - exact).abs().max()) < 0.05 * float(exact.abs().max())
    assert float(torch.cosine_similarity(found, exact, dim=1).min()) > 0.999


def test_rows_and_weights_of_zeros_yield_the_bias() -> None:
    weight, bias = torch.tensor([[0.0, 0.0], [1.0, -2.0]]), torch.tensor([0.5, -0.25])
    layer = Int8Linear(weight, bias)
    assert layer(torch.zeros(1, 2)).tolist() == [[0.5, -0.25]]
    assert layer(torch.tensor([[3.0, 0.0]]))[0, 0] == 0.5
    assert layer(torch.zeros(0, 2)).shape == (0, 2)
