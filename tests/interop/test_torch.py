"""torch tensors in and out: whose allocator, which class, what torch's own bookkeeping is told."""

import pytest
import tilewise as tw
import tilewise.torch
import torch
from support.tolerance import assert_identical


def test_results_are_torchs_own_tensors(device):
    x = torch.randn(4, 5, device=device)
    for got in (tw.add(x, 1), tw.softmax(x), tw.matmul(x, x.mT)):
        assert type(got) is torch.Tensor
        assert got.device == x.device
        assert not got.requires_grad
        assert got.is_leaf
        # Memory of torch's own allocator can grow in place; memory lent by DLPack cannot.
        got.resize_(100, 100)


def test_parameters_are_taken_without_gradients(device):
    weight = torch.nn.Parameter(torch.randn(5, 3, device=device))
    x = torch.randn(4, 5, device=device)
    with torch.no_grad():
        got = tw.matmul(x, weight)
    assert type(got) is torch.Tensor
    assert not got.requires_grad
    assert torch.allclose(got, x @ weight.detach(), atol=1e-5)
    assert tw.add(weight.detach(), 1).shape == weight.shape
    frozen = torch.nn.Parameter(torch.randn(5, device=device), requires_grad=False)
    assert_identical(tw.add(frozen, 1), frozen + 1)


def test_inference_mode(device):
    with torch.inference_mode():
        x = torch.randn(8, device=device)
        got = tw.add(x, 1)
        assert_identical(got, x + 1)
        assert tw.softmax(x, out=got) is got
    assert_identical(tw.add(x, 1), x + 1)


def test_nothing_is_recorded_in_inference_mode(device):
    weight = torch.randn(4, 4, device=device, requires_grad=True)
    with torch.inference_mode(), torch.enable_grad():
        made = torch.randn(4, 4, device=device, requires_grad=True)
        for x in (weight, made):
            for _ in range(3):
                pairs = [
                    (tw.add(x, x), torch.add(x, x)),
                    (tw.softmax(x), torch.softmax(x, -1)),
                    (tw.log_softmax(x), torch.log_softmax(x, -1)),
                    (tw.matmul(x, x, activation="gelu"), torch.nn.functional.gelu(torch.matmul(x, x))),
                    (torch.ops.tilewise.softmax(x), torch.softmax(x, -1)),
                    (tw.softmax_backward(x, x), x * x - x * (x * x).sum(-1, keepdim=True)),
                ]
                for got, expected in pairs:
                    assert torch.allclose(got, expected, atol=1e-5)
                    assert (got.requires_grad, got.grad_fn) == (expected.requires_grad, None)
                    assert got.is_inference()
            out = torch.empty(4, 4, device=device)
            assert tw.add(x, x, out=out) is out
    assert tw.add(weight, 1).requires_grad


def test_writing_out_is_a_change_that_autograd_sees(device):
    # torch saved y for the backward of p * y: overwriting it must be noticed, as it is for torch.add(out=).
    p = torch.ones(4, device=device, requires_grad=True)
    y = torch.full((4,), 2.0, device=device)
    product = (p * y).sum()
    tw.add(torch.zeros(4, device=device), 7, out=y)
    assert_identical(y, torch.full_like(y, 7.0))
    with pytest.raises(RuntimeError, match="inplace operation"):
        product.backward()


def test_reading_is_no_change(device):
    x = torch.randn(4, 4, device=device)
    before = x._version
    tw.add(x, x)
    tw.softmax(x)
    tw.matmul(x, x, bias=x[0])
    assert x._version == before


def test_negated_views_give_right_numbers(device):
    z = torch.randn(6, dtype=torch.complex64, device=device)
    negated = torch.conj(z).imag
    assert negated.is_neg()
    expected = -z.imag
    assert_identical(tw.add(negated, 0.0), expected)
    assert_identical(tw.softmax(negated), tw.softmax(expected.clone()))
    assert_identical(tw.matmul(negated, negated), tw.matmul(expected.clone(), expected.clone()))
    before = z.clone()
    beyond = negated.as_strided((4,), (1,), 0)
    assert beyond.is_neg()
    assert_identical(tw.add(beyond, 0.0), beyond.resolve_neg())
    with pytest.raises(tw.LayoutError, match="negative bit"):
        tw.add(torch.ones(6, device=device), 1, out=negated)
    assert_identical(torch.view_as_real(z), torch.view_as_real(before))


NEGATED = {
    "contiguous": lambda x: torch._neg_view(x),
    "transposed": lambda x: torch._neg_view(x.mT),
    "a column": lambda x: torch._neg_view(x)[:, 1:2],
    "data": lambda x: torch._neg_view(x).data,
    "detached": lambda x: torch._neg_view(x).detach(),
    "twice": lambda x: torch._neg_view(torch._neg_view(x)),
    "thrice": lambda x: torch._neg_view(torch._neg_view(torch._neg_view(x))),
    "one element": lambda x: torch._neg_view(x)[0, 0],
    "a parameter": lambda x: torch._neg_view(torch.nn.Parameter(x, requires_grad=False)),
    "empty": lambda x: torch._neg_view(x[:0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32])
@pytest.mark.parametrize("kind", NEGATED)
def test_negated_views_of_real_tensors(kind, dtype, device):
    x = (10 * torch.randn(6, 4, device=device)).to(dtype)
    negated = NEGATED[kind](x)
    plain = negated.resolve_neg().clone()
    # The last of these calls are known by then; the negated tensor has the layout of the others.
    for tensor in (plain, plain, plain, negated, plain, negated):
        assert_identical(tw.add(tensor, plain), plain + plain)
        assert_identical(tw.add(plain, tensor), plain + plain)
        if dtype.is_floating_point:
            assert_identical(tw.softmax(tensor, -1), tw.softmax(plain, -1))
            assert_identical(tw.log_softmax(tensor, -1), tw.log_softmax(plain, -1))
            if plain.ndim == 2:
                assert_identical(tw.matmul(tensor, plain.mT), tw.matmul(plain, plain.mT))
                assert_identical(
                    tw.matmul(plain, plain.mT, bias=tensor.new_ones(plain.shape[0])),
                    tw.matmul(tensor, plain.mT, bias=plain.new_ones(plain.shape[0])),
                )
    if negated.is_neg():
        with pytest.raises(tw.LayoutError, match="negative bit"):
            tw.add(plain, plain, out=negated)
        with torch.inference_mode():
            assert_identical(tw.add(negated, 0), plain + 0)


def test_one_negated_element_of_misaligned_complex_storage():
    for offset in (0, 4):
        z = torch.frombuffer(bytearray(48), dtype=torch.complex64, offset=offset, count=4)
        torch.view_as_real(z).copy_(torch.randn(4, 2))
        for negated in (torch.conj(z).imag[2], torch.conj(z).imag[1:2], torch.conj(z[3]).imag):
            assert negated.is_neg()
            assert_identical(tw.add(negated, 0.0), negated.resolve_neg())


BYTES = ["int1", "int2", "int3", "int4", "int5", "int6", "int7", "uint1", "uint2", "uint3", "uint4", "uint5"]


@pytest.mark.parametrize("name", [name for name in BYTES if hasattr(torch, name)])
def test_dtypes_of_less_than_a_byte_are_not_taken_for_bytes(name, device):
    dtype = getattr(torch, name)
    byte = torch.zeros(4, dtype=torch.int8 if name.startswith("int") else torch.uint8, device=device)
    odd = torch.empty(4, dtype=dtype, device=device)
    for x, y in ((odd, odd), (odd, 1), (byte, odd)):
        for _ in range(3):
            tw.add(byte, byte), tw.add(byte, 1)
        with pytest.raises(tw.DTypeError, match=f"dtype {name};"):
            tw.add(x, y)
    with pytest.raises(tw.DTypeError, match=f"dtype {name};"):
        tw.softmax(odd, dtype=torch.float32)
    with pytest.raises(tw.DTypeError, match=name):
        tw.add(byte, byte, out=odd)


def test_the_parts_of_complex_tensors_are_plain_views(device):
    z = torch.randn(6, dtype=torch.complex64, device=device)
    assert_identical(tw.add(z.real, z.imag), z.real + z.imag)


def test_a_subclass_without_its_own_dispatch(device):
    class Named(torch.Tensor):
        pass

    x = torch.randn(5, device=device).as_subclass(Named)
    got = tw.add(x, 1)
    assert isinstance(got, torch.Tensor)
    assert_identical(got.as_subclass(torch.Tensor), x.as_subclass(torch.Tensor) + 1)


def test_shared_and_mapped_memory(tmp_path):
    shared = torch.arange(6.0).share_memory_()
    assert_identical(tw.add(shared, 1), torch.arange(1.0, 7.0))
    path = str(tmp_path / "numbers")
    mapped = torch.from_file(path, shared=True, size=6)
    tw.add(shared, 1, out=mapped)
    assert torch.from_file(path, size=6).tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.gpu
def test_pinned_memory_is_cpu_memory():
    x = torch.arange(6.0).pin_memory()
    got = tw.add(x, 1)
    assert got.device.type == "cpu"
    assert_identical(got, torch.arange(1.0, 7.0))


@pytest.mark.gpu
def test_outputs_come_from_torchs_caching_allocator():
    x = torch.randn(1 << 20, device="cuda")
    tw.add(x, 1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = tw.add(x, 1)
    assert torch.cuda.memory_allocated() - before == y.numel() * 4
    del y
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
def test_nothing_is_allocated_with_out():
    x, w = (
        torch.randn(1024, 1024, device="cuda"),
        torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16),
    )
    out, product = torch.empty_like(x), torch.empty_like(w)
    calls = [
        lambda: tw.add(x, x, out=out),
        lambda: tw.softmax(x, out=out),
        lambda: tw.softmax(x.mT, 0, out=out),
        lambda: tw.matmul(w, w, out=product),
        lambda: tw.matmul(w.mT, w.mT, activation="gelu", out=product),
    ]
    for call in calls:
        call()
        free = []
        # Others may use the GPU too, but will not take more of it each time.
        for _ in range(5):
            torch.cuda.synchronize()
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            free.append(torch.cuda.mem_get_info()[0])
            for _ in range(20):
                call()
            torch.cuda.synchronize()
            free[-1] -= torch.cuda.mem_get_info()[0]
            assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        assert min(free) <= 0


def test_a_negated_number(device):
    minus_two = torch.tensor([1 + 2j]).conj().imag[0]
    assert minus_two.is_neg()
    x = torch.tensor([[-1.0]], device=device)
    assert_identical(tw.add(x, x, alpha=minus_two), x - 2 * x)
    got = tw.matmul(x, -x, activation="leaky_relu", negative_slope=minus_two)
    assert_identical(got, torch.full_like(x, 2 * float(-x * x)).abs())


class Meddling:
    """A dimension that does something when it is asked for."""

    def __init__(self, meddle):
        self.meddle = meddle

    def __index__(self):
        self.meddle()
        return 1


def test_options_that_change_tensors(device):
    x = torch.randn(64, 64, device=device)
    other = torch.randn(2, 2, device=device)
    assert_identical(tw.softmax(x, Meddling(lambda: x.set_(other))), tw.softmax(other, 1))
    grad = torch.randn(64, 64, device=device)
    with pytest.raises(tw.ShapeError):
        tw.softmax_backward(grad, grad.clone(), Meddling(lambda: grad.set_(other)))


def test_real_tensors_beside_those_without_memory(device):
    real, meta = torch.ones(2, 2, device=device), torch.ones(2, 2, device="meta")
    calls = [
        lambda: tw.add(meta, 1, out=real),
        lambda: tw.softmax(meta, out=real),
        lambda: tw.matmul(real, real, out=meta),
        lambda: tw.matmul(real, meta),
        lambda: tw.matmul(meta, real),
        lambda: tw.matmul(real, real, bias=meta[0]),
    ]
    for call in calls:
        with pytest.raises((RuntimeError, tw.TilewiseError), match=r"device|must be on|memory"):
            call()
    assert_identical(real, torch.ones_like(real))
