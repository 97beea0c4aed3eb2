"""What releases of torch cannot do."""

import pytest
import torch

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])

# "savedLocalDispatchKeySet_.has_value() INTERNAL ASSERT FAILED", with any operator registered from Python.
nested_transforms = pytest.mark.skipif(
    RELEASE < (2, 6), reason="torch 2.5 cannot batch a registered operator inside another transform"
)
