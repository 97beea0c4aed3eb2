"""Devices, seeds, and what is left out on a machine without a GPU or without torch."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

TORCH = importlib.util.find_spec("torch") is not None

# The references are torch's; what remains without it runs in processes of its own or against numpy.
NEEDS_TORCH = [p for p in Path(__file__).parent.rglob("test_*.py") if "\nimport torch\n" in p.read_text()]
collect_ignore = [] if TORCH else [str(p) for p in NEEDS_TORCH]

# Processes that tests/emulator starts: tilewise's functions run the CUDA kernels on the CPU.
EMULATED = "TILEWISE_EMULATED_DEVICE" in os.environ
if EMULATED:
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "emulator")]
    import operations

    operations.install()


def cuda_devices():
    """torch's current GPU, and one that is not."""
    if not TORCH or EMULATED:
        return []
    import torch

    return ["cuda", "cuda:1"][: torch.cuda.device_count()]


def pytest_report_header(config):
    if not TORCH:
        return f"torch is not installed: {len(NEEDS_TORCH)} files of tests that compare with it are left out"
    return f"devices under test: {', '.join(DEVICES)}"


DEVICES = ["cpu", *cuda_devices()]


@pytest.fixture(params=DEVICES)
def device(request):
    """Every device present; a value test that takes it runs on each."""
    return request.param


@pytest.fixture(scope="session", autouse=True)
def torch_is_seen_first():
    """Calls are remembered for the first types that a process uses: in most programs torch's."""
    if TORCH:
        import tilewise
        import torch

        tilewise.add(torch.zeros(1), torch.nn.Parameter(torch.zeros(1), requires_grad=False))


@pytest.fixture(autouse=True)
def seed():
    """The same random numbers in every run, whatever the order of the tests."""
    if TORCH:
        import torch

        torch.manual_seed(20)


def pytest_collection_modifyitems(items):
    if cuda_devices():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))
