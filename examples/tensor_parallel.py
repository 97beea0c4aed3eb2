"""An MLP with its two weights split over several processes, compared with the same MLP in one process.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py [--features 256] [--steps 20]

The first weight is split by columns and the second by rows, so that the processes communicate only once per
forward pass, to sum their partial results. NCCL on GPUs, one for each process, or gloo on CPUs.
"""

import argparse
import copy
import os

import tilewise.torch
import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def mlp(features):
    return torch.nn.Sequential(
        tilewise.torch.Linear(features, 4 * features, activation="gelu"),
        tilewise.torch.Linear(4 * features, features),
        tilewise.torch.LogSoftmax(),
    )


def train(model, x, target, steps):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.nll_loss(model(x), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    if "RANK" not in os.environ:
        parser.error("start this with torchrun: torchrun --nproc-per-node 2 examples/tensor_parallel.py")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpus = torch.cuda.device_count() >= world
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpus else "gloo")
    mesh = dist.init_device_mesh(device.type, (world,))

    # The same seed everywhere: the same weights and data in every process.
    torch.manual_seed(0)
    single = mlp(options.features).to(device)
    x = torch.randn(128, options.features, device=device)
    target = torch.randint(0, options.features, (128,), device=device)
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    split = parallelize_module(copy.deepcopy(single), mesh, plan)

    losses, expected = (train(model, x, target, options.steps) for model in (split, single))
    worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    if rank == 0:
        part = tuple(split[0].weight.to_local().shape)
        print(f"{world} processes on {device.type}; each has {part} of {tuple(single[0].weight.shape)}")
        print(f"loss {losses[0]:.5f} to {losses[-1]:.5f}; largest difference to one process: {worst:.2e}")
    dist.destroy_process_group()
    return 0 if worst < 1e-3 else 1


if __name__ == "__main__":
    raise SystemExit(main())
