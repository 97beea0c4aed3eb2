"""Tensors of more elements, longer rows and wider strides than 32 bits can count."""

import pytest
import tilewise as tw
import torch
from support import reference
from support.tolerance import assert_identical, assert_rounded

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

LIMIT = 2**31


@pytest.fixture(autouse=True)
def room():
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GB of free GPU memory")
    yield
    torch.cuda.empty_cache()


def test_add_dense():
    n = LIMIT + 1001
    x = torch.ones(n, dtype=torch.int8, device="cuda")
    x[-3:] = torch.tensor([5, 6, 7])
    got = tw.add(x, x, alpha=2)
    assert got[-4:].tolist() == [3, 15, 18, 21]
    assert int(got[: n - 3].min()) == int(got[: n - 3].max()) == 3


def test_add_broadcast_and_strided():
    rows, columns = 70_000, 33_000
    x = torch.randint(0, 50, (columns,), dtype=torch.int8, device="cuda")
    y = torch.randint(0, 50, (rows, 1), dtype=torch.int8, device="cuda")
    got = tw.add(x, y)
    assert got.shape == (rows, columns)
    assert got.numel() > LIMIT
    for row in (0, 1, 65_000, 65_075, rows - 1):
        assert_identical(got[row], x + y[row])
    transposed = tw.add(got.mT, 1, out=torch.empty(columns, rows, dtype=torch.int8, device="cuda"))
    for column in (0, 30_678, 30_679, columns - 1):
        assert_identical(transposed[column], got[:, column] + 1)


def test_add_with_strides_beyond_32_bits():
    memory = torch.zeros(2 * LIMIT + 10, dtype=torch.int8, device="cuda")
    x = memory.as_strided((3, 5), (LIMIT, 1))
    x.copy_(torch.arange(15, dtype=torch.int8).view(3, 5))
    assert_identical(tw.add(x, x), x + x)


def test_softmax_of_very_many_rows():
    rows, n = 3_000_000, 1000
    x = torch.randn(1, n, dtype=torch.bfloat16, device="cuda").expand(rows, n).clone()
    x[-1] = torch.randn(n)
    got = tw.softmax(x)
    # All rows but the last are equal, so their results are; one of them is compared with the reference.
    for begin in range(0, rows - 1, 500_000):
        block = got[begin : min(begin + 500_000, rows - 1)]
        assert bool((block == got[:1]).all()), f"in rows {begin} to {begin + 500_000}"
    for row in (0, rows - 1):
        assert_rounded(got[row], *reference.softmax(x[row]))


def test_softmax_of_one_row_beyond_32_bits():
    n = LIMIT + 77
    x = torch.zeros(n, dtype=torch.float16, device="cuda")
    x[-1] = 25.0
    x[5] = 24.0
    got = tw.softmax(x, dtype=torch.float32)
    assert got.dtype == torch.float32
    # In float64: e^25 and e^24 against n - 2 ones.
    top, near = torch.tensor([25.0, 24.0], dtype=torch.float64).exp().tolist()
    total = top + near + (n - 2)
    for place, value in [(n - 1, top), (5, near), (0, 1), (n // 2, 1), (LIMIT, 1), (n - 2, 1)]:
        # A thread sums two million numbers in float32: no length that 3e-6 is promised for.
        assert got[place].item() == pytest.approx(value / total, rel=1e-4)


def test_softmax_along_dim_0_of_a_large_tensor():
    x = torch.randn(9, 250_000_000, dtype=torch.bfloat16, device="cuda")
    assert x.numel() > LIMIT
    got = tw.softmax(x, 0)
    for begin in (0, 238_609_290, 249_999_000):
        block = slice(begin, begin + 1000)
        assert_rounded(got[:, block], *reference.softmax(x[:, block], 0))


def test_matmul_with_a_result_beyond_32_bits():
    m, n, k = 66_000, 33_000, 16
    a = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    b = torch.randn(k, n, dtype=torch.bfloat16, device="cuda")
    got = tw.matmul(a, b)
    assert got.numel() > LIMIT
    for row in (0, 1, 65_075, m - 1):
        assert_rounded(got[row], *reference.matmul(a[row], b))


def test_matmul_with_inputs_beyond_32_bits():
    m, k = 66_000, 33_000
    a = torch.ones(m, k, dtype=torch.bfloat16, device="cuda")
    a[-1] = 2
    b = torch.ones(k, 8, dtype=torch.bfloat16, device="cuda")
    got = tw.matmul(a, b)
    assert_identical(got[0], torch.full((8,), float(k), device="cuda").bfloat16())
    assert_identical(got[-1], torch.full((8,), 2.0 * k, device="cuda").bfloat16())
    got = tw.matmul(b.mT, a.mT)
    assert_identical(got[:, -1], torch.full((8,), 2.0 * k, device="cuda").bfloat16())


def test_matmul_of_a_large_batch():
    batch = 600_000
    x = torch.randn(batch, 64, 64, dtype=torch.float16, device="cuda")
    assert x.numel() > LIMIT
    got = tw.matmul(x, x)
    for index in (0, 524_287, 524_288, batch - 1):
        assert_rounded(got[index], *reference.matmul(x[index], x[index]))
