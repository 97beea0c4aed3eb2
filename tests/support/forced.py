"""Kernels that are asked for by name run on a GPU that has them, or on the emulator."""

import os

import pytest
import tilewise as tw
import torch

from . import reference
from .tolerance import assert_rounded

EMULATED = "TILEWISE_EMULATED_DEVICE" in os.environ
DEVICE = "cpu" if EMULATED else "cuda"
# The emulator takes its time, and in CI has no kernels of float16: those of bfloat16 are the same code.
HALVES = [torch.bfloat16] * 2 if EMULATED else [torch.float16, torch.bfloat16]
FLOATS = [*HALVES, torch.float32, torch.float64]


def needs(what, suffices=lambda capability: True):
    """A mark for tests that want `what`: a GPU whose compute capability suffices, or the emulator."""
    present = EMULATED or (torch.cuda.is_available() and suffices(torch.cuda.get_device_capability()))
    return pytest.mark.skipif(not present, reason=f"needs {what}, or the emulator")


def randn(*shape, dtype):
    return torch.randn(shape, dtype=torch.float64, device=DEVICE).to(dtype)


def check_matmul(a, b, context="", **options):
    got = tw.matmul(a, b, **options)
    options.pop("out", None)
    expected, error = reference.matmul(a, b, **options)
    assert_rounded(got, expected, error, f"{context} {tuple(a.shape)} @ {tuple(b.shape)}:")
    return got
