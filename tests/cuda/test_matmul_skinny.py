"""matmul_skinny and matmul_skinny_simt, asked for by name: layouts, edges, splits, batches and epilogue."""

import itertools

import pytest
import tilewise as tw
import torch
from support import reference, views
from support.forced import DEVICE, EMULATED, FLOATS, check_matmul, needs, randn
from support.guarded import Guarded
from support.tolerance import assert_identical
from tilewise import _core

pytestmark = needs("a GPU")
DTYPES = sorted(set(FLOATS), key=str)
# Parts of k, and whether they may be a cluster.
SPLITS = [(1, None), (2, None), (8, None), (3, None), (4, "1x1")]


def check(a, b, splits=(None, None), context="", **options):
    _core.force_matmul_kernel("skinny", splits=splits[0], cluster=splits[1])
    return check_matmul(a, b, f"{context} {splits}", **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "few", [1, 8, 9, 17, 33, 64] if EMULATED else [1, 2, 7, 8, 9, 16, 17, 32, 33, 63, 64]
)
def test_few_rows_and_few_columns(few, dtype):
    for (many, k), splits in zip([(130, 264), (65, 1032), (257, 40), (8, 520)], SPLITS, strict=False):
        for lay_x, lay_w in itertools.product([views.contiguous, views.transposed], repeat=2):
            x, w = lay_x(randn(few, k, dtype=dtype)), lay_w(randn(k, many, dtype=dtype))
            check(x, w, splits, f"{lay_x.__name__} {lay_w.__name__}")
            check(w.mT, x.mT, splits, f"columns, {lay_x.__name__} {lay_w.__name__}")


def between_nan(x):
    """As x, with rows of whole vectors of 16 bytes and NaN between them."""
    parent = torch.full((x.shape[0], x.shape[1] + 4), float("nan"), dtype=x.dtype, device=x.device)
    view = parent[:, :-4]
    view.copy_(x)
    return view


@pytest.mark.parametrize("few", [9, 31, 32, 33, 64])
def test_float32_in_vectors(few):
    """Both along k; weights across k, where the few rows lie either way."""
    for (many, k), splits in zip([(128, 1032), (132, 20), (300, 516), (68, 4)], SPLITS, strict=False):
        x, w = between_nan(randn(few, k, dtype=torch.float32)), randn(many, k, dtype=torch.float32)
        check(x, between_nan(w).mT, splits, "both along k:")
        assert "_k_f32" in _core.explain("matmul", {"a": x, "b": between_nan(w).mT}, "h200")["plan"]["kernel"]
        check(x, between_nan(w.mT), splits, "across k:")
        check(between_nan(x.mT).mT, between_nan(w.mT), splits, "both across k:")
        check(between_nan(x.mT).mT, between_nan(w).mT, splits, "few rows across k:")
        check(between_nan(w), x.mT, splits, "few columns:")


@pytest.mark.parametrize("edge", [*range(1, 18), 63, 64, 65, 127, 128, 129, 255, 256, 257])
def test_odd_edges(edge):
    for (few, many, k), splits in itertools.product([(5, edge, 72), (min(edge, 64), 70, edge)], SPLITS[:3]):
        dtype = FLOATS[edge % 4]
        check(randn(few, k, dtype=dtype), randn(many, k, dtype=dtype).mT, splits)
        check(randn(few, k, dtype=dtype), randn(k, many, dtype=dtype), splits)


@pytest.mark.parametrize("make_x", views.MATRIX_MAKERS, ids=views.name)
@pytest.mark.parametrize("make_w", views.MATRIX_MAKERS, ids=views.name)
def test_any_memory(make_x, make_w):
    for (few, many, k), dtype in zip(
        [(3, 65, 270), (20, 130, 200), (40, 24, 8), (9, 40, 33)], FLOATS, strict=True
    ):
        check(make_x(randn(few, k, dtype=dtype)), make_w(randn(k, many, dtype=dtype)))


def beside_nan(x):
    """As x, with rows of an odd length and NaN on both sides of each."""
    parent = torch.full((x.shape[0], x.shape[1] + 3), float("nan"), dtype=x.dtype, device=x.device)
    view = parent[:, 1:-2]
    view.copy_(x)
    return view


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_lies_beside_an_operand_does_not_matter(dtype):
    for (few, many, k), splits in itertools.product([(1, 70, 257), (16, 33, 520), (50, 129, 65)], SPLITS[:2]):
        x, w = randn(few, k, dtype=dtype), randn(many, k, dtype=dtype)
        check(beside_nan(x), beside_nan(w).mT, splits)
        check(beside_nan(x.mT).mT, beside_nan(w.mT), splits)


@pytest.mark.parametrize("activation", list(reference.ACTIVATIONS))
@pytest.mark.parametrize("splits", SPLITS, ids=str)
def test_bias_and_activation(splits, activation):
    for dtype in DTYPES:
        x, w, bias = randn(6, 1040, dtype=dtype), randn(1040, 77, dtype=dtype), randn(77, dtype=dtype) * 3
        check(x, w, splits, bias=bias, activation=activation)
        check(x, w, splits, "expanded bias:", bias=bias[:1].expand(77), activation=activation)
        check(w.mT, x.mT, splits, "columns:", bias=bias[:6], activation=activation)
        check(
            x, w, splits, "into columns:", bias=bias, activation=activation, out=randn(77, 6, dtype=dtype).mT
        )


@pytest.mark.parametrize("cut", Guarded.CUTS)
def test_nothing_beside_out_is_written(cut):
    cases = itertools.product([(1, 64), (5, 129), (64, 3), (129, 7)], SPLITS)
    for i, (shape, splits) in enumerate(cases):
        for dtype in [FLOATS[i % 4]] if EMULATED else DTYPES:
            guarded = Guarded(shape, dtype, DEVICE, cut)
            x, w = randn(shape[0], 1040, dtype=dtype), randn(1040, shape[1], dtype=dtype)
            check(x, w, splits, cut, out=guarded.out)
            guarded.assert_rest_untouched()


BATCHES = [((5,), (5,)), ((2, 3), (2, 3)), ((2, 1, 3), (2, 4, 1)), ((7,), ()), ((), (7,)), ((1, 3), (4, 1))]


@pytest.mark.parametrize(("batch_x", "batch_w"), BATCHES, ids=str)
def test_batches(batch_x, batch_w):
    for dtype, splits in zip(FLOATS, SPLITS, strict=False):
        for few, many, k in [(4, 130, 264), (3, 65, 257)]:
            x, w = randn(*batch_x, few, k, dtype=dtype), randn(*batch_w, k, many, dtype=dtype)
            check(x, w, splits, f"{batch_x} {batch_w}", bias=randn(many, dtype=dtype), activation="silu")


def test_the_same_bits_every_time():
    x, w = randn(7, 4096, dtype=torch.bfloat16), randn(4096, 520, dtype=torch.bfloat16)
    for splits, cluster in SPLITS:
        _core.force_matmul_kernel("skinny", splits=splits, cluster=cluster)
        first = tw.matmul(x, w)
        for _ in range(2 if EMULATED else 1000):
            assert_identical(tw.matmul(x, w), first)


def test_parts_in_memory_and_in_a_cluster_are_the_same_sums():
    for dtype in DTYPES:
        x, w, bias = randn(7, 2100, dtype=dtype), randn(2100, 200, dtype=dtype), randn(200, dtype=dtype)
        results = []
        for cluster in (None, "1x1"):
            _core.force_matmul_kernel("skinny", splits=4, cluster=cluster)
            results.append(tw.matmul(x, w, bias=bias, activation="gelu"))
        assert_identical(*results)


@pytest.mark.gpu
def test_parts_in_a_graph():
    x, w = randn(3, 4096, dtype=torch.bfloat16), randn(4096, 300, dtype=torch.bfloat16)
    for cluster in (None, "1x1"):
        _core.force_matmul_kernel("skinny", splits=8, cluster=cluster)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = tw.matmul(x, w)
        for _ in range(3):
            x.normal_()
            graph.replay()
            assert_identical(got, tw.matmul(x, w))
