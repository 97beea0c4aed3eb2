"""tilewise.explain: why a plan is what it is."""

import random

import pytest
import tilewise as tw
import torch
from support.planning import GPUS, kernels, meta
from tilewise import _core


def test_a_forced_kernel_is_explained():
    try:
        _core.force_matmul_kernel("wgmma", tile="128x128", splits=4)
        odd = tw.explain(tw.matmul, meta(256, 1023), meta(1023, 256), device="h200")
        elsewhere = tw.explain(tw.matmul, meta(256, 1023), meta(1023, 256), device="a100")
        _core.force_softmax("online")
        long = tw.explain(tw.softmax, meta(4096, 8192), device="h200")
    finally:
        _core.force_matmul_kernel(None)
        _core.force_softmax(None)
    assert kernels(odd) == ["matmul_repack_i16", "matmul_wgmma_128x128_partial_bf16", "matmul_reduce_bf16"]
    assert odd.plan.settings["splits"] == 4
    assert str(odd.why[0]) == "wgmma rather than mma: it was asked for"
    assert elsewhere.why[0].chosen == "mma any"
    assert str(long.why[0]) == "online rather than block: it was asked for"


REASONS = {
    "columns that no cluster holds": (
        "log_softmax_backward",
        (meta(4, 32000, 1024), meta(4, 32000, 1024), 1),
        "two launches rather than one launch: the first reads grad alone, and both read wider rows "
        "(bytes of a row: 256, of one launch: 32)",
    ),
    "few columns": (
        "softmax_backward",
        (meta(65536, 16), meta(65536, 16), 0),
        "two launches rather than one launch: a block or cluster for each tile of columns would leave "
        "multiprocessors idle (blocks: 8, multiprocessors: 132)",
    ),
    "a row and a bit of a warp": (
        "softmax",
        (meta(4096, 1032),),
        "block rather than pipeline: the registers of a block hold a row, and have room for another's "
        "(bytes of a row: 2,064, at most: 32,768)",
    ),
    "few rows": (
        "softmax",
        (meta(4, 65536),),
        "cluster rather than pipeline: one block a row would leave multiprocessors idle "
        "(rows: 4, that would be enough: 99)",
    ),
    "a column too long": (
        "softmax",
        (meta(1 << 20, 6400), 0),
        "split columns rather than column tile: shared memory has no room for two clusters with a tile "
        "of columns each (bytes of the narrowest tile: 33,554,432, that would fit: 1,832,960)",
    ),
    "odd rows of a": (
        "matmul",
        (meta(64, 72)[:, 1:65], meta(64, 64)),
        "mma any rather than mma: a cannot be loaded in 16-byte vectors "
        "(contiguous aligned bytes: 2, needed: 16)",
    ),
    "odd rows of b": (
        "matmul",
        (meta(64, 64), meta(64, 68)[:, :64]),
        "mma any rather than mma: b cannot be loaded in 16-byte vectors "
        "(contiguous aligned bytes: 8, needed: 16)",
    ),
    "many dimensions": (
        "add",
        (meta(*[2] * 6), meta(*[2] * 6).permute(5, 4, 3, 2, 1, 0)),
        "deep rather than strided: there are more than it has room for (dimensions: 6, at most: 4)",
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_the_reason_names_the_next_best_and_what_decided(case):
    op, args, expected = REASONS[case]
    explained = tw.explain(op, *args, device="h200")
    assert expected in map(str, explained.why)
    assert expected in str(explained)
    assert any(reason["because"] in expected for reason in explained.as_dict()["why"])


@pytest.mark.parametrize("gpu", GPUS)
def test_metrics_bear_their_reasons_out(gpu):
    draw = random.Random(gpu)
    checked = 0
    for _ in range(150):
        m, n, extra = int(2 ** draw.uniform(0, 13)), int(2 ** draw.uniform(0, 21)), draw.choice((0, 0, 1, 3))
        x = meta(m, n + extra, dtype=draw.choice((torch.bfloat16, torch.float32, torch.float64)))[:, extra:]
        x, dim = draw.choice((x, x.T)), draw.choice((0, 1))
        y = draw.choice((2, x, x[:1], meta(*reversed(x.shape), dtype=x.dtype).T))
        calls = {"add": (x, y), "softmax": (x, dim), "softmax_backward": (x, x, dim)}
        reasons = [
            (op, reason) for op, args in calls.items() for reason in tw.explain(op, *args, device=gpu).why
        ]
        for op, reason in reasons:
            (_, value), (limit_is, limit) = (*reason.metrics.items(), ("", 0), ("", 0))[:2]
            claims = [
                (limit_is == "at most" and reason.chosen not in ("general", "deep"), value <= limit),
                (limit_is == "at least" and reason.chosen == "transposed", value >= limit),
                ("idle" in reason.because, value < limit),
                ("for all" in reason.because, value >= limit > 0),
            ]
            holds = [held for claimed, held in claims if claimed]
            assert all(holds), f"{op} {calls[op]}: {reason}"
            checked += len(holds)
    assert checked > 100


@pytest.mark.parametrize("gpu", GPUS)
def test_the_tile_that_is_chosen_has_the_better_estimate(gpu):
    for m, n, k in ((64, 64, 64), (4096, 4096, 4096), (170, 11008, 4096)):
        explained = tw.explain(tw.matmul, meta(m, k), meta(k, n), device=gpu)
        reason = explained.why[-1]
        best, next_best = reason.metrics.values()
        assert best <= next_best
        assert f"_{reason.chosen}_" in explained.plan.kernel
