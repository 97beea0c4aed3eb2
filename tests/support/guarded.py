"""Outputs inside poisoned memory: shows elements that were not written and writes beside the view."""

import torch

POISON = 0x7F


class Guarded:
    """An `out` of the given shape, laid out by `cut`, in a parent whose every byte is poisoned.

    `cut` is one of the names below: how the view lies in its parent.
    """

    CUTS = ("inside", "transposed", "every_second", "misaligned")

    def __init__(self, shape, dtype, device, cut="inside"):
        self.cut = {
            "inside": lambda p: p[tuple(slice(2, 2 + n) for n in shape)],
            "transposed": lambda p: p.mT[tuple(slice(2, 2 + n) for n in shape)],
            "every_second": lambda p: p[tuple(slice(1, 1 + 2 * n, 2) for n in shape)],
            "misaligned": lambda p: p[1 : 1 + torch.Size(shape).numel()].view(shape),
        }[cut]
        if cut == "misaligned":
            sizes = [torch.Size(shape).numel() + 2]
        elif cut == "every_second":
            sizes = [2 * n + 2 for n in shape]
        else:
            sizes = [n + 4 for n in shape]
            if cut == "transposed":
                sizes[-2:] = sizes[:-3:-1]
        count = torch.Size(sizes).numel()
        size = torch.empty((), dtype=dtype).element_size()
        self.memory = torch.full((count * size,), POISON, dtype=torch.uint8, device=device)
        self.parent = self.memory.view(dtype).view(sizes)
        self.out = self.cut(self.parent)
        assert self.out.shape == torch.Size(shape)

    def assert_rest_untouched(self):
        inside = torch.zeros(self.parent.shape, dtype=torch.bool, device=self.parent.device)
        self.cut(inside).fill_(True)
        bytes_of = self.memory.view(self.parent.numel(), -1)
        touched = (bytes_of != POISON).any(-1) & ~inside.flatten()
        assert not touched.any(), f"{int(touched.sum())} elements beside `out` were written"
