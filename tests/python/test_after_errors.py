"""After an error nothing was written, no reference is held, and the next call works."""

import sys

import pytest
import tilewise as tw
import torch
from support.tolerance import assert_identical


def refused(device):
    """Name, the tensors of the call, and the call."""
    x, y = torch.randn(4, 5, device=device), torch.randn(3, 5, device=device)
    out, wrong = torch.full((4, 5), 7.0, device=device), torch.full((4, 5), 7, device=device)
    return [
        ("shapes", [x, y, out], lambda: tw.add(x, y, out=out)),
        ("y is no tensor", [x, out], lambda: tw.add(x, [1], out=out)),
        ("alpha", [x, out], lambda: tw.add(x, x, alpha="1", out=out)),
        ("alpha kind", [x, wrong], lambda: tw.add(wrong, wrong, alpha=0.5, out=wrong)),
        ("out dtype", [x, wrong], lambda: tw.add(x, x, out=wrong)),
        ("out shape", [x, y, out], lambda: tw.softmax(y, out=out)),
        ("overlap", [x], lambda: tw.add(x[:2], 1, out=x[1:3])),
        ("out is no tensor", [x], lambda: tw.softmax(x, out=[1.0])),
        ("dim", [x, out], lambda: tw.softmax(x, 2, out=out)),
        ("dim is no integer", [x, out], lambda: tw.softmax(x, "last", out=out)),
        ("dtype", [x, out], lambda: tw.softmax(x, dtype=torch.int8, out=out)),
        ("inner sizes", [x, y, out], lambda: tw.matmul(x, x, out=out)),
        ("bias", [x, y], lambda: tw.matmul(x, y.mT, bias=x)),
        ("activation", [x, y], lambda: tw.matmul(x, y.mT, activation="none")),
        ("precision", [x, y], lambda: tw.matmul(x, y.mT, precision="high")),
        ("slope", [x, y], lambda: tw.matmul(x, y.mT, activation="leaky_relu", negative_slope="steep")),
        ("dtypes", [x, y], lambda: tw.matmul(x, y.mT.double())),
        ("too few arguments", [x], lambda: tw.matmul(x)),
        ("unknown argument", [x], lambda: tw.softmax(x, axis=0)),
    ]


def test_nothing_was_written(device):
    for name, tensors, call in refused(device):
        before = [t.clone() for t in tensors]
        with pytest.raises((tw.TilewiseError, TypeError)):
            call()
        for now, then in zip(tensors, before, strict=True):
            assert_identical(now, then, f"{name}:")


def test_no_reference_is_kept(device):
    for name, tensors, call in refused(device):

        def provoke(call=call):
            try:
                call()
            except (tw.TilewiseError, TypeError):
                return
            raise AssertionError("not refused")

        provoke()
        before = [sys.getrefcount(t) for t in tensors]
        for _ in range(20):
            provoke()
        assert [sys.getrefcount(t) for t in tensors] == before, name


def test_the_next_call_works(device):
    x = torch.randn(4, 5, device=device)
    for name, _, call in refused(device):
        with pytest.raises((tw.TilewiseError, TypeError)):
            call()
        assert_identical(tw.add(x, x), 2 * x, f"after {name}:")


def test_a_result_of_a_refused_call_is_not_allocated(device):
    if device == "cpu":
        pytest.skip("only the GPU's allocator counts")
    cases = refused(device)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_stats(device)["allocation.all.allocated"]
    for _, _, call in cases:
        with pytest.raises((tw.TilewiseError, TypeError)):
            call()
    views = 3
    assert torch.cuda.memory_stats(device)["allocation.all.allocated"] - before <= views
