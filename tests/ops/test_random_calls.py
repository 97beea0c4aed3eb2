"""Some random calls, the same in every run; `python tests/support/random_calls.py` makes more of them."""

import pytest
from support import random_calls


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_against_float64(device, first):
    for seed in range(first, first + 8):
        random_calls.make(seed, device)
