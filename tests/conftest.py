"""Devices, seeds, and what is left out on a machine without a GPU or without torch."""

import importlib.util

import pytest

TORCH = importlib.util.find_spec("torch") is not None

# The references are torch's; what remains without it runs in processes of its own or against numpy.
collect_ignore = (
    []
    if TORCH
    else [
        "ops",
        "cuda/test_streams.py",
        "cuda/test_graphs.py",
        "cuda/test_devices.py",
        "cuda/test_big.py",
        "interop/test_torch.py",
        "interop/test_lifetime.py",
        "python/test_errors.py",
        "python/test_after_errors.py",
        "python/test_hostile_options.py",
        "python/test_hostile_tensors.py",
        "python/test_threads.py",
        "test_kernel_coverage.py",
    ]
)


def has_cuda():
    if not TORCH:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_report_header(config):
    if not TORCH:
        return "torch is not installed: tests that compare with it are left out"
    return f"devices under test: {', '.join(DEVICES)}"


DEVICES = ["cpu", "cuda"] if has_cuda() else ["cpu"]


@pytest.fixture(params=DEVICES)
def device(request):
    """Every device present; a value test that takes it runs on each."""
    return request.param


@pytest.fixture(scope="session", autouse=True)
def one_thread_for_references():
    """References need no speed, and two pools of threads on the same cores wait for each other."""
    if TORCH:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed():
    """The same random numbers in every run, whatever the order of the tests."""
    if TORCH:
        import torch

        torch.manual_seed(20)


def pytest_collection_modifyitems(items):
    if has_cuda():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))
