"""softmax_backward and log_softmax_backward against torch's in float64."""

import pytest
import tilewise as tw
import torch
from support import backward, views
from support.guarded import Guarded
from support.tolerance import FLOATS, assert_identical, assert_rounded

INF, NAN = float("inf"), float("nan")
OPS = {"softmax": tw.softmax_backward, "log_softmax": tw.log_softmax_backward}
FORWARD = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
ops = pytest.mark.parametrize("op", list(OPS))
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
makers = pytest.mark.parametrize("make", views.MAKERS, ids=views.name)

# Both sides of every width at which a kernel could change its way.
SHORT = [*range(1, 18), 31, 33, 63, 64, 65, 127, 128, 129, 256, 257, 511, 513, 781, 1000]
LONG = [1024, 1025, 2047, 2048, 2049, 3073, 4095, 4096, 4097, 6145, 8192, 8193, 12672]
LONGER = [16384, 16385, 24576, 32768, 32769, 50257, 65536, 65537, 131072, 131073, 300001]


def sample(op, shape, dtype, device, dim=-1):
    """A gradient and an output that softmax could have given."""
    x = 3 * torch.randn(shape, device=device, dtype=torch.float64)
    return torch.randn(shape, device=device).to(dtype), FORWARD[op](x, dim).to(dtype)


def check(op, grad, output, dim=-1, dtype=None, context="", out=None):
    reference, error = backward.softmax(op, grad, output, dim, dtype)
    got = OPS[op](grad, output, dim, dtype=dtype, out=out)
    assert got.dtype == (dtype or grad.dtype)
    assert out is not None or got.is_contiguous()
    assert_rounded(got, reference, error, context)
    return got


@ops
@dtypes
def test_short_rows(device, op, dtype):
    for n in SHORT:
        for rows in (1, 37, 300):
            check(op, *sample(op, (rows, n), dtype, device), context=f"({rows}, {n}):")


@ops
@dtypes
@pytest.mark.parametrize("n", LONG + LONGER)
def test_long_rows(device, op, dtype, n):
    for rows in (1, 5):
        check(op, *sample(op, (rows, n), dtype, device), context=f"({rows}, {n}):")


@ops
@dtypes
@pytest.mark.parametrize("n", [64, 1000, 8192])
def test_more_rows_than_any_grid_holds_at_once(device, op, dtype, n):
    rows = (500_000 if device == "cpu" else 5_000_000) // n
    check(op, *sample(op, (rows, n), dtype, device))


@ops
@dtypes
@pytest.mark.parametrize(
    "shape", [(), (5,), (3, 4), (65, 33, 7), (4, 257, 3), (2, 1000, 40), (2, 1, 3, 1, 4, 2, 3)], ids=str
)
def test_every_dim(device, op, dtype, shape):
    for dim in range(-max(1, len(shape)), max(1, len(shape))):
        check(op, *sample(op, shape, dtype, device, dim), dim, context=f"dim {dim}:")


@ops
@dtypes
@pytest.mark.parametrize(
    "shape",
    [(5000, 3), (33, 4099), (1024, 130), (70000, 16), (2, 20000, 9), (2050, 1300), (9000, 500)],
    ids=str,
)
def test_a_long_dim_that_is_not_the_last(device, op, dtype, shape):
    check(op, *sample(op, shape, dtype, device, -2), -2)


# As of the forward.
@ops
@dtypes
@pytest.mark.parametrize("length", [1, 2, 16, 17, 32, 33, 64, 65])
def test_short_columns_side_by_side(device, op, dtype, length):
    for columns in (2, 15, 16, 17, 31, 32, 33, 48, 50, 77, 257, 1070):
        grad, output = sample(op, (4, length, columns + 2), dtype, device, 1)
        grad[1, -1, columns - 1] = INF
        output[2, 0, 1] = NAN
        for part in (slice(None), slice(0, columns), slice(1, columns + 1)):
            got = check(op, grad[..., part], output[..., part], 1, context=f"{columns + 2}, {part}:")
            assert not got[[0, 3]].isnan().any()
            out = torch.full_like(grad, NAN)
            check(op, grad[..., part], output[..., part], 1, out=out[..., part])
            out[..., part] = NAN
            assert out.isnan().all()


@ops
@pytest.mark.parametrize("target", FLOATS, ids=str)
@dtypes
def test_dtype_is_that_of_the_result_alone(device, op, dtype, target):
    for shape, dim in [((7, 65), -1), ((7, 65), 0), ((3, 5000), -1), ((2, 70001), -1), ((6000, 17), 0)]:
        check(op, *sample(op, shape, dtype, device, dim), dim, target, context=f"{shape} dim {dim}:")


@ops
@dtypes
@makers
def test_views(device, op, dtype, make):
    for shape in [(300,), (5, 17), (33, 1000), (3, 4, 65), (40, 3, 5, 2)]:
        for dim in range(len(shape)):
            grad, output = sample(op, shape, dtype, device, dim)
            for g, y in [(make(grad), output), (grad, make(output)), (make(grad), make(output))]:
                check(op, g, y, dim, context=f"{shape} dim {dim}:")


@ops
@dtypes
def test_long_rows_that_start_anywhere(device, op, dtype):
    for n in (4097, 50257):
        grad, output = sample(op, (4, n), dtype, device)
        for one in (views.sliced, views.odd_rows, views.misaligned, views.transposed):
            for other in (views.contiguous, views.sliced, views.misaligned):
                context = f"{n} {one.__name__} {other.__name__}:"
                check(op, one(grad), other(output), context=context)
                check(op, other(grad), one(output), context=context)


# Each operation, dtype and length once: the reference takes seconds.
@pytest.mark.parametrize(
    ("op", "dtype", "n"),
    [("softmax", torch.float32, 781), ("log_softmax", torch.bfloat16, 100_003)],
    ids=str,
)
def test_results_larger_than_caches(device, op, dtype, n):
    rows = (34 << 20) // (dtype.itemsize * n)
    memory = torch.empty(rows * n + 1, dtype=dtype, device=device)
    out = memory[1:].view(rows, n)
    check(op, *sample(op, (rows, n), dtype, device), context=f"{n}:", out=out)


@ops
@dtypes
def test_expanded_gradients(device, op, dtype):
    for shape in [(6, 50), (33, 1000), (3, 9001), (2, 70001), (5, 40, 30)]:
        for dim in range(len(shape)):
            output = sample(op, shape, dtype, device, dim)[1]
            ones = [1] * len(shape)
            column, row = torch.randn(shape[0], *ones[1:]), torch.randn(*ones[1:], shape[-1])
            for grad in (torch.ones(()), column, row):
                grad = grad.to(device=device, dtype=dtype).expand(shape)
                check(op, grad, output, dim, context=f"{shape} {grad.stride()} dim {dim}:")


@ops
@dtypes
@pytest.mark.parametrize("cut", Guarded.CUTS)
def test_out_is_written_and_nothing_else(device, op, dtype, cut):
    for shape in [(1, 1), (5, 7), (33, 1025), (3, 4, 5), (2, 9001), (2, 40001), (2, 101, 20)]:
        for dim in range(len(shape)):
            guarded = Guarded(shape, dtype, device, cut)
            got = check(op, *sample(op, shape, dtype, device, dim), dim, out=guarded.out)
            assert got is guarded.out
            guarded.assert_rest_untouched()


@ops
@dtypes
def test_into_either_input(device, op, dtype):
    for shape in [(5, 7), (33, 1025), (2, 9001), (3, 300_001), (40, 3, 50), (6000, 17)]:
        for dim in range(len(shape)):
            grad, output = sample(op, shape, dtype, device, dim)
            expected = OPS[op](grad, output, dim)
            for i in (0, 1):
                inputs = [grad.clone(), output.clone()]
                OPS[op](*inputs, dim, out=inputs[i])
                assert_identical(inputs[i], expected, f"{shape} dim {dim}:")
                assert_identical(inputs[1 - i], (grad, output)[1 - i])


def test_an_out_that_overlaps_an_input_is_refused(device):
    memory = torch.randn(9, 6, device=device)
    other = torch.randn(8, 6, device=device)
    with pytest.raises(tw.LayoutError, match="`out` shares memory with `grad`"):
        tw.softmax_backward(memory[1:], other, out=memory[:-1])
    with pytest.raises(tw.LayoutError, match="`out` shares memory with `output`"):
        tw.log_softmax_backward(other, memory[1:], out=memory[:-1])


@ops
@dtypes
def test_special_numbers_spread_as_in_torch(device, op, dtype):
    # One length for each way a row may be worked on.
    for n in [1, 2, 5, 33, 100, 1000, 1025, 4097, 12672, 50257, 300_001]:
        grad, output = sample(op, (6, n), dtype, device)
        grad[1, n // 2] = NAN
        output[2, n - 1] = NAN
        grad[3, 0] = INF
        grad[4, n // 3] = -INF
        output[4, n // 3] = 0 if op == "softmax" else -INF
        got = check(op, grad, output, context=f"{n}:")
        assert got[1].isnan().all()
        assert not got[[0, 5]].isnan().any()


@ops
@dtypes
def test_short_rows_beside_special_ones(device, op, dtype):
    special = {0: NAN, 9: INF, 10: -INF, 20: torch.finfo(dtype).max, 69: NAN}
    others = [row for row in range(70) if row not in special]
    for n in range(1, 34):
        for which in range(2):
            inputs = sample(op, (70, n), dtype, device)
            beside = [one.clone() for one in inputs]
            for row, value in special.items():
                beside[which][row, row % n] = value
            assert_identical(OPS[op](*beside)[others], check(op, *inputs, context=f"{n}:")[others])


@ops
@dtypes
def test_masked_positions_get_no_gradient(device, op, dtype):
    # log_softmax gives -inf where the mask was: exp(-inf) is 0 there.
    for n in (7, 1000, 9001):
        grad, output = sample(op, (4, n), dtype, device)
        output[:, n // 2 :] = 0 if op == "softmax" else -INF
        if op == "log_softmax":
            grad[:, n // 2 :] = 0
        assert (check(op, grad, output, context=f"{n}:")[:, n // 2 :] == 0).all()


@ops
def test_nothing_in_nothing_out(device, op):
    for shape, dim in [((0, 5), 1), ((5, 0), 1), ((5, 0), 0)]:
        empty = torch.empty(shape, device=device)
        assert OPS[op](empty, empty, dim).shape == shape


@ops
def test_numpy(op):
    np = pytest.importorskip("numpy")
    grad, output = sample(op, (7, 90), torch.float32, "cpu")
    got = OPS[op](grad.numpy()[::-1], output.numpy()[::-1])
    assert isinstance(got, np.ndarray)
    reference, error = backward.softmax(op, grad, output)
    assert_rounded(torch.from_numpy(got[::-1].copy()), reference, error)


@ops
def test_repeats_bit_by_bit(device, op):
    grad, output = sample(op, (40, 30_000), torch.float32, device)
    assert_identical(OPS[op](grad, output), OPS[op](grad, output))
