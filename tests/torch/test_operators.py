"""torch.ops.tilewise: what torch's own checks of an operator ask, and that fakes tell the truth."""

import re
from functools import partial
from random import Random

import pytest
import tilewise as tw
import tilewise.torch
import torch
import torch._inductor.config
from support.tolerance import ALL
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

ops = torch.ops.tilewise


def cases(device, dtype=torch.float64):
    """Name, operator, arguments, keyword arguments: every overload."""

    def t(*shape, grad=True):
        return torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad)

    x, w, b = t(3, 4), t(4, 5), t(5)
    y = torch.softmax(t(3, 4, grad=False), -1).requires_grad_()
    plain, wide = t(3, 4, grad=False), t(3, 5, grad=False)
    yield "add", ops.add.Tensor, (x, t(4)), {}
    yield "add with alpha", ops.add.alpha, (x, t(4)), {"alpha": 2}
    yield "add of a transposed tensor", ops.add.Tensor, (t(4, 3).mT, x), {}
    yield "add of a number", ops.add.Scalar, (x, 1.5), {"alpha": 2}
    yield "add out", ops.add.out, (plain, plain), {"out": t(3, 4, grad=False)}
    yield "add of a number, out", ops.add.Scalar_out, (plain, 2), {"out": t(3, 4, grad=False)}
    for op in (ops.softmax, ops.log_softmax):
        yield f"{op}", op.default, (x,), {}
        yield f"{op} that converts", op.default, (x, 0), {"dtype": torch.float32}
        yield f"{op} out", op.out, (plain, 0), {"out": t(3, 4, grad=False)}
    for op in (ops.softmax_backward, ops.log_softmax_backward):
        yield f"{op}", op.default, (x, y, 0), {}
        yield f"{op} out", op.out, (plain, plain, 0), {"out": t(3, 4, grad=False)}
    yield "matmul", ops.matmul.default, (x, w), {}
    yield "matmul of batches", ops.matmul.default, (t(2, 3, 4), t(4)), {}
    for activation in ("relu", "leaky_relu", "gelu"):
        yield activation, ops.matmul.default, (x, w, b), {"activation": activation}
        yield (
            f"{activation} and its argument",
            ops.matmul_with_pre_activation.default,
            (x, w, b),
            {"activation": activation},
        )
    yield "matmul out", ops.matmul.out, (plain, t(4, 5, grad=False)), {"out": wide, "activation": "silu"}
    gate, residual = t(4, 5), t(3, 5)
    silu = {"activation": "silu"}
    yield "gate and residual", ops.fused_matmul.default, (x, w, None, gate, residual), silu
    ends = torch.tensor([1, 3], dtype=torch.int32, device=device)
    yield "grouped_matmul", ops.grouped_matmul.default, (x, t(2, 4, 5), ends, t(2, 5)), {"activation": "relu"}
    for bias in (False, True):
        options = {"saved_is": "pre_activation", "bias": bias}
        yield f"activation_backward {bias}", ops.activation_backward.default, (x, t(3, 4), "gelu"), options
        yield f"relu_backward {bias}", ops.activation_backward.default, (x, plain, "relu"), {"bias": bias}


NAMES = [name for name, *_ in cases("cpu")]


@pytest.fixture(params=range(len(NAMES)), ids=NAMES)
def case(request, device):
    return list(cases(device))[request.param]


@pytest.mark.filterwarnings("ignore")
def test_opcheck(case):
    _, op, args, options = case
    torch.library.opcheck(op, args, options)


def described(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(t.shape, t.dtype, t.device.type, steps(t)) for t in results if t is not None]


def steps(t):
    """Strides, but of dimensions that have them for no one to see."""
    return [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] if t.numel() else None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fakes_describe_the_results(device, dtype):
    for name, op, args, options in cases(device, dtype):
        if op is ops.matmul_with_pre_activation.default or "out" not in options:
            real = op(*args, **options)
            with FakeTensorMode(allow_non_fake_inputs=True):
                fake = op(*args, **options)
            assert described(fake) == described(real), name


def layouts(generator):
    """Two operands of shapes that broadcast, in random memory orders, some expanded or with gaps."""

    def below(n):
        return int(torch.randint(0, n, (), generator=generator))

    full = [(0, 2, 3, 4, 5)[below(5) or below(5)] for _ in range(below(5))]

    def operand():
        sizes = full[below(2 * len(full) + 1) - len(full) :] if full and not below(4) else full
        shape = [1 if not below(6) else n for n in sizes]
        order = torch.randperm(len(shape), generator=generator).tolist()
        memory = torch.randn([shape[d] for d in order] + [1 + below(2)])[..., 0]
        t = memory.permute([order.index(d) for d in range(len(shape))])
        return t if below(5) else t.expand(sizes)

    return operand(), operand()


def test_sums_are_laid_out_as_torchs():
    generator = torch.Generator().manual_seed(5)
    permuted = 0
    for _ in range(1000):
        x, y = layouts(generator)
        expected = torch.add(x, y)
        if 1 in expected.shape:
            continue
        assert described(tw.add(x, y)) == described(expected), (x.shape, x.stride(), y.shape, y.stride())
        assert described(tw.add(x, 2)) == described(torch.add(x, 2)), (x.shape, x.stride())
        permuted += not expected.is_contiguous()
    assert permuted > 100


def test_single_sizes_change_no_layout():
    image = torch.randn(1, 3, 5, 4).to(memory_format=torch.channels_last)
    for x, y in (
        (image, image[:, :1]),
        (image, image.contiguous()),
        (image.contiguous(), image),
        (image[:, :1], image[:, :1]),
        (torch.randn(1, 5).mT, torch.randn(5, 1)),
        (torch.randn(4, 1, 5).permute(2, 1, 0), torch.randn(4)),
    ):
        assert described(tw.add(x, y)) == described(torch.add(x, y))


def random_operand(random, shape, dtypes, device):
    """Of a shape that broadcasts to `shape`: permuted, expanded, with steps and with sizes of 1."""
    shape = shape[random.randint(0, len(shape)) :] if random.random() < 0.2 else shape
    order = random.sample(range(len(shape)), len(shape))
    stored = [1 if random.random() < 0.2 else shape[d] for d in order]
    steps = [random.choice((1, 1, 2)) for _ in order]
    t = torch.zeros([n * step for n, step in zip(stored, steps, strict=True)], device=device)
    t = t.to(random.choice(dtypes))[tuple(slice(None, None, step) for step in steps)]
    t = t.permute([order.index(d) for d in range(len(order))])
    return t.expand(shape) if random.random() < 0.5 else t


@pytest.mark.parametrize("dtypes", [[torch.float32], [torch.float32, torch.float16, torch.int32, torch.bool]])
def test_fakes_of_sums_have_the_strides_of_the_results(dtypes, device):
    random = Random(20)
    for _ in range(400):
        shape = random.choices((1, 2, 3, 5), k=random.randint(0, 4))
        x, y = (random_operand(random, shape, dtypes, device) for _ in range(2))
        with FakeTensorMode() as mode:
            fakes = mode.from_tensor(x), mode.from_tensor(y)
        for call in (lambda a, b: tw.add(a, b), lambda a, b: tw.add(a, 2)):
            real = call(x, y)
            with mode:
                fake = call(*fakes)
            meta = call(x.to("meta"), y.to("meta")) if x.is_contiguous() and y.is_contiguous() else fake
            assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())
            assert meta.stride() == real.stride()


def test_sums_of_odd_layouts_compile(device):
    mixed = torch.randn(4, device=device).half().expand(3, 4), torch.randn(4, 3, device=device).T
    single = torch.randn(3, 5, 3, device=device)[:, :1].transpose(0, 1)[:, None].expand(1, 5, 3, 3)
    pairs = [mixed, (single, torch.randn(3, device=device)), (single, 1.5)]
    # What inductor has kept of an earlier fake says nothing of this one.
    with torch._inductor.config.patch(force_disable_caches=True):
        for dynamic in (False, True):
            torch._dynamo.reset()
            call = torch.compile(
                lambda pairs: [tw.add(x, y) * 2 for x, y in pairs], fullgraph=True, dynamic=dynamic
            )
            for got, (x, y) in zip(call(pairs), pairs, strict=True):
                assert torch.allclose(got, (x + y) * 2)


def test_fakes_of_symbolic_sizes_have_the_strides_of_the_results(device):
    """torch makes them from decompositions."""
    half = torch.randn(4, device=device).half().expand(3, 4)
    across = torch.randn(4, 3, device=device).T
    cube, flat = torch.randn(5, 3, 4, device=device).permute(2, 0, 1), torch.randn(3, 5, device=device).T
    for x, y in ((half, across), (across, across), (across, 2), (cube, cube[:1]), (flat, cube)):
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            fakes = [
                mode.from_tensor(t, static_shapes=False) if isinstance(t, torch.Tensor) else t for t in (x, y)
            ]
            fake = tw.add(*fakes)
        assert [int(n) for n in fake.stride()] == list(tw.add(x, y).stride())


def test_sums_have_torchs_dtypes_as_fakes(device):
    with FakeTensorMode():
        for x in ALL:
            for y in ALL:
                a, b = torch.empty(3, dtype=x, device=device), torch.empty(3, dtype=y, device=device)
                assert tw.add(a, b).dtype == torch.result_type(a, b)


def test_meta_tensors():
    x, w = torch.empty(3, 4, device="meta"), torch.empty(2, 4, 5, device="meta")
    assert tw.matmul(x, w).shape == (2, 3, 5)
    assert tw.matmul(x, w).is_meta
    assert tw.softmax(x, dtype="float64").dtype == torch.float64
    out = torch.empty(3, 4, device="meta")
    assert tw.add(x, 1, out=out) is out


@pytest.mark.parametrize("number", ["float32", "int64", "bool_", "float16"])
def test_numpy_s_numbers_are_numbers_everywhere(number):
    number = getattr(pytest.importorskip("numpy"), number)(1)
    x = torch.arange(3.0)
    assert tw.add(x.to("meta"), number).shape == (3,)
    for got in (
        torch.func.vmap(lambda x: tw.add(x, number))(x),
        torch.func.vmap(lambda x: tw.add(number, x))(x),
    ):
        torch.testing.assert_close(got, x + 1)
    gradient = torch.func.grad(lambda x: tw.add(x, number).sum())(x)
    torch.testing.assert_close(gradient, torch.ones(3))


@pytest.mark.parametrize(
    "call",
    [
        lambda t: tw.add(t(3, 4), t(5)),
        lambda t: tw.softmax(t(3, 4), 2),
        lambda t: tw.matmul(t(3, 4), t(3, 4)),
        lambda t: tw.matmul(t(2, 3, 4), t(3, 4, 5)),
        lambda t: tw.matmul(t(3, 4), t(4, 5), bias=t(4)),
        lambda t: tw.matmul(t(()), t(4)),
        lambda t: tw.matmul(t(3, 4), t(4, 5, dtype=torch.float64)),
        lambda t: tw.matmul(t(3, 4, dtype=torch.int64), t(4, 5, dtype=torch.int64)),
        lambda t: tw.softmax(t(3, dtype=torch.int64)),
        lambda t: tw.softmax(t(3), dtype=torch.int64),
        lambda t: tw.softmax(t(3), out=t(4)),
        lambda t: tw.add(t(3), 1, out=t(3, dtype=torch.int64)),
        lambda t: tw.matmul(t(3, 4), t(4, 5), activation="swish"),
        lambda t: tw.matmul(t(3, 4), t(4, 5), precision="fp8"),
    ],
    ids=range(14),
)
def test_fakes_refuse_what_is_refused(call):
    with pytest.raises(tw.TilewiseError):
        call(torch.ones)
    with (
        FakeTensorMode(),
        pytest.raises((RuntimeError, IndexError, TypeError, ValueError)),
    ):
        call(torch.ones)


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def requiring_grad(*shape):
    return torch.ones(shape, requires_grad=True)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tw.add(meta(3), torch.ones(3)), tw.DeviceError, "^add: `y` is on cpu, but x is on meta"),
        (lambda: tw.add(torch.ones(3), meta(3)), tw.DeviceError, "^add: `y` is on meta, but x is on cpu"),
        (lambda: tw.matmul(meta(3, 3), torch.ones(3, 3)), tw.DeviceError, "^matmul: `b` is on cpu, but a is"),
        (lambda: tw.matmul(torch.ones(3, 3), meta(3, 3)), tw.DeviceError, "share one device"),
        (lambda: tw.matmul(meta(3, 3), meta(3, 3), bias=torch.ones(3)), tw.DeviceError, "share one device"),
        (lambda: tw.softmax(meta(3), out=torch.ones(3)), tw.DeviceError, "share one device"),
        *(
            (
                lambda name=name, shape=shape, a=a, b=b: tw.matmul(a(3, 3), a(3, 3), **{name: b(*shape)}),
                tw.DeviceError,
                f"^matmul: `{name}` is on .*, but a is on",
            )
            for name, shape in (("gate", (3, 3)), ("residual", (3, 3)), ("bias", (3,)))
            for a, b in ((meta, torch.ones), (torch.ones, meta), (requiring_grad, meta))
        ),
        *(
            (
                lambda a=a, b=b: tw.grouped_matmul(a(4, 3), a(2, 3, 5), b(2, dtype=torch.int32)),
                tw.DeviceError,
                "^grouped_matmul: `offsets` is on .*, but a is on",
            )
            for a, b in ((meta, torch.ones), (torch.ones, meta), (requiring_grad, meta))
        ),
        (
            lambda: tw.grouped_matmul(requiring_grad(4, 3, 3), torch.ones(4, 3, 5), gate=meta(4, 3, 5)),
            tw.DeviceError,
            "^grouped_matmul: `gate` is on meta, but a is on cpu",
        ),
        (lambda: tw.softmax_backward(meta(3), torch.ones(3)), tw.DeviceError, "share one device"),
        (lambda: tw.softmax(meta(3), dim=2**70), tw.DTypeError, "does not fit into int64"),
        (lambda: tw.add(meta(3), 1j), tw.DTypeError, "`y` is a complex number"),
        (lambda: tw.add(meta(3), "a"), tw.DTypeError, "`y` is of type str, neither a tensor nor a number"),
        (lambda: tw.add(meta(3), meta(3), out="a"), tw.DTypeError, "`out` is of type str, not a tensor"),
        (lambda: tw.matmul(meta(3, 3), None), tw.DTypeError, "`b` is of type NoneType, not a tensor"),
    ],
)
def test_errors_without_memory_are_of_the_same_classes_and_name_no_overload(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert not re.search(r"tilewise::|overload|schema", str(caught.value))


# Each of a function that makes tensors of ones on a device.
MISFITS = {
    "sum of shapes": lambda ones: tw.add(ones(2, 3), ones(4, 5)),
    "sum of complex numbers": lambda ones: tw.add(ones(3, dtype=torch.complex64), 1),
    "out of another shape": lambda ones: tw.add(ones(2, 3), 1, out=ones(3)),
    "out of another dtype": lambda ones: tw.add(ones(3), 1, out=ones(3, dtype=torch.float16)),
    "dim": lambda ones: tw.softmax(ones(2, 3), dim=5),
    "dim of log_softmax_backward": lambda ones: tw.log_softmax_backward(ones(3), ones(3), dim=-2),
    "softmax of integers": lambda ones: tw.softmax(ones(2, 3, dtype=torch.int32)),
    "softmax of complex numbers": lambda ones: tw.softmax(ones(3, dtype=torch.complex64)),
    "softmax into integers": lambda ones: tw.softmax(ones(3), dtype=torch.int32),
    "gradient's shape": lambda ones: tw.softmax_backward(ones(2, 3), ones(3, 2)),
    "gradient's dtype": lambda ones: tw.softmax_backward(ones(2, 3), ones(2, 3).half()),
    "inner sizes": lambda ones: tw.matmul(ones(2, 3), ones(4, 5)),
    "inner size of a vector": lambda ones: tw.matmul(ones(2, 3), ones(4)),
    "batches": lambda ones: tw.matmul(ones(2, 3, 4), ones(3, 4, 5)),
    "no dimension": lambda ones: tw.matmul(ones(()), ones(3)),
    "matmul of integers": lambda ones: tw.matmul(
        ones(2, 2, dtype=torch.int32), ones(2, 2, dtype=torch.int32)
    ),
    "matmul of two dtypes": lambda ones: tw.matmul(ones(2, 3), ones(3, 5).half()),
    "bias": lambda ones: tw.matmul(ones(2, 3), ones(3, 5), bias=ones(4)),
    "residual": lambda ones: tw.matmul(ones(2, 3), ones(3, 5), residual=ones(4, 4)),
    "gate": lambda ones: tw.matmul(ones(2, 3), ones(3, 5), gate=ones(3, 4), activation="silu"),
    "bias of a gate": lambda ones: tw.matmul(ones(2, 3), ones(3, 5), gate=ones(3, 5), bias=ones(5)),
    "out of a residual": lambda ones: tw.matmul(ones(2, 3), ones(3, 5), residual=ones(2, 5), out=ones(2, 4)),
    "number of offsets": lambda ones: tw.grouped_matmul(
        ones(4, 3), ones(2, 3, 5), ones(3, dtype=torch.int32)
    ),
    "dtype of offsets": lambda ones: tw.grouped_matmul(ones(4, 3), ones(2, 3, 5), ones(2)),
    "groups without offsets": lambda ones: tw.grouped_matmul(ones(4, 3), ones(2, 3, 5)),
    "inner sizes of groups": lambda ones: tw.grouped_matmul(
        ones(4, 3), ones(2, 4, 5), ones(2, dtype=torch.int32)
    ),
    "batches of groups": lambda ones: tw.grouped_matmul(ones(2, 4, 3), ones(3, 3, 5)),
    "bias of groups": lambda ones: tw.grouped_matmul(
        ones(4, 3), ones(2, 3, 5), ones(2, dtype=torch.int32), bias=ones(5)
    ),
    "bias of gated groups": lambda ones: tw.grouped_matmul(
        ones(2, 4, 3), ones(2, 3, 5), gate=ones(2, 3, 5), bias=ones(2, 5)
    ),
}


@pytest.mark.parametrize("call", MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_the_same_error_without_memory(call):
    def said(device):
        with pytest.raises(tw.TilewiseError) as caught:
            call(partial(torch.ones, device=device))
        return caught.type, str(caught.value)

    assert said("meta") == said("cpu")


def test_a_residual_that_does_not_fit_is_the_same_error_in_vmap():
    a, b, residual = torch.ones(2, 2, 3), torch.ones(3, 5), torch.ones(4, 4)
    with pytest.raises(tw.ShapeError, match="`residual` has shape"):
        torch.func.vmap(lambda a: tw.matmul(a, b, residual=residual))(a)


@pytest.mark.parametrize("option", [{"activation": "swish"}, {"precision": "fp8"}])
def test_a_wrong_option_is_the_same_error_without_memory(option):
    def said(x):
        with pytest.raises(tw.OptionError) as caught:
            tw.matmul(x, x, **option)
        return str(caught.value)

    assert said(torch.ones(2, 2)) == said(torch.ones(2, 2, device="meta"))
    with pytest.raises(Exception, match=next(iter(option.values()))):
        torch.compile(lambda x: tw.matmul(x, x, **option), fullgraph=True, backend="eager")(torch.ones(2, 2))
