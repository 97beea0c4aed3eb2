"""torch's own tools see the operations: its counter of operations, and its profiler."""

import pytest
import tilewise as tw
import tilewise.torch
import torch
from support import fresh
from torch.utils.flop_counter import FlopCounterMode


@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4, 1), (1, 5))]
)
def test_products_are_counted_as_torchs(device, a, b):
    def count(matmul):
        x, w = (torch.randn(shape, device=device, requires_grad=True) for shape in (a, b))
        with FlopCounterMode(display=False) as counter:
            result = matmul(x, w)
        forward = counter.get_total_flops()
        with counter:
            result.sum().backward()
        return forward, counter.get_total_flops()

    assert count(tw.matmul) == count(torch.matmul)
    assert count(lambda x, w: tw.matmul(x, w, activation="gelu"))[0] == count(torch.matmul)[0]


def test_products_of_vectors_are_counted_too():
    x, w = torch.randn(4), torch.randn(4, 5)
    for arguments, expected in (((x, w), 40), ((w.mT, x), 40), ((x, x), 8)):
        with FlopCounterMode(display=False) as counter:
            tw.matmul(*arguments)
        assert counter.get_total_flops() == expected


def test_whichever_is_imported_first():
    modules = "torch.utils.flop_counter", "tilewise.torch"
    for first, second in (modules, reversed(modules)):
        fresh.run(f"""
            import torch
            import {first}
            import {second}
            import tilewise as tw

            x = torch.randn(3, 3)
            with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
                tw.matmul(x, x)
            assert counter.get_total_flops() == 54
        """)


def test_the_profiler_shows_operators_and_their_shapes(device):
    x = torch.randn(3, 4, device=device)
    with torch.profiler.profile(record_shapes=True) as profile:
        torch.ops.tilewise.softmax(x)
        torch.ops.tilewise.matmul(x, x.mT)
    seen = {event.name: event.input_shapes for event in profile.events() if event.name.startswith("tilewise")}
    assert seen["tilewise::softmax"][0] == [3, 4]
    assert seen["tilewise::matmul"][:2] == [[3, 4], [4, 3]]
