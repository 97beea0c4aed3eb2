"""grouped_matmul on a GPU: every tile, offsets that change under a captured graph, lists, and no waiting."""

import random
from functools import partial

import pytest
import tilewise as tw
import torch
from support import reference
from support.forced import DEVICE, needs
from support.grouped import ends_of
from support.tolerance import assert_identical, assert_rounded
from tilewise import _core

pytestmark = needs("a GPU of compute capability 9.0", lambda capability: capability == (9, 0))
BUILT = [k["kernel"].split("_") for k in _core.build_info()["kernels"] if k["file"] == "grouped_matmul_wgmma"]
TILES = sorted({kernel[4] for kernel in BUILT})
LISTS = [k["kernel"] for k in _core.build_info()["kernels"] if k["file"] == "grouped_matmul_wgmma_list"]
narrow = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@narrow
@pytest.mark.parametrize("tile", TILES)
def test_every_tile(dtype, tile):
    torch.manual_seed(4)
    for sizes in ([64, 128, 0, 192, 256], [1, 300, 63, 65, 0, 129, 7], [2000]):
        offsets, total = ends_of(sizes, DEVICE), sum(sizes) + 5
        for n, k in ((520, 200), (100, 72)):
            a = torch.randn(total, k, device=DEVICE).to(dtype)
            b = torch.randn(len(sizes), k, n, device=DEVICE).to(dtype)
            bias = torch.randn(len(sizes), n, device=DEVICE).to(dtype)
            y = torch.randn(total, n, device=DEVICE).to(dtype)
            calls = [
                ((a, b, offsets), {}),
                ((a, b.mT.contiguous().mT, offsets), {"bias": bias, "activation": "relu"}),
                ((a, b, offsets), {"bias": bias, "activation": "gelu"}),
                ((a.T, y, offsets), {}),
                ((a.T, y, offsets), {"bias": bias, "activation": "silu"}),
            ]
            for args, options in calls:
                _core.force_matmul_kernel("wgmma", tile=tile)
                got = tw.grouped_matmul(*args, **options)
                assert_rounded(got, *reference.grouped_matmul(*args, **options), f"{sizes} {n} {k}:")


@narrow
@pytest.mark.parametrize("tile", sorted({kernel[4] for kernel in BUILT if "gated" in kernel}))
def test_every_tile_with_a_gate(dtype, tile):
    torch.manual_seed(4)
    for sizes in ([64, 128, 0, 192, 256], [1, 300, 63, 65, 0, 129, 7], [2000]):
        offsets, total, groups = ends_of(sizes, DEVICE), sum(sizes) + 5, len(sizes)
        for n, k in ((520, 200), (100, 72), (72, 64)):
            a = torch.randn(total, k, device=DEVICE).to(dtype)
            b, gate = (torch.randn(groups, k, n, device=DEVICE).to(dtype) for _ in range(2))
            bias = torch.randn(groups, 2, n, device=DEVICE).to(dtype)
            for up, other in ((b, gate), (b.mT.contiguous().mT, gate.mT.contiguous().mT)):
                for options in ({}, {"bias": bias, "activation": "relu"}, {"activation": "silu"}):
                    _core.force_matmul_kernel("wgmma", tile=tile)
                    got = tw.grouped_matmul(a, up, offsets, gate=other, **options)
                    expected = reference.grouped_matmul(a, up, offsets, gate=other, **options)
                    assert_rounded(got, *expected, f"{sizes} {n} {k}:")
            y, other = (torch.randn(total, n, device=DEVICE).to(dtype) for _ in range(2))
            for options in ({}, {"bias": bias, "activation": "gelu"}):
                _core.force_matmul_kernel("wgmma", tile=tile)
                got = tw.grouped_matmul(a.T, y, offsets, gate=other, **options)
                expected = reference.grouped_matmul(a.T, y, offsets, gate=other, **options)
                assert_rounded(got, *expected, f"{sizes} {n} {k}, k:")


@pytest.mark.gpu
@narrow
@pytest.mark.parametrize("gated", [False, True])
def test_offsets_change_under_a_captured_graph(dtype, gated):
    a, b, gate = (torch.randn(shape, device="cuda").to(dtype) for shape in [(300, 64), *[(5, 64, 264)] * 2])
    offsets = ends_of([60] * 5, "cuda")
    x, other = (torch.randn(300, n, device="cuda").to(dtype) for n in (136, 264))
    by_rows = {"activation": "silu", **({"gate": gate} if gated else {})}
    by_depth = {"activation": "gelu", "gate": other} if gated else {}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = tw.grouped_matmul(a, b, offsets, **by_rows)
        depth = tw.grouped_matmul(x.T, rows, offsets, **by_depth)
    for sizes in ([60] * 5, [0, 0, 300, 0, 0], [1, 2, 3, 4, 5], [299, 0, 1, 0, 0], [0] * 5):
        offsets.copy_(ends_of(sizes, "cuda"))
        rows.fill_(float("nan"))
        graph.replay()
        assert_rounded(rows, *reference.grouped_matmul(a, b, offsets, **by_rows), f"{sizes}:")
        assert_identical(depth, tw.grouped_matmul(x.T, rows, offsets, **by_depth), f"{sizes}:")


@pytest.mark.gpu
def test_nobody_waits_for_the_device():
    a, b = torch.randn(64, 32, device="cuda"), torch.randn(3, 32, 16, device="cuda")
    offsets = ends_of([10, 20, 30], "cuda")
    torch.cuda.synchronize()
    for dtype in (torch.bfloat16, torch.float32):
        call = partial(tw.grouped_matmul, a.to(dtype), b.to(dtype), offsets)
        call()
        torch.cuda._sleep(50_000_000)
        busy = torch.cuda.Event()
        call()
        busy.record()
        assert not busy.query()
        torch.cuda.synchronize()


def lists_of(seed, dtype):
    """Random sizes with nothing, ones and a large one among them; slices in all layouts, some misaligned."""
    generator = random.Random(seed)
    sizes = [(520, 776, 456), (0, 8, 8), (1, 264, 72), (130, 1, 64), (64, 72, 0)]
    sizes += [tuple(generator.randrange(1, 300) for _ in range(3)) for _ in range(25)]
    generator.shuffle(sizes)

    def sliced(rows, columns):
        turned = generator.randrange(2)
        rows, columns = (columns, rows) if turned else (rows, columns)
        at, pitch = (8, columns + 8 + -columns % 8) if generator.randrange(8) else (3, columns + 5)
        x = torch.randn(rows, pitch + at, device=DEVICE).to(dtype)[:, at : at + columns]
        return x.T if turned else x

    a, b = [sliced(m, k) for m, _, k in sizes], [sliced(k, n) for _, n, k in sizes]
    return a, b, [torch.randn(n, device=DEVICE).to(dtype) for _, n, _ in sizes]


def check_list(got, a, b, bias, activation, gate=None):
    for i, one in enumerate(got):
        own = [None if x is None else x[i] for x in (bias, gate)]
        expected = reference.matmul(a[i], b[i], own[0], activation, gate=own[1])
        assert_rounded(one, *expected, f"{i}: {tuple(a[i].shape)} @ {tuple(b[i].shape)}:")


@narrow
@pytest.mark.parametrize("tile", sorted({kernel.split("_")[4] for kernel in LISTS}))
def test_every_tile_of_lists(dtype, tile):
    torch.manual_seed(4)
    for seed in range(3):
        a, b, bias = lists_of(seed, dtype)
        for biases, activation in ((None, None), (bias, "leaky_relu"), (bias, "gelu")):
            _core.force_matmul_kernel("wgmma", tile=tile)
            got = tw.grouped_matmul(a, b, bias=biases, activation=activation)
            check_list(got, a, b, biases, activation)


@narrow
@pytest.mark.parametrize("tile", sorted({kernel.split("_")[4] for kernel in LISTS if "gated" in kernel}))
def test_every_tile_of_lists_with_gates(dtype, tile):
    torch.manual_seed(4)
    for seed in range(3):
        a, b, _ = lists_of(seed, dtype)
        gate, bias = [], [torch.randn(2, x.shape[1], device=DEVICE).to(dtype) for x in b]
        for x in b:  # As b lies; of some, not.
            same = torch.empty_strided(x.shape, x.stride(), dtype=dtype, device=DEVICE)
            gate.append((same if len(gate) % 7 else torch.empty_like(x.T).T).copy_(torch.randn(x.shape)))
        for biases, activation in ((None, "silu"), (bias, "gelu"), (bias, None)):
            _core.force_matmul_kernel("wgmma", tile=tile)
            got = tw.grouped_matmul(a, b, gate=gate, bias=biases, activation=activation)
            check_list(got, a, b, biases, activation, gate)


@pytest.mark.gpu
@narrow
def test_a_captured_list_follows_its_operands(dtype):
    a, b, bias = lists_of(7, dtype)
    call = partial(tw.grouped_matmul, a, b, bias=bias, activation="silu")
    assert_all_identical(call(), call())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call()
    for _ in range(3):
        for x in (*a, *b):
            x.copy_(torch.randn(x.shape, device="cuda"))
        for one in got:
            one.fill_(float("nan"))
        graph.replay()
        check_list(got, a, b, bias, "silu")
        assert_all_identical(got, call())


def assert_all_identical(these, those):
    for one, other in zip(these, those, strict=True):
        assert_identical(one, other)
