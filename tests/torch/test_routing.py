"""Which calls stay with tilewise, which are torch's to dispatch, and that the results are the same."""

import numpy as np
import pytest
import tilewise as tw
import torch
from support import fresh
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CALLS = {
    "add": lambda x: tw.add(x, x, alpha=2),
    "softmax": lambda x: tw.softmax(x, 0),
    "log_softmax": lambda x: tw.log_softmax(x, dtype=torch.float64),
    "matmul": lambda x: tw.matmul(x, x.mT, bias=x[0, :3], activation="relu"),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


class Recording(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@calls
def test_dispatch_modes_see_the_operators(device, call):
    x = torch.randn(3, 4, device=device)
    expected = call(x)
    with Recording() as mode:
        got = call(x)
    assert torch.equal(got, expected)
    assert any(name.startswith("tilewise.") for name in mode.seen), mode.seen


@calls
def test_function_modes_see_the_operators(device, call):
    class Functions(TorchFunctionMode):
        seen = ()

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen = (*self.seen, str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 4, device=device)
    with Functions() as mode:
        got = call(x)
    assert torch.equal(got, call(x))
    assert any("tilewise" in name for name in mode.seen), mode.seen


@calls
def test_subclasses_keep_their_class(device, call):
    class Named(torch.Tensor):
        pass

    x = torch.randn(3, 4, device=device)
    got = call(x.as_subclass(Named))
    assert type(got) is Named
    assert torch.equal(got.as_subclass(torch.Tensor), call(x))
    with torch._C.DisableTorchFunctionSubclass():
        assert type(call(x.as_subclass(Named))) is torch.Tensor
    assert type(call(torch.nn.Parameter(x, requires_grad=False))) is torch.Tensor


class Passing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


MODES = {
    "default device": torch.device,
    "function mode": lambda _: Passing(),
    "dispatch mode": lambda _: Recording(),
}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@modes
def test_lists_are_checked_before_anything_is_written(device, mode):
    def ones(*shape, **options):
        return torch.ones(*shape, device=device, **options)

    out, x = torch.zeros(2, 2, device=device), ones(2, 2)
    two = {"a": [x, x.clone()], "b": [x, x], "out": [out, torch.zeros_like(out)]}
    wrong = [
        (tw.LayoutError, {"out": [out, out]}),
        (tw.LayoutError, {"out": [two["a"][1], out]}),
        (tw.LayoutError, {"a": [x, (rows := ones(3, 2))[:2]], "out": [out, rows[1:]]}),
        (tw.ShapeError, {"out": [out, torch.zeros(3, 3, device=device)]}),
        (tw.DTypeError, {"out": [out, torch.zeros(2, 2, device=device, dtype=torch.float64)]}),
        (tw.ShapeError, {"a": [x, ones(2)]}),
        (tw.DTypeError, {"a": [x, x.double()], "b": [x, x.double()]}),
        (tw.DTypeError, {"bias": [ones(2), None]}),
        (tw.UnsupportedError, {"b": [x, ones(2, 2, requires_grad=True)]}),
    ]
    for error, options in wrong:
        with mode(device), pytest.raises(error, match="grouped_matmul"):
            tw.grouped_matmul(**{**two, **options})
        assert not out.any(), options
        assert (two["a"][1] == 1).all(), options
    with mode(device):
        tw.grouped_matmul(**two)
    assert (out == 2).all()


def test_lists_of_which_some_require_grad_are_checked_as_all_others(device):
    x = torch.ones(2, 2, device=device)
    w = x.clone().requires_grad_()
    for options in ({"bias": [x[0], None]}, {"a": [x, x[0]]}, {"a": [x, x.double()], "b": [w, w.double()]}):
        with pytest.raises(tw.TilewiseError, match="at index 1 of the lists"):
            tw.grouped_matmul(**{"a": [x, x], "b": [w, w], **options})


def test_objects_with_torch_function_are_asked():
    class Duck:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return str(func), kwargs

    x = torch.randn(3, 3)
    for call in (lambda d: tw.softmax(d), lambda d: tw.add(x, d), lambda d: tw.matmul(x, x, bias=d)):
        name, _ = call(Duck())
        assert name.startswith("tilewise.")


def test_subclasses_with_their_own_dispatch(device):
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, device=inner.device
            )

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            inner = [a.inner if isinstance(a, Wrapper) else a for a in args]
            return cls(func(*inner, **(kwargs or {})))

    x = torch.randn(3, 4, device=device)
    got = tw.softmax(Wrapper(x))
    assert type(got) is Wrapper
    assert torch.equal(got.inner, tw.softmax(x))
    assert torch.equal(tw.add(x, Wrapper(x)).inner, 2 * x)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_every_way_of_naming_a_dtype_is_handed_on(requires_grad):
    x = torch.randn(3, 4, requires_grad=requires_grad)
    for dtype in (torch.float64, "float64", np.float64, np.dtype("float64"), float):
        for context in (Recording(), torch.enable_grad()):
            with context:
                assert tw.softmax(x, dtype=dtype).dtype == torch.float64


def test_out_is_handed_on(device):
    x = torch.randn(3, 4, device=device)
    out = torch.empty_like(x)
    version = out._version
    with Recording():
        assert tw.add(x, 1, out=out) is out
    assert torch.equal(out, x + 1)
    assert out._version == version + 1
    with Recording():
        assert tw.softmax(x, 0, out=out) is out
        assert tw.matmul(x, x.mT, out=out[:, :3]) is not None
    assert torch.equal(out[:, :3], tw.matmul(x, x.mT))


def test_calls_from_a_dispatched_call_are_dispatched_too(device):
    class Twice(TorchDispatchMode):
        """Answers with a call of its own, made outside of the mode but of tensors that require grad."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "softmax" in str(func):
                return tw.add(args[0], args[0])
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 4, device=device, requires_grad=True)
    with Twice():
        got = tw.softmax(x)
    assert torch.equal(got, 2 * x)


def test_calls_on_memory_load_nothing_of_torchs_operators():
    fresh.run_after_torch(
        "import sys, torch, tilewise as tw\n"
        "x = torch.randn(3, 3)\n"
        "tw.add(x, x); tw.softmax(x); tw.matmul(x, x)\n"
        "with torch.no_grad(): tw.softmax(x.requires_grad_())\n"
        "assert 'tilewise.torch' not in sys.modules and 'torch._dynamo' not in sys.modules\n"
        "tw.softmax(x).sum().backward()\n"
        "assert 'tilewise.torch' in sys.modules and 'torch._dynamo' not in sys.modules\n"
    )


@pytest.mark.filterwarnings("ignore:.*torch.jit:")
@calls
def test_torch_jit_trace_records_the_operators(call):
    x, other = torch.randn(3, 4), torch.randn(3, 4)
    traced = torch.jit.trace(call, x)
    assert "tilewise::" in str(traced.graph)
    assert torch.equal(traced(other), call(other))


def test_a_real_tensor_beside_a_fake_one_is_torch_s_to_refuse(capfd):
    real = torch.randn(3, 3)
    with FakeTensorMode():
        fake = torch.empty(3, 3)
    for operands in [(real, fake), (fake, real)]:
        with pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"):
            tw.matmul(*operands)
    with pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"):
        make_fx(lambda x: tw.matmul(x, real), tracing_mode="fake")(real)
    assert "data pointer" not in capfd.readouterr().err
