"""Trains a small classifier twice from the same start, with tilewise's layers and with torch's, and compares.

    python examples/mlp.py [--device cuda] [--steps 300]

The data are three spirals in the plane. Both models see the same batches; their losses stay together, as
the layers compute the same function and the same gradients.
"""

import argparse
import math

import tilewise.torch
import torch


def spirals(count, generator):
    """Points (count, 2) on three noisy spiral arms, and the arm of each."""
    arm = torch.randint(0, 3, (count,), generator=generator)
    radius = torch.rand(count, generator=generator)
    angle = 2 * math.pi * (arm / 3 + radius) + 0.15 * torch.randn(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), arm


def by_tilewise(width):
    return torch.nn.Sequential(
        tilewise.torch.Linear(2, width, activation="gelu"),
        tilewise.torch.Linear(width, width, activation="relu"),
        tilewise.torch.Linear(width, 3),
        tilewise.torch.LogSoftmax(),
    )


def by_torch(width):
    return torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.GELU()),
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()),
        torch.nn.Linear(width, 3),
        torch.nn.LogSoftmax(-1),
    )


def train(model, device, steps, batch=256):
    """The loss of every step, and the accuracy of the trained model on a test set."""
    model = model.to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x, arm = (t.to(device) for t in spirals(batch, generator))
        loss = torch.nn.functional.nll_loss(model(x), arm)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    x, arm = (t.to(device) for t in spirals(4096, generator))
    with torch.no_grad():
        right = (model(x).argmax(-1) == arm).double().mean()
    return torch.stack(losses).tolist(), right.item()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    ours, theirs = by_tilewise(options.width), by_torch(options.width)
    # The same names but for the extra level that torch's activations take.
    names = dict(zip(theirs.state_dict(), ours.state_dict(), strict=True))
    theirs.load_state_dict({name: ours.state_dict()[own] for name, own in names.items()})

    losses, right = train(ours, options.device, options.steps)
    expected, expected_right = train(theirs, options.device, options.steps)
    for step in range(0, options.steps, max(options.steps // 10, 1)):
        print(f"step {step:4}   tilewise {losses[step]:.6f}   torch {expected[step]:.6f}")
    print(f"accuracy: tilewise {right:.1%}, torch {expected_right:.1%}")
    return losses, expected


if __name__ == "__main__":
    main()
