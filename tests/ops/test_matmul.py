"""matmul of two matrices: odd edges, layouts, bias, activations, precision."""

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.tolerance import FLOATS, assert_identical, assert_rounded

EDGES = [*range(1, 18), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]
LAYOUTS = [
    (views.contiguous, views.contiguous),
    (views.contiguous, views.transposed),
    (views.transposed, views.contiguous),
    (views.transposed, views.transposed),
]
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def pair(m, n, k, dtype, device):
    a = torch.randn(m, k, dtype=torch.float64, device=device).to(dtype)
    b = torch.randn(k, n, dtype=torch.float64, device=device).to(dtype)
    return a, b


def check(a, b, context="", **options):
    got = tw.matmul(a, b, **options)
    tf32 = options.pop("precision", "ieee") == "tf32" and a.dtype == torch.float32
    options.pop("negative_slope", None)
    expected, error = reference.matmul(a, b, tf32=tf32, **options)
    assert got.dtype == a.dtype
    assert got.is_contiguous()
    assert_rounded(got, expected, error, context)


@dtypes
@pytest.mark.parametrize("edge", EDGES)
def test_odd_edges_in_every_layout(device, dtype, edge):
    for m, n, k in [(edge, 40, 24), (33, edge, 40), (40, 33, edge)]:
        a, b = pair(m, n, k, dtype, device)
        for lay_a, lay_b in LAYOUTS:
            context = f"({m}, {k}) {lay_a.__name__} @ ({k}, {n}) {lay_b.__name__}:"
            check(lay_a(a), lay_b(b), context)


@dtypes
@pytest.mark.parametrize("seed", range(12))
def test_misaligned_shapes_in_odd_memory(device, dtype, seed):
    generator = torch.Generator().manual_seed(seed)

    def pick(choices):
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    for _ in range(4):
        m, n, k = pick(EDGES), pick(EDGES), pick([*EDGES, 511, 1024, 1030])
        a, b = pair(m, n, k, dtype, device)
        # Odd leading strides, misaligned bases, steps in both directions, NaN all around.
        make_a, make_b = pick(views.MATRIX_MAKERS), pick(views.MATRIX_MAKERS)
        context = f"({m}, {k}) {make_a.__name__} @ ({k}, {n}) {make_b.__name__}:"
        check(make_a(a), make_b(b), context)


MANY_TILES = [(384, 768, 64), (1280, 1280, 64), (384, 640, 1000), (1000, 129, 2050), (130, 1026, 257)]


@dtypes
@pytest.mark.parametrize("shape", MANY_TILES, ids=str)
def test_many_tiles_in_every_layout(device, dtype, shape):
    a, b = pair(*shape, dtype, device)
    for lay_a, lay_b in LAYOUTS:
        check(lay_a(a), lay_b(b), f"{lay_a.__name__} @ {lay_b.__name__}:")


@dtypes
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 9001), (1, 300, 4096), (300, 1, 4096), (2, 3, 20000), (5000, 3, 2), (1, 70001, 3)],
    ids=str,
)
def test_long_and_thin(device, dtype, shape):
    a, b = pair(*shape, dtype, device)
    for lay_a, lay_b in LAYOUTS:
        check(lay_a(a), lay_b(b), f"{lay_a.__name__} @ {lay_b.__name__}:")


@dtypes
@pytest.mark.parametrize("shape", [(2, 64), (64, 2), (300, 1000), (3, 9000), (65, 63)], ids=str)
def test_a_column_times_a_row(device, dtype, shape):
    m, n = shape
    a, b = pair(m, n, 1, dtype, device)
    bias = torch.randn(n, device=device).to(dtype)
    for options in ({}, {"bias": bias}, {"activation": "relu"}, {"bias": bias, "activation": "gelu"}):
        expected, error = reference.matmul(a, b, **options)
        for make in (views.contiguous, views.transposed, views.every_second):
            out = make(torch.full((m, n), float("nan"), dtype=dtype, device=device))
            tw.matmul(a, b, out=out, **options)
            assert_rounded(out, expected, error, f"{make.__name__} {list(options)}:")
    check(torch.stack([a, 2 * a]), torch.stack([b, -b]), "a batch:", activation="silu")
    check(a.expand(3, m, 1), b[:, :1].expand(1, n), "expanded:", bias=bias[:1].expand(n))


@dtypes
@pytest.mark.parametrize("k", [0, 1, 3, 4, 16, 64, 65])
def test_batches_of_tiny_matrices(device, dtype, k):
    for m, n in [(1, 1), (3, 1), (1, 4), (2, 2), (3, 3), (4, 4), (4, 5)]:
        a = torch.randn(5, m, k, device=device).to(dtype)
        b = torch.randn(5, k, n, device=device).to(dtype)
        bias = torch.randn(n, device=device).to(dtype)
        for lay_a, lay_b in LAYOUTS:
            context = f"({m}, {k}) {lay_a.__name__} @ ({k}, {n}) {lay_b.__name__}:"
            check(lay_a(a), lay_b(b), context, bias=bias, activation="leaky_relu")
        residual = torch.randn(5, m, n, device=device).to(dtype)
        check(a, b[0], f"({m}, {k}) by one of ({k}, {n}):", residual=residual)
        out = residual.clone()
        assert_identical(tw.matmul(a, b, residual=out, out=out), tw.matmul(a, b, residual=residual))
        crossed = a[:, None].flip(0), b[None]  # every one by every other
        check(*crossed, f"({m}, {k}) @ ({k}, {n}), crossed:")


@pytest.mark.gpu
@dtypes
@pytest.mark.parametrize("shape", [(2048, 2048, 512), (2047, 4099, 1031), (8192, 1024, 264)], ids=str)
def test_more_tiles_than_multiprocessors(dtype, shape):
    a, b = pair(*shape, dtype, "cuda")
    for lay_a, lay_b in LAYOUTS:
        check(lay_a(a), lay_b(b), f"{lay_a.__name__} @ {lay_b.__name__}:")


@dtypes
@pytest.mark.parametrize("activation", list(reference.ACTIVATIONS))
@pytest.mark.parametrize("with_bias", [False, True])
def test_bias_and_activation(device, dtype, activation, with_bias):
    for m, n, k in [(1, 1, 1), (65, 47, 33), (3, 257, 64), (129, 128, 256)]:
        a, b = pair(m, n, k, dtype, device)
        bias = torch.randn(n, device=device).to(dtype) * 3 if with_bias else None
        check(a, b, f"({m}, {k}) @ ({k}, {n}):", bias=bias, activation=activation)


@dtypes
def test_the_activation_is_applied_before_the_rounding(device, dtype):
    # With a slope of 1024 a rounding of the product to halves would show 1024 times.
    a, b = pair(40, 24, 100, dtype, device)
    got = tw.matmul(a, b, activation="leaky_relu", negative_slope=1024.0)
    product, error = reference.matmul(a, b)
    assert_rounded(got, torch.where(product > 0, product, product * 1024), error * 1024)


@pytest.mark.parametrize("slope", [0.0, 0.01, -0.5, 1, 2.5])
def test_negative_slope(device, slope):
    a, b = pair(17, 19, 23, torch.float32, device)
    product, error = reference.matmul(a, b)
    got = tw.matmul(a, b, activation="leaky_relu", negative_slope=slope)
    assert_rounded(got, torch.where(product > 0, product, product * slope), 4 * error)


def test_the_default_slope_is_torchs(device):
    a, b = pair(17, 19, 23, torch.float32, device)
    implied = tw.matmul(a, b, activation="leaky_relu")
    assert_identical(implied, tw.matmul(a, b, activation="leaky_relu", negative_slope=0.01))


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_a_negative_slope_without_leaky_relu_is_refused(device, activation):
    a, b = pair(9, 8, 7, torch.float32, device)
    offsets = torch.tensor([9], dtype=torch.int32, device=device)
    default = tw.matmul(a, b, activation=activation, negative_slope=0.01)
    assert_identical(default, tw.matmul(a, b, activation=activation))
    recorded = a.clone().requires_grad_()
    for call in (
        lambda: tw.matmul(a, b, activation=activation, negative_slope=5.0),
        lambda: tw.matmul(recorded, b, activation=activation, negative_slope=5.0),
        lambda: tw.matmul(a.to("meta"), b.to("meta"), activation=activation, negative_slope=5.0),
        lambda: tw.matmul(a.numpy(force=True), b.numpy(force=True), activation=activation, negative_slope=5),
        lambda: tw.grouped_matmul(a, b[None], offsets, activation=activation, negative_slope=5.0),
        lambda: tw.explain(tw.matmul, a, b, activation=activation, negative_slope=5.0),
    ):
        with pytest.raises(tw.OptionError, match=r"negative_slope=5 belongs to activation=\"leaky_relu\""):
            call()


@dtypes
def test_bias_in_any_memory(device, dtype):
    a, b = pair(35, 66, 20, dtype, device)
    bias = torch.randn(66, device=device).to(dtype)
    for make in (views.sliced, views.every_second, views.misaligned):
        check(a, b, f"{make.__name__}:", bias=make(bias))
    check(a, b, "expanded:", bias=bias[:1].expand(66))


@pytest.mark.parametrize("shape", [(64, 64, 64), (130, 257, 1000), (5, 3, 7)], ids=str)
def test_ieee_float32_keeps_what_tf32_would_drop(device, shape):
    a, b = pair(*shape, torch.float32, device)
    check(a, b)
    # 1 + 2^-20 has no tf32 representation.
    m, n, _ = shape
    got = tw.matmul(torch.full((m, 1), 1 + 2.0**-20, device=device), torch.ones(1, n, device=device))
    assert_identical(got, torch.full((m, n), 1 + 2.0**-20, device=device))


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("shape", [(64, 64, 64), (130, 257, 1000), (5, 3, 7)], ids=str)
def test_tf32_is_close(device, shape, activation):
    a, b = pair(*shape, torch.float32, device)
    for lay_a, lay_b in LAYOUTS:
        check(lay_a(a), lay_b(b), precision="tf32", activation=activation)


@dtypes
def test_precision_changes_nothing_but_float32(device, dtype):
    if dtype == torch.float32:
        pytest.skip("float32 is what precision is about")
    a, b = pair(33, 44, 55, dtype, device)
    assert_identical(tw.matmul(a, b, precision="tf32"), tw.matmul(a, b, precision="ieee"))


@dtypes
def test_accumulation_is_not_in_halves(device, dtype):
    # 4096 ones: a float16 sum would stop at 2048, a bfloat16 sum at 256.
    ones = torch.ones(8, 4096, dtype=dtype, device=device)
    assert_identical(tw.matmul(ones, ones.mT), torch.full((8, 8), 4096.0, dtype=dtype, device=device))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9])
def test_long_sums_are_in_pieces(device, rows):
    # Products of one sign, whose rounding errors grow with the number of products that are added in a row.
    a, b = torch.rand(rows, 10000, device=device), torch.rand(10000, 240, device=device)
    expected = a.double() @ b.double()
    for lay_a, lay_b in LAYOUTS:
        for got in (tw.matmul(lay_a(a), lay_b(b)), tw.matmul(lay_b(b).mT, lay_a(a).mT).mT):
            torch.testing.assert_close(got.double(), expected, rtol=8e-7, atol=0)


@dtypes
@pytest.mark.parametrize("k", [128, 203, 1057, 4099])
@pytest.mark.parametrize("few", [2, 5, 7, 13, 33, 70])
def test_a_few_rows_or_columns_by_a_large_matrix(device, dtype, few, k):
    # On a CPU rows that follow k are read where they lie, a few at a time: 601 are no multiple of that.
    a, b = pair(few, 601, k, dtype, device)
    bias = torch.randn(601, dtype=dtype, device=device)
    for lay_a, lay_b in LAYOUTS:
        check(lay_a(a), lay_b(b), bias=bias, activation="silu")
        check(lay_b(b).mT, lay_a(a).mT)
    # Rows whose elements are not neighbours.
    apart = torch.full((601, 3 * k), float("nan"), dtype=dtype, device=device)
    apart[:, ::3] = b.mT
    check(a, apart[:, ::3].mT)


@dtypes
@pytest.mark.parametrize(
    ("m", "n", "k"), [(65, 90, 90), (129, 40, 530), (33, 300, 1200), (300, 305, 20), (520, 600, 600)]
)
def test_two_transposed_matrices(device, dtype, m, n, k):
    """On a CPU the transposed product of the matrices as they lie, where the result is small beside them."""
    a, b = pair(m, n, k, dtype, device)
    a, b = views.transposed(a), views.transposed(b)
    check(a, b)
    check(a, b, activation="gelu")
    check(a, b, bias=torch.randn(n, dtype=dtype, device=device))
    check(a, b, residual=torch.randn(m, n, dtype=dtype, device=device))
    wide = torch.full((m, n + 5), 7.0, dtype=dtype, device=device)
    assert_rounded(tw.matmul(a, b, out=wide[:, 2:-3]), *reference.matmul(a, b))
    # Fewer rows or columns may be multiplied as vectors, whose order of sums is that of the layout.
    if device == "cpu" and min(m, n) > 64:
        assert_identical(tw.matmul(a, b), tw.matmul(a.contiguous(), b.contiguous()))
    assert bool((wide[:, :2] == 7).all() and (wide[:, -3:] == 7).all())


@dtypes
@pytest.mark.parametrize("k", [64, 255, 4097, 9000])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_few_results_of_long_sums(device, dtype, rows, k):
    """Columns that are less than a group of lanes, as many, and more."""
    a = torch.randn(rows, k, device=device).to(dtype)
    for columns in (1, 3, 8, 16) if k == 9000 else (*range(1, 10), 13, 16, 17, 24):
        b = torch.randn(k, columns + 2, device=device).to(dtype)
        bias = torch.randn(columns, device=device).to(dtype)
        for lay in (views.contiguous, views.transposed, lambda x: x):  # the last one is a part of each row
            check(a, lay(b[:, 1:-1]), f"{rows} x {k} x {columns}:", bias=bias, activation="relu")
            check(lay(b[:, 1:-1]).mT, a.mT, f"{columns} x {k} x {rows}:")


@dtypes
@pytest.mark.parametrize("k", [1, 63, 64, 1000, 10_000])
def test_vectors_times_vectors(device, dtype, k):
    """Vectors of every form have the same product: a dimension of size 1 has any stride."""
    u, v = (torch.randn(2 * k, device=device).to(dtype)[::2] for _ in range(2))
    for x, y in [(u, v), (u.contiguous(), v.contiguous())]:
        for a in (x, x[None], x[:, None].mT):
            for b in (y, y[:, None], y[None].mT, y.as_strided((k, 1), (y.stride(0), 7))):
                product, error = reference.matmul(x[None], y[:, None])
                got = tw.matmul(a, b)
                assert got.shape == torch.matmul(a, b).shape
                assert_rounded(got.reshape(1, 1), product, error)


@dtypes
@pytest.mark.parametrize("k", [1, 3, 7, 8, 9, 17, 40, 48, 49, 65])
def test_short_rows_times_a_vector(device, dtype, k):
    for rows in (1, 5, 8, 9, 123, 5000):
        matrix, column = pair(rows, 1, k, dtype, device)
        vector = column[:, 0].contiguous()
        check(matrix, vector)
        check(torch.randn(rows, 2 * k, device=device).to(dtype)[:, ::2], vector)


def test_what_lies_behind_a_row_does_not_reach_its_sums(device):
    # The last elements of a row are read with zeros in place of what follows: neither infinity nor NaN.
    for dtype in FLOATS:
        for k in (130, 200, 1001):
            whole = torch.full((603, k + 7), float("inf"), dtype=dtype, device=device)
            whole[:, :k] = torch.randn(603, k, device=device).to(dtype)
            for rows in (1, 2, 6, 16):
                a = torch.full((rows, k + 3), float("nan"), dtype=dtype, device=device)
                a[:, :k] = torch.randn(rows, k, device=device).to(dtype)
                check(a[:, :k], whole[:, :k].mT)


@dtypes
def test_identity_and_selection_are_exact(device, dtype):
    a, _ = pair(130, 1, 70, dtype, device)
    assert_identical(tw.matmul(a, torch.eye(70, dtype=dtype, device=device)), a)
    rows = torch.randperm(130, device=device)
    selection = torch.eye(130, dtype=dtype, device=device)[rows]
    assert_identical(tw.matmul(selection, a), a[rows])


def test_inputs_are_not_written(device):
    a, b = pair(20, 30, 40, torch.float32, device)
    bias = torch.randn(30, device=device)
    before = [t.clone() for t in (a, b, bias)]
    tw.matmul(a, b, bias=bias, activation="gelu")
    for now, then in zip((a, b, bias), before, strict=True):
        assert_identical(now, then)
