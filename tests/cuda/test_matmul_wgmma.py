"""matmul_wgmma and its companions, asked for by name: every tile, edge, layout, batch, split and epilogue."""

import itertools

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.forced import DEVICE, EMULATED, HALVES, check_matmul, needs, randn
from support.guarded import Guarded
from support.tolerance import assert_identical
from tilewise import _core

pytestmark = needs("a GPU of compute capability 9.0", lambda capability: capability == (9, 0))
DTYPES = sorted(set(HALVES), key=str)
KERNELS = [k["kernel"].split("_") for k in tw.build_info()["kernels"] if k["file"] == "matmul_wgmma"]
TILES = sorted({tile for _, _, tile, *_ in KERNELS})
TRANSPOSED = sorted({tile for _, _, tile, *epilogue, _ in KERNELS if epilogue == ["transpose"]})
EDGES = [*range(1, 18), 63, 64, 65, 127, 128, 129, 255, 256, 257]
LAYOUTS = list(itertools.product([views.contiguous, views.transposed], repeat=2))


CLUSTERS = pytest.mark.parametrize("cluster", ["1x1", "2x1"])
# Blocks that load for each other: of rows x columns of tiles.
LARGER_CLUSTERS = ["2x2", "4x1", "1x4"]


def check(a, b, context="", tile=None, splits=None, group_m=None, cluster=None, **options):
    _core.force_matmul_kernel("wgmma", tile=tile, splits=splits, group_m=group_m, cluster=cluster)
    return check_matmul(a, b, f"{context} {tile} {splits} {cluster}", **options)


def aligned(x):
    """As x, with rows that begin on 16 bytes, and NaN in what is between them."""
    step = -(-x.shape[-1] // 8) * 8
    parent = torch.full((*x.shape[:-1], step), float("nan"), dtype=x.dtype, device=x.device)
    view = parent[..., : x.shape[-1]]
    view.copy_(x)
    return view


def operand(rows, columns, dtype, layout):
    """A matrix that the copy engine can address, whose stored rows are padded with NaN."""
    if layout is views.transposed:
        return aligned(randn(columns, rows, dtype=dtype)).mT
    return aligned(randn(rows, columns, dtype=dtype))


@CLUSTERS
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_tile_in_every_layout(tile, dtype, cluster):
    if EMULATED and cluster != "1x1" and tile not in ("64x64", "128x112", "192x192", "128x256"):
        pytest.skip("slow")
    shapes = [(64, 64, 64), (1, 8, 16), (65, 129, 65), (200, 260, 200)] + (
        [] if EMULATED else [(1000, 1031, 1030)]
    )
    for (m, n, k), (lay_a, lay_b) in itertools.product(shapes, LAYOUTS):
        check(
            operand(m, k, dtype, lay_a),
            operand(k, n, dtype, lay_b),
            f"{lay_a.__name__} {lay_b.__name__}",
            tile,
            cluster=cluster,
        )


@CLUSTERS
@pytest.mark.parametrize("tile", ["64x64", "128x112", "192x192", "128x224"])
def test_last_tiles_that_are_not_whole(tile, cluster):
    """Less is loaded of them, so that shared memory still holds rows of earlier tiles beside theirs."""
    rows, columns = map(int, tile.split("x"))
    sizes = [(rows + 1, columns + 1), (2 * rows + 9, columns + 40), (3 * rows - 7, 2 * columns - 9)]
    for (m, n), dtype in itertools.product(sizes, DTYPES):
        for lay_a, lay_b in LAYOUTS:
            a, b = operand(m, 200, dtype, lay_a), operand(200, n, dtype, lay_b)
            for splits in [int(cluster[0])] if EMULATED else [1, 2]:
                check(a, b, f"{lay_a.__name__} {lay_b.__name__}", tile, splits, cluster=cluster)


@pytest.mark.parametrize("cluster", LARGER_CLUSTERS)
@pytest.mark.parametrize("tile", ["64x64", "128x96", "128x160", "192x192"])
def test_blocks_that_load_for_each_other(tile, cluster):
    """Clusters within the result, or beyond it by parts of tiles and by whole ones; more than run at once."""
    (rows, columns), (down, across) = (map(int, text.split("x")) for text in (tile, cluster))
    blocks = _core.devices()[0]["multiprocessors"]
    many = blocks // (2 * across) // down + 1
    sizes = [(1, 1), (rows * down, columns * across), (rows + 9, columns * across + 40)]
    sizes += [(rows * down + 1, columns - 7), (2 * rows * down * many - rows - 5, columns * across)]
    for (m, n), (lay_a, lay_b) in itertools.product(sizes, LAYOUTS):
        if EMULATED and ((lay_a is lay_b) != (m == 1) or tile in ("128x160", "192x192")):
            continue
        a, b = operand(m, 200, HALVES[1], lay_a), operand(200, n, HALVES[1], lay_b)
        context = f"{lay_a.__name__} {lay_b.__name__}"
        for splits in [1 + (m == 1)] if EMULATED else [1, 2]:
            check(a, b, context, tile, splits, cluster=cluster)
    bias = randn(columns * across, dtype=HALVES[0])
    a, b = randn(3, 2, rows + 3, 72, dtype=HALVES[0]), randn(2, 72, columns * across, dtype=HALVES[0])
    check(a, b, "batch", tile, cluster=cluster, bias=bias, activation="silu")


@pytest.mark.parametrize("tile", TRANSPOSED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_columns_of_a_tile_that_are_few_rows(tile, dtype):
    """Rows up to two tiles and more, edges of 8 columns, batches, and what is beside `out`."""
    width = int(tile.split("x")[1])
    for m in (1, 8, 9, width - 1, width, width + 1, 2 * width, 2 * width + 3):
        n, k = 8 * (m % 40 + 1), 200 if m % 2 else 64
        a, bias = operand(m, k, dtype, views.contiguous), randn(n, dtype=dtype) * 3
        parent = torch.full((m + 2, n + 16), 7.0, dtype=dtype, device=DEVICE)
        out = parent[1:-1, 8:-8]
        for lay_b in (views.contiguous, views.transposed):
            b = operand(k, n, dtype, lay_b)
            _core.force_matmul_kernel("wgmma", tile=tile)
            kernel = _core.explain("matmul", {"a": a, "b": b}, "h200")["plan"]["kernel"]
            assert kernel.startswith(f"matmul_wgmma_{tile}_transpose_")
            check(a, b, lay_b.__name__, tile)
            check(a, b, lay_b.__name__, tile, bias=bias, activation="relu")
            check(a, b, lay_b.__name__, tile, bias=bias, activation="leaky_relu")
        check(a, b, "out", tile, out=out)
        out.fill_(7)
        assert (parent == 7).all()
    a, b = randn(3, 2, width + 5, 72, dtype=dtype), randn(2, 72, 136, dtype=dtype)
    check(a, b, "batch", tile, bias=randn(136, dtype=dtype))
    many = 704 if EMULATED else 20_000
    check(randn(2 * width - 3, 136, dtype=dtype), randn(many, 136, dtype=dtype).mT, "many tiles", tile)


@CLUSTERS
@pytest.mark.parametrize("edge", EDGES)
def test_odd_edges(edge, cluster):
    for m, n, k in [(edge, 40, 24), (33, edge, 40), (40, 33, edge)]:
        for lay_a, lay_b in LAYOUTS:
            dtype = HALVES[edge % 2]
            check(
                operand(m, k, dtype, lay_a),
                operand(k, n, dtype, lay_b),
                f"{lay_a.__name__} {lay_b.__name__}",
                cluster=cluster,
            )


@pytest.mark.parametrize("make_a", views.MATRIX_MAKERS, ids=views.name)
@pytest.mark.parametrize("make_b", views.MATRIX_MAKERS, ids=views.name)
def test_any_memory(make_a, make_b):
    for (m, n, k), dtype in zip([(33, 65, 70), (130, 24, 8), (5, 3, 1)], [*HALVES, *HALVES], strict=False):
        check(make_a(randn(m, k, dtype=dtype)), make_b(randn(k, n, dtype=dtype)))


@pytest.mark.parametrize("tile", ["64x64", "128x176", "256x128"])
@pytest.mark.parametrize("splits", [2, 3, 7])
@CLUSTERS
def test_splits_of_k(tile, splits, cluster):
    a, b, bias = (
        randn(130, 500, dtype=HALVES[0]),
        randn(500, 180, dtype=HALVES[0]),
        randn(180, dtype=HALVES[0]),
    )
    check(a, b, "", tile, splits, cluster=cluster)
    check(a[:, :8], b[:8], "fewer blocks of k than splits:", tile, splits, cluster=cluster)
    check(a, b, "", tile, splits, cluster=cluster, bias=bias, activation="gelu")
    check(
        randn(3, 70, 200, dtype=torch.bfloat16), randn(200, 65, dtype=torch.bfloat16), "batch:", tile, splits
    )
    out = randn(180, 130, dtype=HALVES[0]).mT
    check(a, b, "into columns:", tile, splits, cluster=cluster, bias=bias, out=out)


@pytest.mark.parametrize("splits", [2, 4])
@pytest.mark.parametrize("tile", ["64x64", "64x128", "128x64", "128x128"])
def test_cluster_split_k(tile, splits):
    rows = int(tile.split("x")[0])
    shapes = [(1, 200, 1040), (rows - 11, 133, 1032), (rows, 264, 520)]
    for (m, n, k), dtype in itertools.product(shapes[: 2 if EMULATED else 3], DTYPES):
        bias = randn(n, dtype=dtype) * 3
        for lay_a, lay_b in LAYOUTS:
            a, b = operand(m, k, dtype, lay_a), operand(k, n, dtype, lay_b)
            check(a, b, f"{lay_a.__name__} {lay_b.__name__}", tile, splits)
        assert _core.explain("matmul", {"a": a, "b": b}, "h200")["plan"]["cluster"] == splits
        check(a[:, :8], b[:8], "fewer blocks of k than splits:", tile, splits)
        for activation in reference.ACTIVATIONS:
            check(a, b, activation, tile, splits, bias=bias, activation=activation)
        out = randn(n, m, dtype=dtype).mT
        check(a, b, "into columns:", tile, splits, bias=bias, activation="gelu", out=out)
        check(randn(3, m, 200, dtype=dtype), randn(200, n, dtype=dtype), "batch:", tile, splits, bias=bias)
        guarded = Guarded((m, n), dtype, DEVICE, Guarded.CUTS[0])
        check(a, b, "", tile, splits, out=guarded.out)
        guarded.assert_rest_untouched()


def test_splits_in_memory_and_in_a_cluster_are_the_same_sums():
    a, b = aligned(randn(60, 2100, dtype=torch.bfloat16)), aligned(randn(2100, 200, dtype=torch.bfloat16))
    results = []
    for cluster, epilogue in ((None, "splitk"), ("1x1", "partial")):
        _core.force_matmul_kernel("wgmma", tile="64x128", splits=4, cluster=cluster)
        assert f"_{epilogue}_" in _core.explain("matmul", {"a": a, "b": b}, "h200")["plan"]["kernel"]
        results.append(tw.matmul(a, b))
    assert_identical(*results)


@pytest.mark.parametrize("tile", ["64x128", "128x160", "192x192", "256x192", "128x128pingpong"])
@pytest.mark.parametrize("activation", list(reference.ACTIVATIONS))
def test_bias_and_activation(tile, activation):
    for dtype in DTYPES:
        a, b, bias = randn(70, 40, dtype=dtype), randn(40, 200, dtype=dtype), randn(200, dtype=dtype) * 3
        check(a, b, "", tile, bias=bias, activation=activation)
        check(a, b, "expanded bias:", tile, bias=bias[:1].expand(200), activation=activation)
        out = randn(200, 70, dtype=dtype).mT
        check(a, b, "into columns:", tile, bias=bias, activation=activation, out=out)


@pytest.mark.parametrize("tile", ["128x96", "192x96", "128x112", "128x160", "128x176", "128x224"])
@CLUSTERS
def test_tiles_that_begin_or_end_within_a_line(tile, cluster):
    """b by rows: of a tile that ends with a line of the caches, the narrow box comes first."""
    for dtype, n in zip(HALVES, (600, 599), strict=True):
        a, wide, bias = randn(200, 72, dtype=dtype), randn(72, 640, dtype=dtype), randn(n, dtype=dtype) * 3
        b = wide[:, :n]
        for splits in [int(cluster[0])] if EMULATED else [1, 2]:
            check(a, b, "", tile, splits, cluster=cluster)
            check(a, b, "", tile, splits, cluster=cluster, bias=bias, activation="relu")
            check(a, b, "", tile, splits, cluster=cluster, bias=bias, activation="silu")
            by_rows = randn(n, 200, dtype=dtype).mT
            check(a, b, "by columns:", tile, splits, cluster=cluster, bias=bias, out=by_rows)
        check(randn(3, 70, 72, dtype=dtype), b, "batch:", tile, cluster=cluster, bias=bias)


@pytest.mark.parametrize("cut", Guarded.CUTS)
@pytest.mark.parametrize("tile", ["64x64", "128x176"])
@CLUSTERS
def test_nothing_beside_out_is_written(cut, tile, cluster):
    for shape in [(16, 64), (65, 129), (3, 7)]:
        for dtype in DTYPES:
            a, b = randn(shape[0], 72, dtype=dtype), randn(72, shape[1], dtype=dtype)
            guarded = Guarded(shape, dtype, DEVICE, cut)
            check(a, b, cut, tile, cluster=cluster, out=guarded.out)
            guarded.assert_rest_untouched()


BATCHES = [
    ((5,), (5,)),
    ((2, 3), (2, 3)),
    ((2, 1, 3), (2, 4, 1)),
    ((7,), ()),
    ((), (7,)),
    ((1, 3), (4, 1)),
    ((40,), (40,)),
]


@CLUSTERS
@pytest.mark.parametrize(("batch_a", "batch_b"), BATCHES, ids=str)
def test_batches(batch_a, batch_b, cluster):
    for dtype, (m, n, k) in zip(HALVES, [(65, 40, 72), (9, 130, 17)], strict=True):
        a, b, bias = (
            randn(*batch_a, m, k, dtype=dtype),
            randn(*batch_b, k, n, dtype=dtype),
            randn(n, dtype=dtype),
        )
        for lay_a, lay_b in LAYOUTS:
            context = f"{batch_a} {batch_b}"
            check(lay_a(a), lay_b(b), context, cluster=cluster, bias=bias, activation="silu")


@CLUSTERS
def test_more_tiles_than_blocks(cluster):
    # Several tiles to a block, so that stages, phases and staging run on from tile to tile.
    for tile, group_m in itertools.product(
        ["64x64", "128x128", "192x128", "256x128", "128x192", "128x256", "128x128pingpong"], [None, 1, 3]
    ):
        size = 700 if EMULATED else 4000
        check(
            randn(size, 72, dtype=torch.bfloat16),
            randn(72, size + 8, dtype=torch.bfloat16),
            "",
            tile,
            group_m=group_m,
            cluster=cluster,
        )


@CLUSTERS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_consumers_that_take_tiles_in_turns(dtype, cluster):
    """Blocks with one tile, with two and with an odd count; k of one block, and longer than the ring."""
    blocks = _core.devices()[0]["multiprocessors"]
    for tiles, n, (k, activation) in itertools.product(
        (1, 2, 3, 5), (256, 250), [(8, None), (72, "relu"), (1000, "gelu"), (456, None)]
    ):
        if EMULATED and (tiles == 5) != (k == 456):
            continue
        m = 128 * (tiles * blocks // 2) - 20
        a, b = randn(m, k, dtype=dtype), aligned(randn(k, n, dtype=dtype))
        # Of 256 columns, rows are whole vectors; of 250 they are not.
        parent = torch.full((m, n + 8), 7.0, dtype=dtype, device=DEVICE)
        bias = None if activation is None else randn(n, dtype=dtype)
        options = {"bias": bias, "activation": activation, "cluster": cluster, "out": parent[:, :n]}
        check(a, b, f"{tiles} {n} {k}", "128x128pingpong", **options)
        assert (parent[:, n:] == 7).all()
        assert_identical(tw.matmul(a, b, bias=bias, activation=activation), parent[:, :n])  # forced still
    a, b = randn(blocks // 4, 2, 300, 200, dtype=dtype), randn(2, 200, 136, dtype=dtype)
    check(a, b, "batch", "128x128pingpong", cluster=cluster)


@CLUSTERS
@pytest.mark.parametrize("tile", ["128x192", "128x256"])
def test_results_that_leave_by_the_copy_engine(tile, cluster):
    # Where blocks have more than two tiles and rows of the result are whole 16-byte chunks.
    tiles = 2 * _core.devices()[0]["multiprocessors"] // 3 + 1
    rows = 128 * tiles - 20
    for (batch, m), (n, stored) in itertools.product(
        [((), rows), ((3, 2), rows // 5)], [(768, 768), (760, 768), (757, 757), (712, 760)]
    ):
        a, b = randn(*batch, m, 72, dtype=torch.bfloat16), randn(72, n, dtype=torch.bfloat16)
        parent = torch.full((*batch, m, stored), 7.0, dtype=torch.bfloat16, device=DEVICE)
        bias = randn(n, dtype=torch.bfloat16)
        check(a, b, f"{batch} {n}", tile, cluster=cluster, bias=bias, activation="relu", out=parent[..., :n])
        assert (parent[..., n:] == 7).all()


@CLUSTERS
@pytest.mark.parametrize("tile", ["128x192", "128x256"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_residuals_that_arrive_by_the_copy_engine(tile, dtype, cluster):
    # One tile a block and several; of few blocks of k, and of more than a residual has boxes; in `out` too.
    rows = 128 * (2 * _core.devices()[0]["multiprocessors"] // 3 + 1) - 20
    for (batch, m), n, k, activation in itertools.product(
        [((), 200), ((), rows), ((3, 2), rows // 5)], [768, 712], [72, 456, 1100], [None, "gelu"]
    ):
        slow = (n == 768) != (activation is None) or (m, k) == (rows, 1100) or (batch and k != 456)
        if EMULATED and slow:
            continue
        a, b = randn(*batch, m, k, dtype=dtype), randn(k, n, dtype=dtype)
        parent = randn(*batch, m, 776, dtype=dtype)
        residual, bias = parent[..., :n].clone(), randn(n, dtype=dtype)
        forced = {"tile": tile, "cluster": cluster, "splits": 1}
        options = {"bias": bias, "activation": activation}
        beside = check(
            a, b, f"{batch}", residual=residual, out=torch.empty_like(residual), **forced, **options
        )
        kept = parent[..., n:].clone()
        _core.force_matmul_kernel("wgmma", **forced)
        out = parent[..., :n]
        over = tw.matmul(a, b, residual=out, out=out, **options)
        assert_identical(over, beside)
        assert_identical(parent[..., n:], kept)
    one_for_all, k = randn(2, 1, 200, 768, dtype=dtype), 72 if EMULATED else 456
    a, b = randn(2, 3, 200, k, dtype=dtype), randn(k, 768, dtype=dtype)
    for residual in (one_for_all, one_for_all[:, :, :1]):
        check(a, b, f"{tuple(residual.shape)}", tile, 1, cluster=cluster, residual=residual)


def test_the_same_bits_every_time():
    k, n = (400, 264) if EMULATED else (1000, 520)
    a, b = randn(260, k, dtype=torch.bfloat16), randn(k, n, dtype=torch.bfloat16)
    plans = itertools.product([("64x64", 1), ("128x256", 3), ("256x128", 1)], ["1x1", "2x1", "2x2"])
    for (tile, splits), cluster in plans:
        _core.force_matmul_kernel("wgmma", tile=tile, splits=splits, cluster=cluster)
        first = tw.matmul(a, b)
        for _ in range(2 if EMULATED else 1000):
            assert_identical(tw.matmul(a, b), first)


def test_a_forced_kernel_is_what_runs():
    a, b = randn(300, 64, dtype=torch.float16), randn(64, 300, dtype=torch.float16)

    def kernel(b=b):
        return _core.explain("matmul", {"a": a, "b": b}, "h200")["plan"]["kernel"]

    before = kernel()
    _core.force_matmul_kernel("wgmma", tile="128x176")
    assert kernel() == "matmul_wgmma_128x176_general_f16"
    for cluster, blocks, columns in (("1x1", 1, 1), ("2x1", 2, 1), ("1x4", 4, 4)):
        _core.force_matmul_kernel("wgmma", tile="128x176", cluster=cluster)
        plan = _core.explain("matmul", {"a": a, "b": b}, "h200")["plan"]
        assert (plan["cluster"], plan["cluster_columns"]) == (blocks, columns)
    _core.force_matmul_kernel("blocks")
    assert kernel().startswith("matmul_mma_")
    _core.force_matmul_kernel("blocks", tile="96x192")
    assert kernel(b[:, :64].contiguous()) == "matmul_mma_96x192_kn_f16"
    _core.force_matmul_kernel(None)
    assert kernel() == before
    for wrong in (
        {"kernel": "wmma"},
        {"kernel": "wgmma", "tile": "100x100"},
        {"kernel": "blocks", "tile": "1x1"},
    ):
        with pytest.raises(ValueError, match="is not known; accepted: "):
            _core.force_matmul_kernel(**wrong)


@pytest.mark.gpu
def test_concurrent_streams():
    streams = [torch.cuda.Stream() for _ in range(8)]
    cases = [
        (randn(m, 1000, dtype=torch.bfloat16), randn(1000, 513, dtype=torch.bfloat16))
        for m in range(100, 900, 100)
    ]
    _core.force_matmul_kernel("wgmma")
    alone = [tw.matmul(a, b) for a, b in cases]
    torch.cuda.synchronize()
    for _ in range(50):
        together = []
        for stream, (a, b) in zip(streams, cases, strict=True):
            with torch.cuda.stream(stream):
                together.append(tw.matmul(a, b))
        torch.cuda.synchronize()
        for got, expected in zip(together, alone, strict=True):
            assert_identical(got, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 4])
def test_scratch_memory_and_maps_in_a_graph(splits):
    # An odd k is copied into scratch memory, and so are partial sums; both belong to the graph.
    a, b = randn(100, 301, dtype=torch.bfloat16), randn(301, 200, dtype=torch.bfloat16)
    _core.force_matmul_kernel("wgmma", tile="64x64", splits=splits)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = tw.matmul(a, b)
        second = tw.matmul(first, first.mT)
    for _ in range(3):
        a.normal_()
        graph.replay()
        assert_identical(first, tw.matmul(a, b))
        assert_identical(second, tw.matmul(first, first.mT))
