"""Some random calls, the same in every run; `python tests/support/random_calls.py` makes more of them."""

import pytest
from support import random_calls


@pytest.mark.parametrize("seed", range(24))
def test_against_float64(device, seed):
    random_calls.make(seed, device)
