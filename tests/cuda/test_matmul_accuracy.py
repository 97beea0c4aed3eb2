"""Products on a GPU: in the mean of several distributions no error larger than torch's."""

import math

import pytest
import tilewise as tw
import torch
from tilewise import _core

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64, device="cuda")


DISTRIBUTIONS = {
    "normal": randn,
    "uniform(0, 1)": lambda *shape: randn(*shape).abs().clamp(max=1),
    "1 + 1e-3 normal": lambda *shape: 1 + 1e-3 * randn(*shape),
    "exp(normal)": lambda *shape: randn(*shape).exp(),
    "exp(3 normal)": lambda *shape: (3 * randn(*shape)).exp(),
    "exp(4 normal), either sign": lambda *shape: (4 * randn(*shape)).exp() * randn(*shape).sign(),
    "1e-18 normal": lambda *shape: 1e-18 * randn(*shape),
    "relu(normal)": lambda *shape: randn(*shape).relu(),
    "normal^3": lambda *shape: randn(*shape) ** 3,
    "95% zeros": lambda *shape: randn(*shape) * (randn(*shape) > 1.645),
}


def errors(got, a, b):
    """Mean and maximum, relative to |a| |b|."""
    expected, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    error = ((got.double() - expected).abs() / size.clamp(min=1e-300))[size > 0]
    return error.mean().item(), error.max().item()


# The blocks of matmul_simt against torch's, which splits k where there are few tiles.
MOST = {None: 1.05, "bf16x6": 1.05, "blocks": 1.7}


@pytest.mark.parametrize("k", [64, 256, 1000, 4096, 20_000])
@pytest.mark.parametrize("kernel", list(MOST))
def test_float32_is_about_as_accurate_as_torchs_or_more(k, kernel):
    ratios = []
    for make in DISTRIBUTIONS.values():
        a, b = make(512, k).float(), make(k, 512).float()
        _core.force_matmul_kernel(kernel)
        own, torchs = errors(tw.matmul(a, b), a, b), errors(a @ b, a, b)
        ratios.append([mine / max(other, 1e-12) for mine, other in zip(own, torchs, strict=True)])
    means = [math.exp(sum(map(math.log, ratio)) / len(ratio)) for ratio in zip(*ratios, strict=True)]
    told = dict(zip(DISTRIBUTIONS, ratios, strict=True))
    assert max(means) < MOST[kernel], (means, told)
    # Of few terms that decide the sum, the tensor cores cut off more than is rounded.
    assert max(map(max, ratios)) < 4.0, told


@pytest.mark.parametrize("rows", [1, 8, 40, 512])
def test_the_error_does_not_grow_with_k(rows):
    for k in (4096, 65_536):
        for dtype, step in ((torch.float32, 2.0**-24), (torch.float64, 2.0**-53)):
            a, b = (randn(rows, k).abs() + 0.5).to(dtype), (randn(k, 300).abs() + 0.5).to(dtype)
            # In float64 a reference is split up: of each part the sum is a chain as short as the kernels'.
            parts = [x.double() @ y.double() for x, y in zip(a.split(128, 1), b.split(128, 0), strict=True)]
            expected = torch.stack(parts).sum(0)
            got = tw.matmul(a, b).double()
            assert ((got - expected).abs() / expected).mean() < 8 * step


@pytest.mark.parametrize("rows", [16, 512])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_long_k_of_fp16_and_bf16_is_as_accurate_as_torchs(rows, dtype):
    for k in (16_384, 65_536):
        for name in ("normal", "uniform(0, 1)", "1 + 1e-3 normal", "exp(normal)", "relu(normal)", "normal^3"):
            make = DISTRIBUTIONS[name]
            a, b = (make(rows, k) / (8 * math.sqrt(k))).to(dtype), make(k, 512).to(dtype)
            own, torchs = errors(tw.matmul(a, b), a, b), errors(a @ b, a, b)
            assert own[0] < 1.05 * torchs[0], (name, k, "mean")
            assert own[1] < 1.25 * torchs[1], (name, k, "maximum")
