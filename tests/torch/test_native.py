"""torch.ops.tilewise without Python, where torch has the ABI for it, and with Python where it has not."""

import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tilewise as tw
import tilewise.torch
import torch
from support import fresh
from support.memory import resident_bytes
from tilewise.torch import native
from torch.utils._python_dispatch import TorchDispatchMode

ops = torch.ops.tilewise
NATIVE = native.implement()

needs_abi = pytest.mark.skipif(not NATIVE, reason="not wanted, or this torch has no ABI for it")


def calls(device):
    """By the names of the operators that may be native: a call, and the function that means the same."""
    x, w, b = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    x, w, b, y = (t.to(device) for t in (x, w, b, torch.softmax(x, -1)))
    leaky = {"activation": "leaky_relu", "negative_slope": 0.2}
    wide = {"dtype": torch.float64}
    gelu = {"saved_is": "pre_activation", "bias": True}
    silu = {"activation": "silu"}
    ends = torch.tensor([1, 3], dtype=torch.int32, device=device)
    experts = torch.stack([w, 2 * w])
    return {
        "add.Tensor": (lambda: ops.add(x, y[:1]), lambda: tw.add(x, y[:1])),
        "softmax": (lambda: ops.softmax(x, 0, **wide), lambda: tw.softmax(x, 0, **wide)),
        "log_softmax": (lambda: ops.log_softmax(x), lambda: tw.log_softmax(x)),
        "matmul": (lambda: ops.matmul(x, w, b, **leaky), lambda: tw.matmul(x, w, bias=b, **leaky)),
        "fused_matmul": (
            lambda: ops.fused_matmul(x, w, torch.stack([b, b]), w, x[:, :1], **silu),
            lambda: tw.matmul(x, w, bias=torch.stack([b, b]), gate=w, residual=x[:, :1], **silu),
        ),
        "grouped_matmul": (
            lambda: ops.grouped_matmul(x, experts, ends, torch.stack([b, b]), **leaky),
            lambda: tw.grouped_matmul(x, experts, ends, bias=torch.stack([b, b]), **leaky),
        ),
        "softmax_backward": (lambda: ops.softmax_backward(x, y, 0), lambda: tw.softmax_backward(x, y, 0)),
        "log_softmax_backward": (
            lambda: ops.log_softmax_backward(x, y),
            lambda: tw.log_softmax_backward(x, y),
        ),
        "activation_backward": (
            lambda: ops.activation_backward(x, y, "gelu", **gelu)[1],
            lambda: tw._core.activation_backward(x, y, "gelu", **gelu)[1],
        ),
    }


def mistakes(device):
    """An operator's call that is refused, and the function's."""
    x, w = torch.randn(3, 4, device=device), torch.randn(4, 5, device=device)
    long = "x" * 200
    return [
        (lambda: ops.add(x, w), lambda: tw.add(x, w)),
        (lambda: ops.add(x, x.to(torch.complex64)), lambda: tw.add(x, x.to(torch.complex64))),
        (lambda: ops.add(x.cfloat(), x), lambda: tw.add(x.cfloat(), x)),
        (lambda: ops.softmax(x, 2), lambda: tw.softmax(x, 2)),
        (lambda: ops.softmax(x.int()), lambda: tw.softmax(x.int())),
        (lambda: ops.softmax(x, dtype=torch.int8), lambda: tw.softmax(x, dtype=torch.int8)),
        (lambda: ops.softmax(x, dtype=torch.complex64), lambda: tw.softmax(x, dtype=torch.complex64)),
        (lambda: ops.log_softmax(x[(None,) * 63]), lambda: tw.log_softmax(x[(None,) * 63])),
        (lambda: ops.matmul(x, x), lambda: tw.matmul(x, x)),
        (lambda: ops.matmul(x, w, x), lambda: tw.matmul(x, w, bias=x)),
        (lambda: ops.matmul(x, w.double()), lambda: tw.matmul(x, w.double())),
        (lambda: ops.matmul(x, w, activation=long), lambda: tw.matmul(x, w, activation=long)),
        (lambda: ops.matmul(x, w, precision=long), lambda: tw.matmul(x, w, precision=long)),
        (lambda: ops.fused_matmul(x, w, None, x), lambda: tw.matmul(x, w, gate=x)),
        (lambda: ops.fused_matmul(x, w, x, w), lambda: tw.matmul(x, w, bias=x, gate=w)),
        (lambda: ops.fused_matmul(x, w, None, None, w), lambda: tw.matmul(x, w, residual=w)),
        (
            lambda: ops.fused_matmul(x, w, None, w.double(), activation="silu"),
            lambda: tw.matmul(x, w, gate=w.double(), activation="silu"),
        ),
        (lambda: ops.grouped_matmul(x, w), lambda: tw.grouped_matmul(x, w)),
        (lambda: ops.grouped_matmul(x, w[None], x), lambda: tw.grouped_matmul(x, w[None], x)),
        (
            lambda: ops.grouped_matmul(x[None], w[None], None, x, activation="relu"),
            lambda: tw.grouped_matmul(x[None], w[None], bias=x, activation="relu"),
        ),
        (lambda: ops.softmax_backward(x, w), lambda: tw.softmax_backward(x, w)),
        (
            lambda: ops.activation_backward(x, x, "relu", saved_is="é\0"),
            lambda: tw._core.activation_backward(x, x, "relu", saved_is="é\0"),
        ),
        (
            lambda: ops.activation_backward(x, x, "gelu"),
            lambda: tw._core.activation_backward(x, x, "gelu"),
        ),
    ]


def raised(call):
    with pytest.raises(Exception) as caught:
        call()
    return type(caught.value), str(caught.value)


def test_torch_has_the_abi_from_2_10_on():
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    wanted = os.environ.get("TILEWISE_NATIVE_OPERATORS") != "0"
    assert sorted(NATIVE) == (sorted(calls("cpu")) if wanted and release >= (2, 10) else [])


def test_operators_return_what_the_functions_return(device):
    for name, (operator, function) in calls(device).items():
        got, expected = operator(), function()
        assert torch.equal(got, expected), name
        assert (got.dtype, got.stride()) == (expected.dtype, expected.stride()), name


def test_operators_refuse_what_the_functions_refuse(device):
    for number, (operator, function) in enumerate(mistakes(device)):
        expected = raised(function)
        assert issubclass(expected[0], tw.TilewiseError)
        assert raised(operator) == expected, number


@needs_abi
def test_a_call_runs_no_python_of_ours(device):
    made = calls(device)
    seen = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(os.path.dirname(tw.__file__)):
            seen.append(frame.f_code.co_name)

    def profiled(call):
        sys.setprofile(profile)
        try:
            call()
        finally:
            sys.setprofile(None)
        return len(seen)

    x = torch.randn(3, device=device)
    for parameter in (x, torch.nn.Parameter(x)[1:], torch.nn.Parameter(x)):
        with torch.no_grad():
            assert profiled(lambda t=parameter: ops.softmax(t)) == 0
    for operator, _ in made.values():
        assert profiled(operator) == 0
        with torch.inference_mode():
            assert profiled(operator) == 0
    # What is recorded is seen.
    assert profiled(lambda: ops.softmax(torch.nn.Parameter(x))) > 0


def test_nothing_is_kept_of_a_call(device):
    x = torch.randn(64, 64, device=device)

    def after(call):
        made = x.clone(), x.clone(), x[0].clone()
        watched = [weakref.ref(t) for t in made]
        try:
            result = call(*made)
            watched += [weakref.ref(t) for t in (result if isinstance(result, tuple) else (result,))]
            del result
        except (tw.TilewiseError, RuntimeError):
            pass
        del made
        return [ref() for ref in watched]

    for call in (
        lambda a, b, c: ops.add(a, b),
        lambda a, b, c: ops.add(a, b[:3]),
        lambda a, b, c: ops.softmax(a, 0, dtype=torch.float16),
        lambda a, b, c: ops.softmax(a, 5, dtype=torch.float16),
        lambda a, b, c: ops.matmul(a, b, c, activation="gelu"),
        lambda a, b, c: ops.matmul(a, b, a, activation="gelu"),
        lambda a, b, c: ops.matmul(a, b, c, activation="none"),
        lambda a, b, c: ops.matmul(a.requires_grad_(), b, c, activation="gelu").detach(),
        lambda a, b, c: ops.matmul(a.requires_grad_(), b, a, activation="gelu"),
        lambda a, b, c: ops.fused_matmul(a, b, None, b, c, activation="silu"),
        lambda a, b, c: ops.fused_matmul(a, b, None, c, a, activation="silu"),
        lambda a, b, c: ops.fused_matmul(a.requires_grad_(), b, None, b, c, activation="silu").detach(),
        lambda a, b, c: ops.grouped_matmul(a[None], b[None], None, c[None], activation="relu"),
        lambda a, b, c: ops.grouped_matmul(a[None], b, None, c[None]),
        lambda a, b, c: ops.activation_backward(a, b, "relu", bias=True),
        lambda a, b, c: ops.activation_backward(a, b[0], "relu", bias=True),
    ):
        assert after(call) == [None] * len(after(call))


def test_thousands_of_errors_take_no_memory(device):
    x = torch.randn(3, 4, device=device)
    name = "é" * 20_000

    def fail(times):
        for _ in range(times):
            for call in (
                lambda: ops.matmul(x, x, activation=name),
                lambda: ops.matmul(x, x.mT, x, precision=name),
                lambda: ops.softmax(x, 9, dtype=torch.float64),
                lambda: ops.fused_matmul(x, x.mT, None, x, x, activation="silu"),
                lambda: ops.grouped_matmul(x, x[None], None, x, activation=name),
            ):
                with pytest.raises(tw.TilewiseError):
                    call()

    fail(300)
    before = resident_bytes()
    fail(2000)
    # The names alone would be 160 MB.
    assert resident_bytes() - before < 20 << 20


def test_exceptions_of_python_pass_through(device):
    class Stop(BaseException):
        pass

    class Stopping(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            raise Stop(str(function))

    x = torch.ones(3, device=device)
    for given in (x, x.clone().requires_grad_()):
        for call, name in (
            (ops.softmax, "softmax.default"),
            (lambda t: ops.add(t, t), "add.Tensor"),
            (lambda t: ops.matmul(t, t), "matmul.default"),
        ):
            with Stopping(), pytest.raises(Stop, match=f"^tilewise.{name}$"):
                call(given)


def test_what_torch_raises_for_want_of_memory_is_torchs(device):
    huge = torch.empty(1 << 24, 1, device=device).expand(1 << 24, 1 << 22)
    expected = raised(lambda: huge.contiguous())
    got = raised(lambda: ops.softmax(huge))
    assert got[0] is expected[0]
    assert "memory" in got[1]


def test_threads(device):
    made = calls(device)
    expected = {name: function() for name, (_, function) in made.items()}
    wrong = mistakes(device)
    errors = [raised(function) for _, function in wrong]
    start = threading.Barrier(8)

    def work(_):
        start.wait()
        for _ in range(20):
            assert all(torch.equal(operator(), expected[name]) for name, (operator, _) in made.items())
            assert [raised(operator) for operator, _ in wrong] == errors

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


@needs_abi
def test_a_first_call_in_inference_mode():
    fresh.run("""
        import warnings
        warnings.simplefilter("ignore")
        import torch
        import tilewise as tw

        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            x = torch.randn(3, 3)
            for _ in range(3):
                assert torch.equal(tw.add(x, x), x + x)
                assert tw.matmul(x, x).dtype is torch.bfloat16
        for _ in range(3):
            assert tw.matmul(x, x).dtype is torch.float32
        from tilewise.torch import native
        assert "matmul" in native.implement()
    """)


def test_a_forked_child():
    fresh.run("""
        import os
        import torch
        import tilewise as tw
        import tilewise.torch

        # Its own threads do not outlive a fork.
        torch.set_num_threads(1)
        x = torch.randn(300, 300)

        def compute():
            assert torch.equal(torch.ops.tilewise.matmul(x, x), tw.matmul(x, x))
            try:
                torch.ops.tilewise.softmax(x, 2)
            except tw.DimError:
                pass

        compute()
        child = os.fork()
        if child == 0:
            compute()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """)


def test_a_thread_that_python_has_not_begun():
    fresh.run("""
        import time, warnings
        warnings.simplefilter("ignore")
        import torch
        import tilewise.torch

        elsewhere = torch.jit.CompilationUnit(
            "def softmax(x: Tensor, dim: int) -> Tensor:\\n"
            "    return torch.ops.tilewise.softmax(x, dim)\\n"
            "def elsewhere(x: Tensor, dim: int) -> Tensor:\\n"
            "    return torch.jit.wait(torch.jit.fork(softmax, x, dim))\\n"
        ).elsewhere

        x = torch.randn(3, 4)
        assert torch.allclose(elsewhere(x, 0), torch.softmax(x, 0))
        for wrong in (x, x.clone().requires_grad_()):
            try:
                elsewhere(wrong, 2)
            except Exception as error:
                assert "softmax: dim=2 is out of range" in str(error), error
            else:
                raise AssertionError("not refused")

        # After its result is there, torch's thread lets go of what it has of a Python that must still run.
        time.sleep(0.5)
    """)


@pytest.mark.skipif(not NATIVE, reason="this process has no others")
def test_all_of_this_with_operators_in_python():
    here = Path(__file__)
    tests = [f"{here.parent / 'test_operators.py'}::test_opcheck", here]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        env={**os.environ, "TILEWISE_NATIVE_OPERATORS": "0"},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
