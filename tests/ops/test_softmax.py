"""softmax and log_softmax along the last dimension and any other, with and without dtype=."""

import pytest
import tilewise as tw
import torch
from support.reference import SOFTMAX
from support.tolerance import FLOATS, INTEGERS, assert_identical, assert_rounded

# Row lengths on both sides of every width at which a kernel could change its way: vectors, warps, blocks,
# the register and shared memory capacity of a block, odd vocabularies, rows longer than any of them.
SHORT = [*range(1, 18), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]
LONG = [
    511,
    513,
    781,
    1000,
    1023,
    1024,
    1025,
    2047,
    2048,
    2049,
    3073,
    4095,
    4096,
    4097,
    6145,
    8192,
    8193,
    12672,
]
LONGER = [16384, 16385, 24576, 32768, 32769, 50257, 65536, 65537, 115_100, 131072, 131073, 262144, 300001]
LONGER += [262_152, 540_673]  # one launch of the whole device
LONGER += [524_288, 530_001, 1_048_577]

INF, NAN = float("inf"), float("nan")
OPS = {"softmax": tw.softmax, "log_softmax": tw.log_softmax}
ops = pytest.mark.parametrize("op", list(OPS))
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def check(op, x, dim=-1, dtype=None, context=""):
    got = OPS[op](x, dim, dtype=dtype)
    expected, error = SOFTMAX[op](x, dim, dtype)
    assert got.dtype == (dtype or x.dtype)
    assert got.is_contiguous()
    assert_rounded(got, expected, error, context)
    return got


@ops
@dtypes
def test_short_rows(device, op, dtype):
    for n in SHORT:
        for rows in (1, 3, 37, 300):
            check(op, torch.randn(rows, n, device=device).to(dtype), context=f"({rows}, {n}):")


@ops
@dtypes
def test_short_rows_beside_special_ones(device, op, dtype):
    special = {0: NAN, 9: INF, 10: -INF, 20: torch.finfo(dtype).max, 33: torch.finfo(dtype).min, 69: NAN}
    others = [row for row in range(70) if row not in special]
    for n in range(1, 34):
        x = torch.randn(70, n, device=device).to(dtype)
        beside = x.clone()
        for row, value in special.items():
            beside[row, row % n] = value
        beside[10] = -INF
        assert_identical(check(op, beside, context=f"{n}:")[others], OPS[op](x)[others])
        for rows in (x, beside):
            assert_identical(OPS[op](rows, out=rows.clone()), OPS[op](rows))


@ops
@dtypes
@pytest.mark.parametrize("n", LONG)
def test_long_rows(device, op, dtype, n):
    for rows in (1, 7):
        check(op, torch.randn(rows, n, device=device).to(dtype), context=f"({rows}, {n}):")


@ops
@dtypes
@pytest.mark.parametrize("n", LONGER)
def test_longer_rows(device, op, dtype, n):
    check(op, torch.randn(3, n, device=device).to(dtype))


@ops
@dtypes
@pytest.mark.parametrize("n", [64, 1000, 8192])
def test_more_rows_than_any_grid_holds_at_once(device, op, dtype, n):
    rows = (1_000_000 if device == "cpu" else 5_000_000) // n
    check(op, torch.randn(rows, n, device=device).to(dtype))


@ops
@dtypes
@pytest.mark.parametrize("scale", [1e-3, 10, 100])
@pytest.mark.parametrize("shift", [0, 1000, -30000])
def test_scale_and_shift(device, op, dtype, scale, shift):
    x = (torch.randn(5, 777, dtype=torch.float64, device=device) * scale + shift).to(dtype)
    check(op, x)


@ops
@dtypes
@pytest.mark.parametrize(
    "shape",
    [
        (5,),
        (3, 4),
        (2, 3, 4),
        (65, 33, 7),
        (4, 257, 3),
        (2, 1000, 40),
        (3, 2, 5, 4),
        (2, 1, 3, 1, 4, 2, 3),
        (129, 1, 2),
    ],
    ids=str,
)
def test_every_dim(device, op, dtype, shape):
    x = torch.randn(shape, device=device).to(dtype)
    for dim in range(-len(shape), len(shape)):
        check(op, x, dim, context=f"dim {dim}:")


# On GPUs: rows in one piece and apart, of whole accesses and of fewer, of one block and of several.
@ops
@dtypes
@pytest.mark.parametrize(
    "shape", [(5, 8, 300), (300, 16, 64), (2, 64, 2064), (3, 1000, 100), (2, 4096, 66), (1030, 1028)], ids=str
)
def test_a_dim_of_column_tiles(device, op, dtype, shape):
    x = torch.randn(shape, device=device).to(dtype)
    check(op, x, dim=-2)
    check(op, x[..., 2:], dim=-2, context="sliced:")


# On a CPU: pairs of groups of columns and parts of one; runs of 16 elements; columns far from each other.
@ops
@dtypes
@pytest.mark.parametrize("length", [1, 2, 7, 16, 17, 32, 33, 64, 65])
def test_short_columns_side_by_side(device, op, dtype, length):
    for columns in (2, 3, 15, 16, 17, 31, 32, 33, 48, 50, 64, 77, 257, 1070):
        x = torch.randn(6, length, columns + 2, device=device).to(dtype)
        x[1, :, 0] = -INF
        x[2, 0, 1] = NAN
        x[3, -1, columns - 1] = INF
        x[4, 0] = -INF
        for part in (slice(None), slice(0, columns), slice(1, columns + 1)):
            rows, out = x[..., part], torch.full_like(x, NAN)
            got = check(op, rows, 1, context=f"{columns + 2}, {part}:")
            assert not got[[0, 5]].isnan().any()
            OPS[op](rows, 1, out=out[..., part])
            if x.is_cpu:
                assert_identical(out[..., part], got)
            else:  # other strides, which may be another kernel's
                assert_rounded(out[..., part], *SOFTMAX[op](rows, 1, None))
            out[..., part] = NAN
            assert out.isnan().all()


# On GPUs: a thread a row; tiles of one block, of a cluster, of two launches; whole accesses and fewer.
@ops
@dtypes
@pytest.mark.parametrize(
    "shape",
    [
        (2, 3, 5000),
        (3, 21, 1000),
        (2, 19, 333),
        (2, 64, 130),
        (5, 150, 66),
        (1024, 512),
        (999, 77),
        (20_011, 64),
        (100_003, 9),
    ],
    ids=str,
)
def test_rows_transposed_to_their_results(device, op, dtype, shape):
    x = torch.randn(shape, device=device).to(dtype)
    y = x.mT.contiguous()
    for context, rows in (("", x), ("sliced: ", x[..., 1:])):
        check(op, rows.mT, context=f"{context}to rows")
        check(op, rows.mT, context=f"{context}to float32 rows", dtype=torch.float32)
    for context, rows in (("", y), ("sliced: ", y[..., 1:])):
        check(op, rows.mT, dim=-2, context=f"{context}to columns")


@ops
@dtypes
@pytest.mark.parametrize(
    "shape",
    [
        (5000, 3),
        (33, 4099),
        (1024, 130),
        (2, 20000, 9),
        (8192, 48),
        (66000, 16),
        (2050, 1300),
        (3, 9000, 100),
        (20000, 33),
        (64, 100, 10),
        (4099, 20),
        (3, 4, 24),
        (4, 3000, 300),
    ],
    ids=str,
)
def test_a_long_dim_that_is_not_the_last(device, op, dtype, shape):
    check(op, torch.randn(shape, device=device).to(dtype), dim=-2)


@ops
@pytest.mark.parametrize("target", FLOATS, ids=str)
@dtypes
def test_dtype_converts_before_computing(device, op, dtype, target):
    for shape, dim in [((7, 65), -1), ((7, 65), 0), ((3, 5000), -1)]:
        check(op, torch.randn(shape, dtype=torch.float64, device=device).to(dtype), dim, target)


@ops
@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS], ids=str)
def test_integers_are_converted_first(device, op, dtype, target):
    low, high = (0, 2) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    for shape, dim in [((), -1), ((7, 65), -1), ((7, 65), 0), ((2, 3, 33), 1), ((2, 5000), -1), ((3, 0), 1)]:
        for bounds in ((low, high), (max(low, -20), min(high, 20))):
            x = torch.randint(*bounds, shape, device=device).to(dtype)
            check(op, x, dim, target, f"{shape} within {bounds}:")
        check(op, x.permute(tuple(range(x.ndim))[::-1]), dim, target, f"{shape} transposed:")
    out = torch.empty(7, 2, dtype=target, device=device)
    x = torch.randint(0, 2, (7, 4), device=device).to(dtype)[:, ::2]
    assert OPS[op](x, dtype=target, out=out) is out
    expected, error = SOFTMAX[op](x, dtype=target)
    assert_rounded(out, expected, error)


def test_integers_need_a_dtype(device):
    for x in (torch.arange(3, device=device), torch.tensor([True, False], device=device)):
        with pytest.raises(tw.DTypeError, match="without dtype="):
            tw.softmax(x)
        with pytest.raises(tw.DTypeError, match="can return"):
            tw.log_softmax(x, dtype=x.dtype)


def test_dtype_is_applied_to_the_input_not_only_to_the_result(device):
    # In float16 both inputs are 2048 and the probabilities equal; in float32 they differ.
    x = torch.tensor([2048.0, 2049.0], device=device)
    assert tw.softmax(x, dtype=torch.float16).tolist() == [0.5, 0.5]
    assert tw.softmax(x, dtype=torch.float32).tolist() != [0.5, 0.5]
    # The other way the result keeps what float16 could not hold.
    x = torch.tensor([0.0, -20.0], dtype=torch.float16, device=device)
    expected = torch.softmax(x.double(), 0)[1].item()
    assert tw.softmax(x, dtype=torch.float32)[1].item() == pytest.approx(expected, rel=2e-6)


@dtypes
def test_rows_sum_to_one(device, dtype):
    for n in (3, 100, 5000, 70001):
        total = tw.softmax(torch.randn(4, n, device=device).to(dtype)).double().sum(-1)
        # Each probability is off by half a step at most, so the sum by half a step of 1.
        assert (total - 1).abs().max() < 1.1 * torch.finfo(dtype).eps + (
            n * 2**-25 if dtype == torch.float16 else 2e-6
        )


@ops
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((600, 1725), 1),
        ((180, 5626), 1),
        ((16, 20000), 1),
        ((500, 1000, 7), 1),
        ((500, 64, 33), 1),
        ((16, 600, 33), 1),
        ((14, 1577, 129), 1),
        ((2048, 600), 0),
        ((40000, 5), 0),
    ],
)
def test_many_small_terms_beside_a_large_one(device, op, dtype, shape, dim):
    """Each of them is rounded alike where it is added to the large one."""
    x = torch.zeros(shape, device=device)
    x.select(dim, shape[dim] // 3).fill_(6.5)
    x = (x + torch.rand(shape, device=device).mean(dim, keepdim=True)).to(dtype)
    expected, error = SOFTMAX[op](x, dim, torch.float32)
    assert_rounded(OPS[op](x, dim, dtype=torch.float32), expected, error)


@dtypes
def test_equal_inputs_share_equally(device, dtype):
    for n in (1, 2, 16, 4096, 65536):
        got = tw.softmax(torch.full((2, n), 3.0, dtype=dtype, device=device))
        assert_identical(got, torch.full_like(got, 1 / n))


def test_dim_defaults_to_the_last(device):
    x = torch.randn(4, 5, 6, device=device)
    assert_identical(tw.softmax(x), tw.softmax(x, 2))
    assert_identical(tw.log_softmax(x), tw.log_softmax(x, dim=2))


@ops
def test_the_input_is_not_written(device, op):
    x = torch.randn(7, 300, device=device)
    before = x.clone()
    OPS[op](x)
    assert_identical(x, before)
