"""Calls that are recorded for gradients and need nothing else of torch: autograd is shown their result."""

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import tilewise as tw
import torch
import torch.nn.functional as F
from support.memory import resident_bytes
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

float64 = torch.float64
CALLS = {
    "add": (lambda x, w, b: tw.add(x, w, alpha=3), lambda x, w, b: x + 3 * w),
    "add, number": (lambda x, w, b: tw.add(x, 2.5), lambda x, w, b: x + 2.5),
    "add, a number of numpy's": (lambda x, w, b: tw.add(x, b.numpy()[0]), lambda x, w, b: x + b[0].item()),
    "add, broadcast": (lambda x, w, b: tw.add(b, x), lambda x, w, b: b + x),
    "softmax": (lambda x, w, b: tw.softmax(x), lambda x, w, b: torch.softmax(x, -1)),
    "softmax, dim": (lambda x, w, b: tw.softmax(x, 0), lambda x, w, b: torch.softmax(x, 0)),
    "softmax, dtype": (
        lambda x, w, b: tw.softmax(x.float(), dtype=float64),
        lambda x, w, b: torch.softmax(x.float(), -1, dtype=float64),
    ),
    "log_softmax": (lambda x, w, b: tw.log_softmax(x, dim=1), lambda x, w, b: torch.log_softmax(x, 1)),
    "matmul": (lambda x, w, b: tw.matmul(x, w), lambda x, w, b: x @ w),
    "matmul, vectors": (lambda x, w, b: tw.matmul(x[0], w), lambda x, w, b: x[0] @ w),
    "matmul, bias": (lambda x, w, b: tw.matmul(x, w, bias=b), lambda x, w, b: x @ w + b),
    "matmul, relu": (
        lambda x, w, b: tw.matmul(x, w, bias=b, activation="relu"),
        lambda x, w, b: F.relu(x @ w + b),
    ),
    "matmul, gelu": (lambda x, w, b: tw.matmul(x, w, activation="gelu"), lambda x, w, b: F.gelu(x @ w)),
    "matmul, slope": (
        lambda x, w, b: tw.matmul(x, w, activation="leaky_relu", negative_slope=-0.5),
        lambda x, w, b: F.leaky_relu(x @ w, -0.5),
    ),
}
calls = pytest.mark.parametrize("name", CALLS)


def inputs():
    generator = torch.Generator().manual_seed(5)
    x, w = (torch.randn(4, 4, dtype=float64, generator=generator).requires_grad_() for _ in range(2))
    return x, w, torch.randn(4, dtype=float64, generator=generator)


@calls
def test_the_same_call_recorded_and_not_in_turns(name):
    ours, theirs = CALLS[name]
    x, w, b = inputs()
    expected = theirs(x, w, b)
    seed = torch.randn_like(expected)
    grads = torch.autograd.grad(expected, (x, w), seed, allow_unused=True)
    for _ in range(3):
        got = ours(x, w, b)
        torch.testing.assert_close(got, expected)
        assert got.requires_grad
        assert got.grad_fn is not None
        torch.testing.assert_close(torch.autograd.grad(got, (x, w), seed, allow_unused=True), grads)
        with torch.no_grad():
            got = ours(x, w, b)
        assert not got.requires_grad
        torch.testing.assert_close(got, expected.detach())


@calls
def test_saved_tensors_pass_hooks(name):
    ours, theirs = CALLS[name]
    x, w, b = inputs()
    packed = []

    def pack(t):
        packed.append(t)
        return t.numpy(force=True).copy()

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        got = ours(x, w, b)
    expected = theirs(x, w, b)
    torch.testing.assert_close(
        *(torch.autograd.grad(t.square().sum(), (x, w), allow_unused=True) for t in (got, expected))
    )
    assert bool(packed) == ("add" not in name)


@calls
def test_anomaly_mode_names_the_call(name):
    ours, _ = CALLS[name]
    x, w, b = inputs()

    def run():
        with torch.autograd.detect_anomaly(check_nan=True):
            y = ours(x, w, b)
            with pytest.raises(RuntimeError, match="returned nan"):
                y.backward(torch.full_like(y, torch.nan))

    with pytest.warns(UserWarning, match="Error detected"):
        run()


@calls
def test_a_graph_is_freed_and_says_so(name):
    ours, _ = CALLS[name]
    x, w, b = inputs()
    y = ours(x, w, b)
    node, result = weakref.ref(y.grad_fn), weakref.ref(y)
    y.square().sum().backward()
    del y
    assert result() is None
    assert node() is None
    y = ours(x, w, b)
    total = y.square().sum()
    total.backward()
    if "add" not in name:
        with pytest.raises(RuntimeError, match="second time"):
            total.backward()


def test_thousands_of_calls_keep_nothing():
    x, w, b = inputs()

    def work(times):
        for _ in range(times):
            for ours, _ in CALLS.values():
                ours(x, w, b)

    work(200)
    # What is kept is kept in each round; what the allocator takes from the system, for its heap, is not.
    for _ in range(8):
        gc.collect()
        before, objects = resident_bytes(), len(gc.get_objects())
        gc.disable()
        work(1500)
        after = len(gc.get_objects())
        gc.enable()
        assert after - objects < 100
        if resident_bytes() - before < 4 << 20:
            return
    pytest.fail("4 MiB more in each round")


def test_calls_within_calls():
    """A finalizer that runs while torch makes a node for us calls us too."""
    x, w, b = inputs()
    expected = {name: ours(x, w, b).detach() for name, (ours, _) in CALLS.items()}
    within = []

    class Cycle:
        def __init__(self):
            self.itself = self

        def __del__(self):
            within.append([ours(x, w, b) for ours, _ in CALLS.values()])

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            for name, (ours, _) in CALLS.items():
                Cycle()
                torch.testing.assert_close(ours(x, w, b).detach(), expected[name])
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert within
    for results in within:
        for result, value in zip(results, expected.values(), strict=True):
            torch.testing.assert_close(result.detach(), value)
            assert result.requires_grad


def test_threads():
    x, w, b = inputs()
    expected = {name: ours(x, w, b).detach() for name, (ours, _) in CALLS.items()}
    start = threading.Barrier(4)

    def work(_):
        start.wait()
        for _ in range(40):
            for name, (ours, _) in CALLS.items():
                got = ours(x, w, b)
                torch.testing.assert_close(got.detach(), expected[name])
                got.sum().backward()
        return True

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(before)


@calls
def test_modes_and_transforms_after_a_known_call(name):
    """What is known of a call does not hide that a mode, a tracer or a transform has come to have a say."""
    ours, theirs = CALLS[name]
    if "numpy" in name:
        pytest.skip("NumPy numbers are not tensors to transforms")
    x, w, b = inputs()
    for _ in range(2):
        ours(x, w, b)
    seen = []

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Called(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    for mode in (Dispatched, Called):
        seen.clear()
        with mode():
            got = ours(x, w, b)
        assert seen
        torch.testing.assert_close(got, theirs(x, w, b))
    fixed = w.detach()
    traced = torch.jit.trace(lambda x: ours(x, fixed, b), x.detach(), check_trace=False)
    assert "tilewise" in str(traced.graph)
    # A tensor that requires grad outside of the transform.
    grad = torch.func.grad(lambda t: (ours(x, w, b) * t).sum())(torch.ones(()).double())
    torch.testing.assert_close(grad, theirs(x, w, b).sum())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        got, expected = (torch.autograd.forward_ad.unpack_dual(f(dual, w, b)) for f in (ours, theirs))
    torch.testing.assert_close(got.tangent, expected.tangent)


def test_gradients_that_nobody_asks_for():
    """Of the results of a product and of what an activation was applied to."""

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    x, w, b = inputs()
    for activation in (None, "relu", "gelu"):
        y = Nothing.apply(tw.matmul(x, w, bias=b, activation=activation))
        assert torch.autograd.grad(y.sum(), (x, w), allow_unused=True) == (None, None)
