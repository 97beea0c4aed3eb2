"""add of views, around the boundaries between the GPU's variants: rows, tiles, alignments, mixed dtypes."""

import pytest
import tilewise as tw
import torch
from support.guarded import Guarded
from support.tolerance import ALL, assert_identical
from support.views import poison_value


def sample(shape, dtype, device):
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 60, shape, device=device).to(dtype)


def rows_of(x, lead, gap):
    """x in other memory: `gap` elements between its rows, and `lead` in front of them."""
    rows, columns = x.shape
    memory = torch.full(
        (lead + rows * (columns + gap),), poison_value(x.dtype), dtype=x.dtype, device=x.device
    )
    view = memory.as_strided((rows, columns), (columns + gap, 1), lead)
    view.copy_(x)
    return view


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64], ids=str)
def test_rows_of_every_alignment(device, dtype):
    for columns in (256, 261):
        x, y = sample((9, columns), dtype, device), sample((9, columns), dtype, device)
        expected = torch.add(x, y)
        for lead_x, gap_x in ((0, 0), (1, 0), (0, 1), (3, 7), (16, 16)):
            for lead_y, gap_y in ((0, 0), (1, 16), (5, 3)):
                got = tw.add(rows_of(x, lead_x, gap_x), rows_of(y, lead_y, gap_y))
                assert_identical(got, expected, f"{columns}, x {lead_x} {gap_x}, y {lead_y} {gap_y}:")


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((37, 256), (256,)),
        ((37, 259), (259,)),
        ((37, 259), (37, 1)),
        ((3, 1000), (1000,)),
        ((6, 5, 64), (5, 1)),
        ((6, 5, 64), (6, 1, 64)),
        ((6, 5, 320), (1, 5, 320)),
        ((2, 6, 5, 64), (6, 1, 1)),
        ((300, 3), (300, 1)),
    ],
    ids=str,
)
def test_what_is_broadcast(device, dtype, x, y):
    x, y = sample(x, dtype, device), sample(y, dtype, device)
    expected = torch.add(x, y)
    assert_identical(tw.add(x, y), expected)
    assert_identical(tw.add(y, x), expected)
    assert_identical(tw.add(x.contiguous(), y.expand(x.shape), alpha=1), expected)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_pieces_that_start_anywhere(device, dtype):
    x, y = sample((4200,), dtype, device), sample((4200,), dtype, device)
    out = torch.empty_like(x)
    number = dtype == torch.bool or 2
    for lead_x, lead_y, lead in ((0, 1, 0), (1, 1, 0), (3, 2, 1), (15, 5, 4), (0, 8, 7), (9, 6, 15)):
        for length in (256, 257, 1000, 4100):
            a, b, to = x[lead_x:][:length], y[lead_y:][:length], out[lead:][:length]
            tw.add(a, b, out=to)
            assert_identical(to, torch.add(a, b), f"{length} from {lead_x} and {lead_y} to {lead}:")
            tw.add(a, number, out=to)
            assert_identical(to, torch.add(a, number), f"{length} from {lead_x} to {lead}:")


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int16, torch.bfloat16, torch.float32, torch.int64], ids=str
)
def test_one_row_for_all_odd_rows(device, dtype):
    for rows, columns in ((2, 17), (5, 33), (37, 259), (301, 20), (4, 1001)):
        size = rows * columns
        full, row = sample((size + 16,), dtype, device), sample((columns + 16,), dtype, device)
        for lead, lead_row in ((0, 0), (0, 1), (3, 3), (5, 0)):
            x, y = full[lead:][:size].view(rows, columns), row[lead_row:][:columns]
            out = torch.empty_like(full)[lead:][:size].view(rows, columns)
            tw.add(x, y, out=out)
            assert_identical(out, torch.add(x, y), f"{rows} x {columns} at {lead}, row at {lead_row}:")
            tw.add(y, x, out=out)
            assert_identical(out, torch.add(y, x), f"row at {lead_row}, {rows} x {columns} at {lead}:")


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_transposed_tiles(device, dtype):
    for shape in [(16, 16), (17, 33), (64, 64), (65, 63), (63, 65), (130, 200), (3, 40, 72), (2, 2, 33, 64)]:
        x, y = sample(shape, dtype, device), sample(shape, dtype, device)
        transposed = y.mT.contiguous().mT
        expected = torch.add(x, y)
        assert_identical(tw.add(x, transposed), expected, f"{shape}:")
        assert_identical(tw.add(transposed, x), expected, f"{shape}, first:")
        column = sample((*shape[:-1], 1), dtype, device)
        assert_identical(tw.add(transposed, column), torch.add(y, column), f"{shape}, and a column:")
        out = torch.zeros_like(x)
        tw.add(x.mT.contiguous().mT, transposed, out=out)
        assert_identical(out, expected, f"{shape}, both:")
        number = dtype == torch.bool or 1
        tw.add(transposed, number, out=out)
        assert_identical(out, torch.add(y, number), f"{shape}, a number:")


def test_transposed_and_misaligned(device):
    x, y = torch.randn(70, 136, device=device), torch.randn(136, 70, device=device)
    expected = x + y.T
    for lead in (0, 1, 4):
        for gap in (0, 2, 3):
            got = tw.add(rows_of(x, lead, 0), rows_of(y, lead, gap).T)
            assert_identical(got, expected, f"lead {lead}, gap {gap}:")
            assert_identical(tw.add(rows_of(x, 0, gap), rows_of(y, lead, 0).T), expected)


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float64], ids=str)
def test_permuted(device, order, dtype):
    for shape in [(20, 24, 32), (17, 33, 65)]:
        x = sample(shape, dtype, device).permute(order)
        y = sample(x.shape, dtype, device)
        assert_identical(tw.add(x, y), torch.add(x, y), f"{shape}:")
        assert_identical(tw.add(y, x), torch.add(x, y), f"{shape}, second:")


@pytest.mark.parametrize("one", ALL, ids=str)
@pytest.mark.parametrize("other", ALL, ids=str)
def test_mixed_dtypes(device, one, other):
    x, y = sample((5, 260), one, device), sample((5, 260), other, device)
    expected = torch.add(x, y)
    assert_identical(tw.add(x, y), expected)
    assert_identical(tw.add(x, rows_of(y, 1, 3)), expected)
    assert_identical(tw.add(rows_of(x, 8, 8), rows_of(y, 16, 24)), expected)
    assert_identical(tw.add(x, y[:, :1]), torch.add(x, y[:, :1]))
    assert_identical(tw.add(x, y[0]), torch.add(x, y[0]))
    assert_identical(tw.add(x, y[0, 0]), torch.add(x, y[0, 0]))
    assert_identical(tw.add(x[0, 0], y), torch.add(x[0, 0], y))


@pytest.mark.parametrize("cut", Guarded.CUTS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_nothing_beside_out_is_written(device, dtype, cut):
    for shape in [(5, 300), (33, 64), (3, 70, 130)]:
        x, y = sample(shape, dtype, device), sample(shape, dtype, device)
        for other in (y, y.mT.contiguous().mT, y[..., :1], 2):
            guarded = Guarded(shape, dtype, device, cut)
            tw.add(x, other, out=guarded.out)
            assert_identical(guarded.out, torch.add(x, other), f"{shape}:")
            guarded.assert_rest_untouched()
