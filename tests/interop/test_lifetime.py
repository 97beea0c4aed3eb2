"""Who keeps what alive: no reference kept after a call, none lost, no memory lost over ten thousand."""

import gc
import sys
import tracemalloc
import weakref

import pytest
import tilewise as tw
import torch
from support.memory import resident_bytes
from support.tolerance import assert_identical

np = pytest.importorskip("numpy")

CALLS = 10_000


def torch_tensors():
    return torch.randn(32, 32), torch.randn(32, 32)


def numpy_arrays():
    return np.random.rand(32, 32), np.random.rand(32, 32)


makers = pytest.mark.parametrize("make", [torch_tensors, numpy_arrays])


def calls(x, y, out):
    yield lambda: tw.add(x, y, alpha=2)
    yield lambda: tw.add(x, 1.5)
    yield lambda: tw.add(x, y, out=out)
    yield lambda: tw.softmax(x, 0)
    yield lambda: tw.log_softmax(x, dtype=x.dtype)
    yield lambda: tw.softmax(x, out=out)
    yield lambda: tw.matmul(x, y, bias=x[0], activation="relu")
    yield lambda: tw.matmul(x, y, out=out)


@makers
def test_reference_counts_are_as_before(make):
    x, y = make()
    out = make()[0]
    singletons = [x, y, out, x.dtype, None, 1.5]
    for call in calls(x, y, out):
        # A call that will be known again keeps a dtype; no later one does.
        call()
        call()
        before = [sys.getrefcount(o) for o in singletons[:4]]
        for _ in range(50):
            call()
        assert [sys.getrefcount(o) for o in singletons[:4]] == before


@makers
def test_results_die_with_their_last_reference(make):
    x, y = make()
    for call in calls(x, y, make()[0]):
        result = call()
        if sys.getrefcount(result) == 2:
            alive = weakref.ref(result)
            del result
            assert alive() is None


@makers
def test_inputs_die_with_their_last_reference(make):
    x, y = make()
    results = [call() for call in calls(x, y, make()[0])]
    alive = weakref.ref(x), weakref.ref(y)
    del x, y
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    assert len(results) == 8


@makers
def test_results_outlive_their_inputs(make):
    x, y = make()
    expected = np.asarray(x) + 2 * np.asarray(y)
    got = tw.add(x, y, alpha=2)
    del x, y
    gc.collect()
    junk = [make() for _ in range(50)]
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6)
    assert len(junk) == 50


@makers
def test_ten_thousand_calls_keep_no_memory(make):
    x, y = make()
    for call in calls(x, y, make()[0]):
        for _ in range(CALLS // 10):
            call()
        before = resident_bytes()
        for _ in range(CALLS):
            call()
        # One kept result a call would be 40 MB and more.
        assert resident_bytes() - before < 8 << 20


@makers
def test_ten_thousand_calls_keep_no_python_memory(make):
    x, y = make()
    for call in calls(x, y, make()[0]):
        call()
        tracemalloc.start()
        try:
            for _ in range(100):
                call()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(CALLS // 4):
                call()
            assert tracemalloc.get_traced_memory()[0] - before < 16 << 10
        finally:
            tracemalloc.stop()


@pytest.mark.gpu
def test_ten_thousand_calls_keep_no_device_memory():
    x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    for call in calls(x, y, torch.empty_like(x)):
        call()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(CALLS // 4):
            call()
        assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
def test_inputs_may_be_freed_and_overwritten_right_after_the_call():
    for op in (lambda t: tw.add(t, 1), tw.softmax, lambda t: tw.matmul(t, t)):
        # Or torch may hand out a block that other tests have left.
        gc.collect()
        torch.cuda.empty_cache()
        source = torch.randn(1024, 1024, device="cuda")
        expected = op(source)
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        x = source.clone()
        got = op(x)
        address = x.data_ptr()
        del x
        # torch hands the same memory out again while the queue is still full.
        reused = torch.full((1024, 1024), float("nan"), device="cuda")
        assert reused.data_ptr() == address
        assert_identical(got, expected)


def test_a_type_that_dies_leaves_nothing_behind():
    # Types are remembered by the library: making them in a loop must not keep them all alive.
    alive = []
    for _ in range(300):

        class Passing(torch.Tensor):
            pass

        tw.add(torch.ones(2).as_subclass(Passing), 1)
        alive.append(weakref.ref(Passing))
        del Passing
    gc.collect()
    assert sum(ref() is not None for ref in alive) < 150
