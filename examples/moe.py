"""Trains a small mixture of experts twice from the same start: by grouped matmuls, and expert by expert.

    python examples/moe.py [--device cuda] [--steps 200]

A router sends every point to two of eight experts. The end of each expert's points is computed on the device
and read there: tilewise's layers never wait for it, while a loop must. The losses stay together, as both
compute the same function and the same gradients.
"""

import argparse

import tilewise.torch
import torch


class Mixture(torch.nn.Module):
    """Two layers of experts; the result of a point is the weighted sum of the results of its best experts."""

    def __init__(self, features, hidden, experts, best=2):
        super().__init__()
        self.best = best
        self.router = torch.nn.Linear(features, experts)
        self.up = tilewise.torch.GroupedLinear(experts, features, hidden, activation="silu")
        self.down = tilewise.torch.GroupedLinear(experts, hidden, features)

    def forward(self, x):
        experts = self.router.out_features
        weights, chosen = torch.softmax(self.router(x), -1).topk(self.best)
        # Expert by expert; a point occurs once for each of its experts.
        order = chosen.flatten().argsort(stable=True)
        counts = torch.zeros(experts, dtype=torch.int32, device=x.device)
        counts = counts.index_add(0, chosen.flatten(), counts.new_ones(1).expand(chosen.numel()))
        offsets = counts.cumsum(0).to(torch.int32)
        rows = order // self.best
        y = self.experts(x[rows], offsets) * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, rows, y)

    def experts(self, x, offsets):
        return self.down(self.up(x, offsets), offsets)


class Loop(Mixture):
    """The same with a matmul for each expert."""

    def experts(self, x, offsets):
        parts, begin = [], 0
        for expert, end in enumerate(offsets.tolist()):
            h = torch.nn.functional.linear(x[begin:end], self.up.weight[expert], self.up.bias[expert])
            h = torch.nn.functional.silu(h)
            parts.append(torch.nn.functional.linear(h, self.down.weight[expert], self.down.bias[expert]))
            begin = end
        return torch.cat(parts)


def train(model, device, steps, features, batch=512):
    """The loss of every step. Points are drawn around eight centres, each with a rotation of its own."""
    generator = torch.Generator().manual_seed(1)
    centres = 3 * torch.randn(8, features, generator=generator)
    turns = torch.linalg.qr(torch.randn(8, features, features, generator=generator))[0]
    model = model.to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        kind = torch.randint(0, 8, (batch,), generator=generator)
        x = centres[kind] + torch.randn(batch, features, generator=generator)
        target = torch.einsum("bf,bfg->bg", x, turns[kind])
        x, target = x.to(device), target.to(device)
        loss = torch.nn.functional.mse_loss(model(x), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--features", type=int, default=16)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    ours, theirs = (Mixture(options.features, 64, 8), Loop(options.features, 64, 8))
    theirs.load_state_dict(ours.state_dict())
    losses = train(ours, options.device, options.steps, options.features)
    expected = train(theirs, options.device, options.steps, options.features)
    for step in range(0, options.steps, max(options.steps // 10, 1)):
        print(f"step {step:4}   grouped {losses[step]:.6f}   loop {expected[step]:.6f}")
    return losses, expected


if __name__ == "__main__":
    main()
