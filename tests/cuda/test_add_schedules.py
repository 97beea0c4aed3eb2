"""Both ways of sharing an addition's tiles among blocks, whichever of them the plan would choose."""

import pytest
import tilewise as tw
import torch
from support.guarded import Guarded
from support.tolerance import ALL, assert_identical
from tilewise import _core

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["fixed_grid", "grid_stride"])
def schedule(request):
    _core.force_add_schedule(request.param)
    return request.param


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_values_around_the_size_of_one_round(schedule, dtype):
    # Up to several tiles for every block that runs at once, and one element on either side.
    for size in (1, 15, 17, 511, 4097, 270_335, 270_337, 5_000_003, 20_000_001):
        for offset in (0, 1):
            x = torch.randint(0, 2, (size + offset,), device="cuda").to(dtype)[offset:]
            y = torch.randint(0, 2, (size + offset,), device="cuda").to(dtype)[offset:]
            out = torch.zeros(size + offset, device="cuda").to(dtype)[offset:]
            tw.add(x, y, out=out)
            assert_identical(out, torch.add(x, y), f"{schedule}, {size} elements, offset {offset}:")


def test_nothing_beside_out_is_written(schedule):
    for size in (1, 100, 1_000_003):
        x = torch.randn(size, device="cuda")
        guarded = Guarded((size,), torch.float32, "cuda", "misaligned")
        tw.add(x, 1, out=guarded.out)
        assert_identical(guarded.out, x + 1)
        guarded.assert_rest_untouched()
