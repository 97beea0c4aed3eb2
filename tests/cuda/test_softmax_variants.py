"""Every variant of softmax, and values that a slice of a row could spoil for the others."""

import pytest
import tilewise as tw
import torch
from support.forced import DEVICE, needs
from support.reference import SOFTMAX
from support.tolerance import FLOATS, assert_identical, assert_rounded
from tilewise import _core

pytestmark = needs("a GPU")

VARIANTS = [(entry, value) for entry in _core.variants()["softmax"] for value in entry["values"]]
SHORT_ROWS = [(entry["name"], value) for entry, value in VARIANTS if entry["row_length"] < 5000]
ROWS = [(entry["name"], value) for entry, value in VARIANTS if entry["row_length"] > 1000]
COLUMNS = [(entry["name"], value) for entry, value in VARIANTS if entry["columns"]]
OPS = {"softmax": tw.softmax, "log_softmax": tw.log_softmax}

rows = pytest.mark.parametrize("variant", ROWS, ids=str)
columns = pytest.mark.parametrize("variant", COLUMNS, ids=str)
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def check(x, dim=-1, dtype=None, context=""):
    for op, function in OPS.items():
        expected, error = SOFTMAX[op](x, dim, dtype)
        assert_rounded(function(x, dim, dtype=dtype), expected, error, f"{op} {context}")


def random(*shape, dtype):
    return torch.randn(shape, device=DEVICE).to(dtype)


@dtypes
@pytest.mark.parametrize("variant", SHORT_ROWS, ids=str)
def test_short_rows(variant, dtype):
    _core.force_softmax(*variant)
    for n in (1, 2, 7, 17, 33, 64, 65, 129, 255, 512):
        for count in (1, 5, 130):
            check(random(count, n, dtype=dtype), context=f"({count}, {n}):")
            check(random(count, n + 3, dtype=dtype)[:, 1:-2], context=f"({count}, {n}) sliced:")


@rows
@dtypes
def test_rows(variant, dtype):
    _core.force_softmax(*variant)
    for n in (130, 781, 4096, 20001):
        check(random(3, n, dtype=dtype), context=f"{n}:")
        check(random(3, n + 5, dtype=dtype)[:, 3:-2], context=f"{n} sliced:")


@dtypes
def test_a_row_in_registers_in_shared_memory_and_beyond(dtype):
    _core.force_softmax("grid", 1)
    x = random(2, 420_001 // dtype.itemsize, dtype=dtype)
    check(x)
    x[1, 3:] = -torch.inf
    check(x)
    expected = tw.softmax(x)
    tw.softmax(x, out=x)
    assert_identical(x, expected)


@rows
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_conversion_of_rows(variant, dtype):
    _core.force_softmax(*variant)
    check(random(3, 5001, dtype=dtype)[:, 1:], dtype=torch.float32)


@columns
@dtypes
@pytest.mark.parametrize(
    "shape", [(3, 300, 24), (2, 333, 100), (2, 200, 33), (1, 70, 1000), (5, 257, 2)], ids=str
)
def test_columns(variant, dtype, shape):
    _core.force_softmax(*variant)
    check(random(*shape, dtype=dtype), 1)
    check(random(*shape[:2], shape[2] + 3, dtype=dtype)[:, 2:, 1:-1], 1, context="sliced:")


@columns
@dtypes
def test_columns_of_rows_with_gaps(variant, dtype):
    _core.force_softmax(*variant)
    x = random(2, 300, 320, dtype=dtype)
    for cut in (16, 2, 1):
        check(x[:, :, cut : cut + 292], 1, context=f"from {cut}:")


@columns
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_conversion_of_columns(variant, dtype):
    _core.force_softmax(*variant)
    for inner in (24, 22, 7):
        check(random(3, 150, inner, dtype=dtype), 1, torch.float32)


def spoiled(dtype, length):
    """Rows in which a slice must not change the results of other slices, or must."""
    x = random(9, length, dtype=dtype)
    info = torch.finfo(dtype)
    x[0, : length - 3] = -torch.inf  # slices without a finite element
    x[1, 3:] = -torch.inf
    x[2] = -torch.inf
    x[3] = info.min
    x[4, : length // 2] = info.min
    x[5, length // 3] = torch.nan
    x[6, length - 1] = torch.inf
    x[7] = -1000  # far below 0, next to slices without a finite element
    x[7, length // 4 :] = -torch.inf
    x[8] = info.smallest_normal / 4
    return x


@rows
@dtypes
def test_spoiled_rows(variant, dtype):
    _core.force_softmax(*variant)
    for length in (300, 9001):
        check(spoiled(dtype, length))


@columns
@dtypes
def test_spoiled_columns(variant, dtype):
    _core.force_softmax(*variant)
    check(spoiled(dtype, 700).T.contiguous(), 0)
    check(spoiled(dtype, 700).T.contiguous()[:, :8], 0)


@rows
def test_in_place_rows(variant):
    _core.force_softmax(*variant)
    x = random(3, 5001, dtype=torch.float32)
    expected = tw.softmax(x)
    tw.softmax(x, out=x)
    assert_identical(x, expected)


@columns
def test_in_place_columns(variant):
    _core.force_softmax(*variant)
    x = random(3, 300, 24, dtype=torch.bfloat16)
    expected = tw.softmax(x, 1)
    tw.softmax(x, 1, out=x)
    assert_identical(x, expected)


def test_a_variant_that_is_not_known():
    with pytest.raises(ValueError, match="is not known; accepted"):
        _core.force_softmax("turbo")
