"""Our launches may begin before what was queued before them is done: nobody may be able to tell."""

import ctypes

import pytest
import tilewise as tw
import torch
from support.tolerance import assert_identical
from tilewise import _core

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 256, 1024
OPS = {
    "add": lambda x: tw.add(x, x),
    "add transposed": lambda x: tw.add(x, x.view(COLUMNS, ROWS).mT),
    "add of elements": lambda x: tw.add(x[:, 1::3], 1),
    "softmax": lambda x: tw.softmax(x),
    "softmax of long rows": lambda x: tw.softmax(x.view(2, -1)),
    "softmax dim 0": lambda x: tw.softmax(x, 0),
    "softmax of columns": lambda x: tw.softmax(x[:, :8], 0),
    "matmul": lambda x: tw.matmul(x, x.mT),
    "matmul half": lambda x: tw.matmul(x.half(), x.half().mT),
    "matmul half of one row": lambda x: tw.matmul(x.half()[:1], x.half().mT),
    "matmul half, parts of k": lambda x: tw.matmul(x.half().view(16, -1), x.half().view(16, -1).mT),
    "matmul half, odd": lambda x: tw.matmul(x.half()[:255, :1023], x.half()[:255, :1023].mT),
}
ops = pytest.mark.parametrize("op", list(OPS))


def slowly(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """A kernel of torch's whose few blocks read x, and write, to their very end."""
    return torch.cumsum(x, 0, out=out)


@ops
def test_what_the_kernel_before_writes_is_read(op):
    late = torch.empty(ROWS, COLUMNS, device="cuda")
    for _ in range(20):
        x = torch.randn(ROWS, COLUMNS, device="cuda")
        expected = OPS[op](slowly(x).clone())
        late.fill_(float("nan"))
        torch.cuda.synchronize()
        slowly(x, out=late)
        assert_identical(OPS[op](late), expected)


@pytest.mark.parametrize("op", ["add", "softmax", "matmul"])
def test_what_the_kernel_before_reads_is_not_overwritten(op):
    side = COLUMNS if op != "matmul" else ROWS
    x = torch.randn(ROWS, side, device="cuda")
    call = {"add": lambda out: tw.add(x, x, out=out), "softmax": lambda out: tw.softmax(x, out=out)}
    call["matmul"] = lambda out: tw.matmul(x, x, out=out)
    for _ in range(20):
        before = torch.randn(ROWS, side, device="cuda")
        expected, out = slowly(before), before.clone()
        torch.cuda.synchronize()
        got = slowly(out)
        call[op](out)
        assert_identical(got, expected)


LARGE, SIDE = 1 << 15, 256
# Of a large matrix and a row, which are both written until the very end, and of another matrix.
OF_LATE = {
    "add": lambda matrix, row, b: tw.add(row, 1),
    "add of every second": lambda matrix, row, b: tw.add(row[::2], row[1::2]),
    "softmax": lambda matrix, row, b: tw.softmax(row.view(64, -1)),
    "softmax of one row": lambda matrix, row, b: tw.softmax(row),
    "softmax dim 0": lambda matrix, row, b: tw.softmax(row.view(64, -1), 0),
    "softmax of few columns": lambda matrix, row, b: tw.softmax(row.view(-1, 4), 0),
    "matmul": lambda matrix, row, b: tw.matmul(matrix[:, -SIDE:], b[:SIDE, :SIDE]),
    "matmul tf32": lambda matrix, row, b: tw.matmul(
        matrix[:, -SIDE:], b[:SIDE, :SIDE], precision="tf32" if b.dtype == torch.float32 else "ieee"
    ),
    "matmul, odd": lambda matrix, row, b: tw.matmul(matrix[:, -63:], matrix[-63:, -SIDE:]),
    "matmul of few rows": lambda matrix, row, b: tw.matmul(row.view(8, -1), b, bias=row[:SIDE]),
    **{
        f"matmul with bias, {act}": lambda matrix, row, b, act=act: tw.matmul(
            b[:SIDE], b[:SIDE, :SIDE], bias=row[-SIDE:], activation=act
        )
        for act in (None, "relu", "gelu", "silu")
    },
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("op", list(OF_LATE))
def test_a_launch_that_lets_others_begin_is_waited_for(op, dtype):
    """The backward of an activation says so when its last blocks start (kernels/activation_backward.cu)."""
    b = torch.randn(LARGE // 8, SIDE, device="cuda").to(dtype)
    saved = torch.randn(64, LARGE, device="cuda").to(dtype)
    for _ in range(5):
        grad = torch.randn_like(saved)
        late = _core.activation_backward(grad, saved, "relu", bias=True)
        torch.cuda.synchronize()
        expected = OF_LATE[op](*late, b)
        # The same memory, once more, with what it must not be found with.
        for tensor in late:
            tensor.fill_(float("nan"))
        del late, tensor
        torch.cuda._sleep(1_000_000)  # until both launches are queued
        late = _core.activation_backward(grad, saved, "relu", bias=True)
        assert_identical(OF_LATE[op](*late, b), expected)


def test_a_chain_of_ours():
    """Each reads what the one before it wrote, and writes where the one before that read."""
    a, b = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    for _ in range(500):
        tw.add(a, 1, out=b)
        tw.add(b, 1, out=a)
    assert a.unique().tolist() == [1000.0]
    small = torch.randn(64, 64, device="cuda").half()
    chain, expected = small, small
    for _ in range(100):
        chain = tw.softmax(tw.matmul(tw.add(chain, small), small))
        torch.cuda.synchronize()
    for _ in range(100):
        expected = tw.softmax(tw.matmul(tw.add(expected, small), small))
    assert_identical(chain, expected)


def test_an_event_of_another_stream_is_waited_for():
    x, side = torch.randn(ROWS, COLUMNS, device="cuda"), torch.cuda.Stream()
    late = torch.full_like(x, float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        late.copy_(x)
    _core.activation_backward(x, x, "relu", bias=True)  # lets what comes behind it begin
    torch.cuda.current_stream().wait_stream(side)
    assert_identical(tw.add(late, 1), x + 1)


def test_the_default_stream_waits_for_streams_that_block_it():
    """As CUDA defines it, unless a stream was made not to, as torch makes all of its own."""
    driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    x = torch.randn(ROWS, COLUMNS, device="cuda")
    assert driver.cuStreamCreate(ctypes.byref(handle), 0) == 0
    try:
        late, side = torch.full_like(x, float("nan")), torch.cuda.ExternalStream(handle.value)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            late.copy_(x)
        after = tw.add(late, 1)
        with torch.cuda.stream(side):
            assert_identical(tw.add(after, 1), x + 1 + 1)
    finally:
        torch.cuda.synchronize()
        assert driver.cuStreamDestroy_v2(handle) == 0
