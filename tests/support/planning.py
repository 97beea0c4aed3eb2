"""Calls that are planned and not run."""

import torch

GPUS = ["h200", "h100", "b200", "a100", "a10", "l4", "t4", "rtx3090", "rtx4090", "rtx5090"]


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


def kernels(explained):
    return [launch.kernel for launch in explained.launches]
