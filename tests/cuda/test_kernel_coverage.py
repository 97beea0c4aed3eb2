"""Every kernel in the build is launched by some case of kernel_cases.py."""

import kernel_cases
import pytest
import torch
from tilewise import _core
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_every_kernel_is_launched() -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _, call in kernel_cases.cases():
            call()
        torch.cuda.synchronize()
    launched = {event.key for event in trace.key_averages()}
    major, minor = torch.cuda.get_device_capability()
    built = {
        k["kernel"] for k in _core.build_info()["kernels"] if k["target"].rstrip("a") == f"sm_{major}{minor}"
    }
    assert built, "the build has no machine code for this device"
    missing = sorted(built - launched)
    assert not missing, f"never launched: {missing}"
