"""Under torch.autocast each operation takes and returns what torch's own does."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import tilewise as tw
import tilewise.torch
import torch
import torch.nn.functional as F
from tilewise.torch import autocast

OURS = {"add": tw.add, "softmax": tw.softmax, "log_softmax": tw.log_softmax, "matmul": tw.matmul}
THEIRS = {
    "add": torch.add,
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "matmul": torch.matmul,
}


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_dtypes_are_torchs(device, low, dtype, op, requires_grad):
    x = torch.randn(4, 4, device=device).to(dtype).requires_grad_(requires_grad)
    inputs = (x,) if "softmax" in op else (x, x)
    with torch.autocast(torch.device(device).type, low):
        got, expected = OURS[op](*inputs), THEIRS[op](*inputs)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    if requires_grad:
        got, expected = (torch.autograd.grad(t.float().square().sum(), x)[0] for t in (got, expected))
        torch.testing.assert_close(got, expected, rtol=5e-2, atol=5e-2)
    with (
        torch.autocast(torch.device(device).type, low),
        torch.autocast(torch.device(device).type, enabled=False),
    ):
        assert OURS[op](*inputs).dtype == dtype


def test_mixed_operands_and_bias(device):
    a, b = torch.randn(3, 4, device=device), torch.randn(4, 5, device=device).bfloat16()
    bias = torch.randn(5, device=device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        got = tw.matmul(a, b, bias=bias, activation="gelu")
    assert torch.equal(got, tw.matmul(a.bfloat16(), b, bias=bias.bfloat16(), activation="gelu"))


def test_out_is_not_autocast(device):
    x = torch.randn(4, 4, device=device)
    expected = tw.matmul(x, x)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        assert torch.equal(tw.matmul(x, x, out=torch.empty_like(x)), expected)


def test_the_other_devices_autocast_does_not_matter(device):
    x = torch.randn(4, 4, device=device)
    other = "cuda" if device == "cpu" else "cpu"
    with torch.autocast(other, torch.bfloat16, enabled=other == "cpu" or torch.cuda.is_available()):
        assert tw.matmul(x, x).dtype == torch.float32


def layer_beside_torchs(device, activation="gelu"):
    layer = tilewise.torch.Linear(8, 8, activation=activation, device=device)
    theirs = torch.nn.Linear(8, 8, device=device)
    theirs.load_state_dict(layer.state_dict())
    return layer, lambda x: F.gelu(theirs(x)), theirs


def conversions(layer, x, times=3):
    """How often parameters are converted in so many calls, as a profiler counts them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for _ in range(times):
            layer(x)
    return sum(event.count for event in seen.key_averages() if event.key == "aten::_to_copy")


def test_a_parameter_is_converted_once_in_a_region(device):
    kind = torch.device(device).type
    layer, *_ = layer_beside_torchs(device)
    x = torch.randn(4, 8, device=device, dtype=torch.bfloat16)
    with torch.autocast(kind, torch.bfloat16):
        assert conversions(layer, x) == 2 + 2  # of the mark's parameters too
        assert conversions(layer, x) == 0
        with torch.autocast(kind, torch.float16):
            assert layer(x).dtype is torch.float16
        with torch.no_grad():
            assert not layer(x).requires_grad
        assert layer(x).requires_grad
        assert conversions(layer, x) == 0
    made = autocast.KEPT
    assert not made, "nothing is kept when autocast has ended"
    with torch.autocast(kind, torch.bfloat16, cache_enabled=False):
        assert conversions(layer, x) == 6


def test_gradients_through_what_is_kept(device):
    layer, reference, theirs = layer_beside_torchs(device)
    x = torch.randn(4, 8, device=device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        with torch.no_grad():
            layer(x)
        for _ in range(2):
            layer(x).float().square().sum().backward()
            reference(x).float().square().sum().backward()
    for ours, other in zip(layer.parameters(), theirs.parameters(), strict=True):
        assert ours.grad.dtype is torch.float32
        torch.testing.assert_close(ours.grad, other.grad, rtol=5e-2, atol=5e-2)


def test_what_is_written_in_a_region_is_converted_anew(device):
    layer, *_ = layer_beside_torchs(device)
    x = torch.randn(4, 8, device=device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        layer(x)
        with torch.no_grad():
            layer.weight.zero_()
            layer.bias.zero_()
        assert not layer(x).any()


def test_a_parameter_of_an_ended_region_is_freed(device):
    layer, *_ = layer_beside_torchs(device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        layer(torch.randn(4, 8, device=device))
    weight = weakref.ref(layer.weight)
    del layer
    assert weight() is None


def test_many_regions_keep_nothing(device):
    layer, *_ = layer_beside_torchs(device)
    x = torch.randn(4, 8, device=device)

    def work(_):
        for _ in range(50):
            with torch.autocast(torch.device(device).type, torch.bfloat16):
                for _ in range(3):
                    layer(x).sum()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert not autocast.KEPT


@pytest.mark.gpu
def test_a_captured_graph_converts_for_itself():
    layer, *_ = layer_beside_torchs("cuda")
    x, graph = torch.randn(4, 8, device="cuda"), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        layer(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = layer(x)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    graph.replay()
    assert not captured.any()
