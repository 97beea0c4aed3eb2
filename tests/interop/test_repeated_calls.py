"""A call like an earlier one goes a shorter way: whatever has changed, it must be as if it were the first."""

import gc
import threading
from random import Random

import pytest
import tilewise as tw
import torch
from support.tolerance import assert_identical
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# The second call of a kind is remembered at the latest, so that the third is known.
WARM = 3


def warmed(call):
    for _ in range(WARM):
        result = call()
    return result


def assert_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_operands_that_have_moved(device):
    same = torch.randn(8, 8, device=device)
    warmed(lambda: tw.add(same, same))
    warmed(lambda: tw.matmul(same, same, bias=same[0]))
    for _ in range(5):
        x, y, bias = (torch.randn(*shape, device=device) for shape in ((8, 8), (8, 8), (8,)))
        assert_close(tw.add(x, y), x + y)
        assert_close(tw.add(y, x, alpha=2), y + 2 * x)
        assert_close(tw.softmax(x), torch.softmax(x, -1))
        assert_close(tw.log_softmax(x), torch.log_softmax(x, -1))
        assert_close(tw.matmul(x, y, bias=bias, activation="relu"), torch.relu(x @ y + bias))
        assert_close(tw.matmul(x, y, bias=y[0]), x @ y + y[0])


def test_views_at_other_offsets(device):
    parent = torch.randn(9, 40, device=device).half()
    for step in (1, 2):
        for start in range(8):
            view = parent[:, start : start + 24 : step]
            assert_close(tw.add(view, view), view + view)
            assert_identical(tw.softmax(view), tw.softmax(view.clone()))


def random_layout(random, device):
    shape = random.choices((1, 1, 2, 3), k=random.randint(1, 5))
    order = random.sample(range(len(shape)), len(shape))
    x = torch.randn([shape[d] for d in order], device=device).permute(
        [order.index(d) for d in range(len(shape))]
    )
    if random.random() < 0.3:
        x = x.unsqueeze(random.randint(0, x.ndim))
    if x.ndim == 4 and random.random() < 0.5:
        x = x.to(memory_format=torch.channels_last)
    return x


def test_strides_of_results(device):
    x = torch.randn(1, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
    expected = torch.add(x, x).stride()
    assert [tw.add(x, x).stride() for _ in range(6)] == [expected] * 6
    random = Random(20)
    for _ in range(300):
        x = random_layout(random, device)
        calls = [lambda x=x: tw.add(x, x), lambda x=x: tw.add(x, 2), lambda x=x: tw.softmax(x, 0)]
        if x.ndim > 1:
            calls.append(lambda x=x: tw.matmul(x, x.mT))
        for call in calls:
            first = call()
            for _ in range(5):
                again = call()
                assert again.stride() == first.stride(), (x.shape, x.stride())
                assert again.is_contiguous(memory_format=torch.contiguous_format) == first.is_contiguous()


def test_options_of_other_values(device):
    x, y = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
    for _ in range(WARM):
        for number in (1, 2, 0.5, -1.0, 1000, 1001):
            assert_close(tw.add(x, y, alpha=number), x + number * y)
            assert_close(tw.add(x, number), x + number)
        assert_close(tw.add(x, True), x + 1)
        with pytest.raises(tw.DTypeError):
            tw.add(x, y, alpha=True)
        for dim in (0, 1, -1, -2):
            assert_close(tw.softmax(x, dim), torch.softmax(x, dim))
            assert_close(tw.softmax(x, dim, dtype=torch.float64), torch.softmax(x.double(), dim))
        for slope in (0.1, 0.2, 1, 0):
            expected = torch.nn.functional.leaky_relu(x @ y, slope)
            assert_close(tw.matmul(x, y, activation="leaky_relu", negative_slope=slope), expected)
        for activation in (None, "relu", "silu", "".join(["re", "lu"])):
            expected = x @ y if activation is None else getattr(torch.nn.functional, activation)(x @ y)
            assert_close(tw.matmul(x, y, activation=activation), expected)
    with pytest.raises(tw.OptionError):
        tw.matmul(x, y, activation="reluu")
    with pytest.raises(tw.DimError):
        tw.softmax(x, 2)


def test_other_dtypes_and_shapes_of_as_many_elements(device):
    for _ in range(WARM):
        for dtype in (torch.int32, torch.float32, torch.float64, torch.int64, torch.bfloat16):
            for shape in ((16,), (4, 4), (2, 8), (1, 16), (16, 1), ()):
                x = torch.arange(torch.Size(shape).numel(), device=device).reshape(shape).to(dtype)
                assert_identical(tw.add(x, x), x + x)
                assert_identical(
                    tw.add(x, x.T if x.ndim == 2 and shape[0] == shape[1] else x),
                    x + (x.T if shape == (4, 4) else x),
                )


def test_more_kinds_of_calls_than_are_remembered(device):
    tensors = [torch.randn(2, n, device=device) for n in range(1, 41)]
    for _ in range(WARM):
        for x in tensors:
            assert_close(tw.softmax(x), torch.softmax(x, -1))


def test_the_default_dtype(device):
    x = torch.arange(4, device=device)
    warmed(lambda: tw.add(x, 0.5))
    try:
        torch.set_default_dtype(torch.float64)
        assert tw.add(x, 0.5).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert tw.add(x, 0.5).dtype == torch.float32


def test_out_that_overlaps(device):
    parent = torch.randn(64, device=device)
    x, apart, shifted = parent[:16], parent[32:48], parent[4:20]
    expected = x + x
    assert_identical(warmed(lambda: tw.add(x, x, out=apart)), expected)
    with pytest.raises(tw.LayoutError, match="shares memory"):
        tw.add(x, x, out=shifted)
    assert_identical(x + x, expected)
    assert tw.add(x, x, out=x) is x
    assert_identical(x, expected)


def test_in_place_and_apart(device):
    """The same layouts, with `out` as one input, as the other, as both, as neither, and across one."""
    for round in range(3 * WARM):
        memory = torch.randn(4, 64, device=device)
        x, y, other = memory[0:1], memory[1:2], memory[2:3]
        out = (other, x, y)[round % 3]
        expected = x + 2 * y
        assert tw.add(x, y, alpha=2, out=out) is out
        assert_close(out, expected)
        expected = x + x
        tw.add(x, x, out=x)
        assert_close(x, expected)
        expected = torch.softmax(x, -1)
        tw.softmax(x, out=(x, other)[round % 2])
        assert_close((x, other)[round % 2], expected)
        flat = memory.reshape(-1)
        across = flat[32:96].view(1, 64)
        before = memory.clone()
        for call in (lambda: tw.add(x, y, alpha=2, out=across), lambda: tw.softmax(x, out=across)):  # noqa: B023
            with pytest.raises(tw.LayoutError):
                call()
        assert_identical(memory, before)
        a = torch.randn(8, 8, device=device)
        with pytest.raises(tw.LayoutError):
            tw.matmul(a, a, out=a)
        tw.matmul(a, a, out=torch.empty_like(a))


def test_dtype_options(device):
    x = torch.randn(5, 7, device=device).half()
    for _ in range(WARM + 1):
        for dtype, expected in (
            (None, torch.float16),
            (torch.float32, torch.float32),
            ("float32", torch.float32),
            (torch.float64, torch.float64),
            (torch.bfloat16, torch.bfloat16),
        ):
            result = tw.softmax(x, dtype=dtype)
            assert result.dtype == expected
            torch.testing.assert_close(result, torch.softmax(x, -1, dtype=expected), rtol=1e-2, atol=1e-3)


def test_out_is_counted_as_changed(device):
    x, out = torch.randn(4, device=device), torch.empty(4, device=device)
    warmed(lambda: tw.add(x, x, out=out))
    before = out._version
    tw.add(x, x, out=out)
    assert out._version == before + 1


def test_out_made_in_inference_mode(device):
    x, out = torch.randn(4, device=device), torch.empty(4, device=device)
    warmed(lambda: tw.add(x, x, out=out))
    with torch.inference_mode():
        odd = torch.empty(4, device=device)
        assert tw.add(x, x, out=odd) is odd
    with pytest.raises(tw.LayoutError, match="inference"):
        tw.add(x, x, out=odd)
    with torch.inference_mode():
        assert tw.add(x, x).is_inference()
    assert not tw.add(x, x).is_inference()


def test_gradients(device):
    x, weight = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
    calls = (lambda a, b: tw.add(a, b), lambda a, b: tw.softmax(b), lambda a, b: tw.matmul(a, b))
    for call in calls:
        warmed(lambda call=call: call(x, weight))
        learned = weight.clone().requires_grad_()
        result = call(x, learned)
        assert result.requires_grad
        result.sum().backward()
        assert learned.grad is not None
        with torch.no_grad():
            assert not warmed(lambda call=call, learned=learned: call(x, learned)).requires_grad
        with pytest.raises(RuntimeError):
            tw.add(x, learned, out=torch.empty_like(x))


@pytest.mark.skipif(not hasattr(torch, "_lazy_clone"), reason="this torch clones at once")
def test_lazy_clones(device):
    x, y, bound = (torch.randn(4, 4, device=device) for _ in range(3))
    out = torch.empty_like(x)
    warmed(lambda: tw.matmul(x, y, out=out))
    for _ in range(2):
        before = x.clone()
        lazy = torch._lazy_clone(x)
        assert_close(tw.matmul(lazy, y), before @ y)
        # What is written has memory of its own.
        tw.matmul(y, bound, out=lazy)
        assert_close(lazy, y @ bound)
        assert torch.equal(x, before)


def test_autocast_of_another_thread(device):
    x = torch.randn(4, 4, device=device)
    warmed(lambda: tw.matmul(x, x))
    seen = []

    def other():
        seen.append(warmed(lambda: tw.matmul(x, x)).dtype)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            seen.append(warmed(lambda: tw.matmul(x, x)).dtype)

    with torch.autocast(torch.device(device).type, torch.bfloat16):
        assert warmed(lambda: tw.matmul(x, x)).dtype is torch.bfloat16
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [torch.float32, torch.bfloat16]
    assert warmed(lambda: tw.matmul(x, x)).dtype is torch.float32


def test_memory_that_is_gone(device):
    x, y = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
    warmed(lambda: tw.matmul(x, y))
    x.untyped_storage().resize_(0)
    for call in (lambda: tw.matmul(x, y), lambda: tw.matmul(y, y, out=x)):
        with pytest.raises(tw.TilewiseError, match="memory"):
            call()


def test_autocast(device):
    x = torch.randn(4, 4, device=device)
    half = x.bfloat16()
    warmed(lambda: (tw.matmul(x, x), tw.softmax(half)))
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        assert tw.matmul(x, x).dtype == torch.matmul(x, x).dtype == torch.bfloat16
        assert tw.softmax(half).dtype == torch.softmax(half, -1).dtype
    assert tw.matmul(x, x).dtype == torch.float32


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen = True
        return function(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen = True
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Functions, Dispatches])
def test_modes(mode, device):
    x = torch.randn(4, 4, device=device)
    warmed(lambda: tw.add(x, x))
    with mode() as active:
        assert_close(tw.add(x, x), x + x)
    assert active.seen


def test_traces_and_transforms(device):
    x = torch.randn(4, 4, device=device)
    warmed(lambda: tw.add(x, x))
    traced = torch.jit.trace(lambda a: tw.add(a, a), (x,), check_trace=False)
    assert_close(traced(3 * x), 6 * x)
    assert_close(torch.func.vmap(lambda a: tw.add(a, a))(x), 2 * x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangent = torch.autograd.forward_ad.unpack_dual(tw.add(dual, x)).tangent
        assert_close(tangent, torch.ones_like(x))


def test_tensors_that_are_more_than_their_memory(device):
    x = torch.randn(4, 4, device=device)
    warmed(lambda: tw.add(x, x))

    class Logged(torch.Tensor):
        pass

    assert type(tw.add(x.as_subclass(Logged), x)) is type(torch.add(x.as_subclass(Logged), x))
    gone = torch.ones(4, 4, device=device)
    gone.untyped_storage().resize_(0)
    with pytest.raises(tw.TilewiseError):
        tw.add(gone, x)
    with pytest.raises((RuntimeError, tw.TilewiseError)):
        tw.add(torch.ones(4, 4, device="meta"), x)
    # Negated views have every second element of their parents; plain views with such strides are not negated.
    plain = torch.randn(4, 8, device=device)[:, 1::2]
    warmed(lambda: tw.add(plain, plain))
    z = torch.randn(4, 4, device=device, dtype=torch.complex64)
    negated = torch.conj(z).imag
    assert negated.is_neg()
    assert_close(tw.add(negated, negated), 2 * negated.resolve_neg())


def test_calls_from_within_calls(device):
    """The garbage collector may run anything, at any allocation."""
    x = torch.randn(4, 4, device=device)
    inner = []

    def collected(phase, _):
        if phase == "start":
            inner.append(tw.add(x, x))

    warmed(lambda: tw.add(x, x))
    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        results = [tw.add(x, x) for _ in range(50)]
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*threshold)
    assert inner
    for result in results + inner:
        assert_identical(result, x + x)


def test_threads_remember_for_themselves(device):
    failures = []

    def work(scale):
        x = torch.full((64,), float(scale), device=device)
        for _ in range(200):
            if not torch.equal(tw.add(x, x), 2 * x):
                failures.append(scale)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device, or none")
def test_the_other_device():
    for ordinal in (0, 1, 0, 1):
        x = torch.randn(8, device=f"cuda:{ordinal}")
        for current in (0, 1):
            with torch.cuda.device(current):
                result = warmed(lambda x=x: tw.add(x, x))
                assert result.device == x.device
                assert_identical(result, x + x)
