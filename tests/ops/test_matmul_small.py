"""Products of few rows, columns and steps of k, which a CPU packs at once."""

import itertools

import pytest
import tilewise as tw
import torch
from support.tolerance import assert_identical

# Around the heights and widths of tiles, and where a product is no longer small.
SIDES = (1, 2, 4, 7, 12, 13, 16, 31, 33, 64, 65)
LOOSE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5, torch.float64: 1e-12}
VIEWS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT,
    "with gaps": lambda t: torch.stack([t, t], -1)[..., 0],
    "reversed rows": lambda t: t.flip(-2).contiguous().flip(-2),
}


@pytest.mark.parametrize("dtype", LOOSE)
def test_against_float64(device, dtype):
    generator = torch.Generator().manual_seed(3)
    for i, (m, k, n) in enumerate(itertools.product(SIDES, (0, *SIDES), SIDES)):
        if m * k > 600 or k * n > 600 or m * n > 600:
            continue
        a, b, bias, residual = (
            torch.randn(shape, generator=generator).to(device, dtype)
            for shape in ((m, k), (k, n), (n,), (m, n))
        )
        of_a, of_b = list(VIEWS.values())[i % 4], list(VIEWS.values())[i // 4 % 4]
        expected = torch.relu(a.double() @ b.double() + bias.double()) + residual.double()
        got = tw.matmul(of_a(a), of_b(b), bias=bias, residual=residual, activation="relu")
        bound = LOOSE[dtype] * (1 + expected.abs().amax().item())
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=bound, msg=f"{m} {k} {n}")


@pytest.mark.parametrize("dtype", LOOSE)
def test_an_element_does_not_depend_on_how_many_there_are(dtype):
    generator = torch.Generator().manual_seed(4)
    for k in (1, 5, 16, 33, 64):
        a, b = torch.randn(200, k, generator=generator), torch.randn(k, 200, generator=generator)
        a, b = a.to(dtype), b.to(dtype)
        whole = tw.matmul(a, b)
        for m, n in ((2, 2), (5, 7), (14, 8), (8, 33)):
            assert_identical(tw.matmul(a[:m], b[:, :n]), whole[:m, :n].contiguous())


def test_what_is_beside_a_small_product_is_not_read_or_written():
    memory = torch.full((40, 40), torch.nan)
    a, b = torch.randn(5, 6), torch.randn(6, 7)
    memory[3:8, 3:9], memory[10:16, 3:10] = a, b
    out = torch.full((40, 40), 3.0)
    tw.matmul(memory[3:8, 3:9], memory[10:16, 3:10], out=out[1:6, 2:9])
    torch.testing.assert_close(out[1:6, 2:9], a @ b)
    out[1:6, 2:9] = 3.0
    assert (out == 3.0).all()
