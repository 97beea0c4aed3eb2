"""Under torch.autocast each operation takes and returns what torch's own does."""

import pytest
import tilewise as tw
import torch

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
