"""tilewise.explain: what it says of a call is what the call does, on GPUs that are here and that are not."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tilewise as tw
import torch
from support.planning import GPUS, kernels, meta

CALLS = {
    "add": ((meta(1000, 300), meta(300)), {"alpha": 2}),
    "add scalar": ((meta(7, dtype=torch.int32), 3), {}),
    "softmax": ((meta(64, 4096),), {"dim": 0, "dtype": "float32"}),
    "log_softmax": ((meta(64, 100_000),), {}),
    "matmul": ((meta(5, 300, 70), meta(70, 500)), {"activation": "silu", "bias": meta(500)}),
    "matmul f64": ((meta(9, 9, dtype=torch.float64), meta(9, dtype=torch.float64)), {}),
    "grouped_matmul": ((meta(90, 64), meta(4, 64, 200), meta(4, dtype=torch.int32)), {"bias": meta(4, 200)}),
    "softmax_backward": ((meta(64, 4096), meta(64, 4096)), {"dim": 0}),
    "log_softmax_backward": ((meta(64, 4096), meta(64, 4096)), {"dtype": "float16"}),
    "activation_backward": ((meta(64, 4096), meta(64, 4096), "silu"), {"saved_is": "pre_activation"}),
}


of_every_gpu = pytest.mark.skipif(
    "sm_75" not in {kernel["target"] for kernel in tw.build_info()["kernels"]},
    reason="this build knows the kernels of some GPUs only",
)


@of_every_gpu
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("call", CALLS)
def test_every_operation_on_every_published_gpu(gpu, call):
    args, kwargs = CALLS[call]
    explained = tw.explain(call.split()[0], *args, device=gpu, **kwargs)
    plan = explained.plan
    built = {(k["kernel"], k["target"]): k for k in tw.build_info()["kernels"]}
    assert any(kernel == plan.kernel for kernel, _ in built)
    if plan.compiled_for is not None:
        assert built[plan.kernel, plan.compiled_for]["registers"] == plan.registers
        assert explained.occupancy.blocks_per_multiprocessor >= 1
        assert 0 < explained.occupancy.last_wave <= 1
    assert all(n >= 1 for n in plan.grid + plan.block)
    assert explained.ceiling.memory_seconds > 0
    for shown in (str(explained), explained._repr_html_(), json.dumps(explained.as_dict())):
        assert plan.kernel in shown


@pytest.mark.parametrize("gpu", GPUS)
def test_there_is_machine_code_for_every_published_gpu_or_ptx(gpu):
    major, _ = tw.explain("add", meta(8), 1, device=gpu).device.compute_capability
    explained = tw.explain("add", meta(8), 1, device=gpu)
    assert (explained.plan.compiled_for is not None) == any(
        target.startswith(f"sm_{major}") for target in tw.build_info()["targets"]
    )


def test_a_device_that_this_build_is_not_for_is_named():
    explained = tw.explain("add", meta(8), 1, device="h200")
    assert set(explained.device.targets) <= set(tw.build_info()["targets"])
    assert "sm_90a" in explained.device.targets
    assert "made for other GPUs" not in str(explained)
    other = replace(explained, device=replace(explained.device, targets=()))
    assert "made for other GPUs" in str(other)


def test_tiles_of_groups_are_counted_as_far_as_the_host_may_know():
    a, b = meta(4096, 512), meta(8, 512, 2048)
    on_the_device = tw.explain(tw.grouped_matmul, a, b, meta(8, dtype=torch.int32), device="h200")
    assert on_the_device.plan.settings["tile_m"] == 128
    assert on_the_device.plan.settings["tile_n"] == 256
    groups = on_the_device.groups
    assert (groups.least_tiles, groups.most_tiles, groups.tiles) == (32 * 8, (32 + 9) * 8, None)
    assert "at most" in str(on_the_device)
    ends = torch.tensor([1, 1, 130, 4000, 4000, 4000, 4000, 4000], dtype=torch.int32)
    known = groups_on_the_host(a, b, ends)
    # 1, 129 and 3870 rows in groups, 96 in none.
    assert known.tiles == (1 + 2 + 31 + 1) * 8
    assert known.largest_group == 3870 * 8 * 100 // 4000
    depth = tw.explain(
        "grouped_matmul", meta(512, 4096), meta(4096, 256), meta(8, dtype=torch.int32), device="h200"
    )
    assert depth.groups.least_tiles == depth.groups.most_tiles


def test_products_of_a_list_share_a_launch_where_that_is_sooner():
    weights = [meta(4096, 4096) for _ in range(8)]
    alike = tw.explain(tw.grouped_matmul, [meta(256, 4096)] * 8, weights, device="h200")
    assert [plan.kernel.split("_")[3] for plan in alike.launches] == ["list"]
    assert alike.plan.settings["products"] == 8
    shared = {"dtype": "bfloat16", "activation": None, "bias": False, "gate": False}
    assert alike.problem == {"products": 8, "cut": "nothing", **shared}
    assert "a launch each" in str(alike)
    one_is_copied = [meta(512, 513)[:, 1:], *[meta(512, 512)] * 7]
    mixed = tw.explain(tw.grouped_matmul, one_is_copied, [meta(512, 512)] * 8, device="h200")
    assert len(mixed.launches) == 3
    assert mixed.plan.settings["products"] == 7
    few = tw.explain(tw.grouped_matmul, [meta(16, 64)] * 8, [meta(64, 64)] * 8, device="h200")
    assert [plan.kernel for plan in few.launches] == ["grouped_matmul_mma_64x64_list_any_bf16"]


def groups_on_the_host(a, b, offsets):
    a, b = torch.empty(a.shape, dtype=a.dtype), torch.empty(b.shape, dtype=b.dtype)
    return tw.explain(tw.grouped_matmul, a, b, offsets=offsets, device="h200").groups


def test_ceilings_are_the_datasheets():
    x = meta(4096, 4096)
    explained = tw.explain(tw.matmul, x, x, device="h200")
    assert explained.device.memory_bytes_per_second == 4.8e12
    assert explained.ceiling.memory_seconds == pytest.approx(3 * 2 * 4096**2 / 4.8e12)
    assert explained.ceiling.arithmetic_seconds == pytest.approx(2 * 4096**3 / 989.4e12)
    singles = tw.explain(tw.matmul, x.float(), x.float(), device="a100")
    assert singles.ceiling.arithmetic_seconds == pytest.approx(2 * 4096**3 / 19.5e12)


def test_work_counts_what_must_move():
    x, row = meta(1000, 300), meta(300)
    work = tw.explain(tw.add, x, row, device="h200").work
    assert (work.bytes_read, work.bytes_written, work.operations) == (2 * (300_000 + 300), 600_000, 300_000)
    work = tw.explain(tw.softmax, x, dtype=torch.float32, device="h200").work
    assert (work.bytes_read, work.bytes_written) == (600_000, 1_200_000)
    work = tw.explain(tw.matmul, meta(4, 10, 20), meta(20, 30), bias=meta(30), device="h200").work
    assert (work.bytes_read, work.bytes_written, work.operations) == (
        2 * (4 * 10 * 20 + 20 * 30 + 30),
        2 * 4 * 10 * 30,
        2 * 4 * 10 * 20 * 30,
    )
    work = tw.explain(tw.add, x.expand(5, 1000, 300), 1, alpha=2, device="h200").work
    assert (work.bytes_read, work.operations) == (600_000, 2 * 5 * 300_000)
    work = tw.explain(tw.softmax_backward, x, x.expand(1000, 300), dtype=torch.float32, device="h200").work
    assert (work.bytes_read, work.bytes_written) == (1_200_000, 1_200_000)
    work = tw.explain("activation_backward", row.expand(1000, 300), x, "relu", bias=True, device="h200").work
    assert (work.bytes_read, work.bytes_written) == (2 * (300 + 300_000), 2 * (300_000 + 300))


@of_every_gpu
def test_grouped_order_reads_less_where_it_can():
    x = meta(8192, 8192)
    order = tw.explain(tw.matmul, x, x, device="a100").tile_order
    assert order.elements(order.grouped) < order.elements(order.row_major)
    assert order.blocks_at_once <= order.grouped[0] * order.grouped[1]


def test_the_plan_depends_on_the_device_and_the_strides():
    x, y = meta(4096, 4096), meta(4096, 4096)
    plans = [
        tw.explain(tw.matmul, x, y, device="a100").plan,
        tw.explain(tw.matmul, x, y.T, device="a100").plan,
        tw.explain(tw.matmul, x, y, device="h200").plan,
        tw.explain(tw.matmul, x, y, device="t4").plan,
    ]
    assert len({plan.kernel for plan in plans}) == 4


def test_a_shape_may_be_larger_than_this_machines_memory():
    x = meta(2**22, 2**18)
    explained = tw.explain(tw.softmax, x, device="h200")
    assert explained.work.bytes_read == 2**41
    assert tw.explain(tw.add, meta(0, 3), 1, device="h200").work.bytes_read == 0
    assert tw.explain(tw.add, meta(1).expand(2**40), 1, device="t4").problem["shape"] == [2**40]


@pytest.mark.parametrize("gpu", GPUS)
def test_a_result_has_tiles_as_far_as_kernels_count_them(gpu):
    for m, n in ((512, 2**35), (1, 2**37), (2**20, 2**22)):
        for a, b in ((meta(m, 16), meta(16, n)), (meta(n, 16), meta(16, m))):
            settings = tw.explain(tw.matmul, a, b, device=gpu).plan.settings
            assert 2**24 <= settings["tiles_m"] * settings["tiles_n"] < 2**31
    doubles = {"dtype": torch.float64}
    if gpu not in ("h200", "h100", "a100"):  # whose tensor cores have larger tiles: no memory holds so many
        with pytest.raises(tw.ShapeError, match="a matrix of 2147483648 tiles is more than kernels count"):
            tw.explain(tw.matmul, meta(512, 16, **doubles), meta(16, 2**34, **doubles), device=gpu)
    # Bands of so many tiles that 32 bits do not count them.
    for m, n, dtype in ((4096, 2**35, torch.float32), (4096, 2**36, torch.bfloat16)):
        with pytest.raises(tw.ShapeError, match="Plan a smaller call"):
            tw.explain(tw.matmul, meta(m, 64, dtype=dtype), meta(64, n, dtype=dtype), device=gpu)


@pytest.mark.parametrize("offset", [0, 1, 8, 2**45 + 1, 2**60])
def test_an_offset_counts_by_what_it_aligns(offset):
    storage = torch.empty_strided((offset + 2**17,), (1,), dtype=torch.bfloat16, device="meta")
    a = storage[offset:].view(512, 256)
    assert a.storage_offset() == offset
    (reason, *_) = tw.explain(tw.matmul, a, meta(256, 64), device="a100").why
    assert ("a cannot be loaded in 16-byte vectors" in reason.because) == (offset % 8 != 0)


TOO_LARGE = {
    "an operand": (tw.add, (meta(2**47, dtype=torch.int8), 1), r"`x` of shape \(140737488355328,\) spans"),
    "strides": (
        tw.softmax,
        (torch.empty_strided((3, 4), (2**62, 1), dtype=torch.float64, device="meta"),),
        "`x` of shape .* which this process cannot address",
    ),
    "a result": (tw.add, (meta(1).expand(2**61), 1), "a result of 4611686018427387904 bytes"),
    "a result of matmul": (
        tw.matmul,
        (meta(2**30, 1), meta(1, 2**30)),
        "a result of 2305843009213693952 bytes",
    ),
    "tiles": (tw.matmul, (meta(1, 1), meta(1, 1).expand(1, 2**45)), "a matrix of [0-9]+ tiles"),
    "blocks": (tw.add, (meta(2, dtype=torch.int8)[::2].expand(2**46), 1), "the grid of add_deep_u8"),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_what_no_process_could_address_or_no_gpu_launches_is_refused(case):
    op, args, message = TOO_LARGE[case]
    for gpu in GPUS:
        with pytest.raises(tw.ShapeError, match=f"^explain: .*{message}.* Plan a smaller call$"):
            tw.explain(op, *args, device=gpu)


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
def test_meta_tensors_that_are_not_plain_are_refused():
    sparse = torch.empty(4, 4, layout=torch.sparse_coo, device="meta")
    quantised = torch.empty(4, dtype=torch.quint8, device="meta")
    for x, stored in ((sparse, "sparse_coo"), (quantised, "quantised")):
        with pytest.raises(tw.LayoutError, match=stored):
            tw.explain(tw.add, x, 1, device="h200")


def test_all_launches_are_named_in_their_order():
    few = tw.explain(tw.softmax, meta(1, 1 << 24), device="a100")
    assert kernels(few) == ["softmax_partial_bf16", "softmax_combine_bf16"]
    assert kernels(tw.explain(tw.softmax, meta(4096, 1024), device="a100")) == ["softmax_warp4x1_bf16"]
    sums = tw.explain("activation_backward", meta(4096, 64), None, None, bias=True, device="t4")
    assert kernels(sums) == ["activation_backward_vector_bf16", "activation_backward_sums_bf16"]
    for explained in (few, sums):
        for shown in (str(explained), explained._repr_html_(), json.dumps(explained.as_dict())):
            assert all(kernel in shown for kernel in kernels(explained))


def test_lanes_are_shown_of_warps_and_columns_only():
    lanes = {}
    for shape, dim in (((4096, 8), 1), ((4096, 1024), 1), ((4096, 8192), 1), ((4096, 60000), 1)):
        plan = tw.explain(tw.softmax, meta(*shape), dim, device="a100").plan
        lanes[plan.kernel.split("_")[1]] = plan.settings.get("lanes")
        back = tw.explain(tw.softmax_backward, meta(*shape), meta(*shape), dim, device="h200").plan
        assert ("lanes" in back.settings) == ("warp" in back.kernel)
    assert lanes == {"warp1x2": 1, "warp4x1": 32, "block": None, "pipeline": None}


def test_no_elements_no_launch():
    empty = tw.explain(tw.matmul, meta(0, 3), meta(3, 5), device="h200")
    assert (empty.plan, empty.launches, empty.occupancy, empty.tile_order) == (None, (), None, None)
    assert "none: the result has no elements" in str(empty)


def test_on_the_cpu_it_says_so():
    for x in (torch.zeros(3, 4), np.zeros((3, 4))):
        explained = tw.explain(tw.softmax, x)
        assert explained.plan is None
        assert explained.cpu.threads >= 1
        assert explained.as_dict()["problem"]["length"] == 4


SOURCES = Path(__file__).parents[2]
f32 = partial(meta, dtype=torch.float32)
LOOPS = [
    (tw.add, (meta(70, 50), meta(70, 50)), {}, "elements in the order of memory", "add.rs"),
    (tw.add, (meta(70, 50), meta(50, 70).T), {}, "tiles, for operands", "add.rs"),
    (tw.softmax, (meta(70, 50),), {}, "rows", "softmax/rows.rs"),
    (tw.softmax, (meta(700, 500),), {"dim": 0}, "columns", "softmax/columns.rs"),
    (tw.log_softmax, (meta(700, 5),), {"dim": 0}, "columns, several rows in one", "softmax/columns.rs"),
    (tw.softmax, (meta(20, 500),), {"dim": 0}, "columns of few elements", "softmax/short.rs"),
    (tw.softmax_backward, (meta(20, 500), meta(20, 500)), {"dim": 0}, "columns of few", "backward/short.rs"),
    (
        tw.softmax_backward,
        (meta(700, 5), meta(700, 5)),
        {"dim": 0},
        "columns, several",
        "backward/columns.rs",
    ),
    (tw.matmul, (meta(70, 50), meta(50, 90)), {}, "blocks of k, columns and rows", "matmul/blocks.rs"),
    # With AMX other loops multiply bfloat16.
    (tw.matmul, (f32(7, 5), f32(5, 9)), {}, "a product packed at once", "matmul/small.rs"),
    (tw.matmul, (f32(3, 3), f32(3)), {}, "elements where they lie", "matmul/tiny.rs"),
    (tw.matmul, (f32(7, 1), f32(1, 90)), {}, "a column times a row", "matmul/outer.rs"),
    (tw.matmul, (f32(4, 2100), f32(2100, 40)), {}, "blocks of k", "matmul/blocks.rs"),
    (tw.matmul, (f32(4, 40000), f32(40000, 40)), {}, "columns of a matrix", "matmul/vector/across.rs"),
    (tw.matmul, (meta(7, 500), meta(500)), {}, "rows of a matrix times one or a few", "vector/dots.rs"),
    (tw.matmul, (f32(16, 900), f32(500, 900).T), {}, "rows of a matrix times one or", "vector/dots.rs"),
    (tw.matmul, (meta(700, 5), meta(5)), {}, "rows of few elements times a vector", "vector/short.rs"),
    (tw.matmul, (meta(4, 500), meta(500, 900)), {}, "columns of a matrix times one", "vector/across.rs"),
    (tw.matmul, (meta(4, 9000), meta(9000, 9)), {}, "a few results of a long k", "vector/narrow.rs"),
    (tw.matmul, (meta(500), meta(500)), {}, "a few results of a long k", "vector/narrow.rs"),
    (tw.matmul, (meta(5, 500), meta(500, 900)), {}, "blocks of k, columns and rows", "matmul/blocks.rs"),
    (tw.grouped_matmul, (meta(4, 70, 50), meta(4, 50, 90)), {}, "blocks of k", "matmul/blocks.rs"),
    (tw.grouped_matmul, ([meta(1, 5), meta(70, 50)], [meta(5, 9), meta(50, 90)]), {}, "blocks", "blocks.rs"),
    (
        "activation_backward",
        (meta(7, 5), meta(7, 5), "relu"),
        {},
        "pieces of rows",
        "activation_backward.rs",
    ),
]


@pytest.mark.parametrize(("op", "operands", "options", "loops", "file"), LOOPS)
def test_on_a_cpu_it_names_the_loops(op, operands, options, loops, file):
    explained = tw.explain(op, *operands, device="cpu", **options)
    assert explained.cpu.loops.startswith(loops)
    assert explained.cpu.file.endswith(file)
    assert (SOURCES / explained.cpu.file).is_file()
    assert f"{explained.cpu.loops} ({explained.cpu.file})" in str(explained)


def test_without_elements_a_cpu_runs_no_loops():
    empty = tw.explain(tw.matmul, meta(0, 3), meta(3, 5), device="cpu")
    assert empty.cpu.loops is None
    assert "none: there is nothing to compute" in str(empty)


def test_nothing_is_computed_or_written():
    x, out = torch.ones(4), torch.full((4,), 7.0)
    tw.explain(tw.add, x, x, out=out)
    tw.explain(tw.add, x.requires_grad_(), 1)
    assert out.tolist() == [7.0] * 4


@pytest.mark.parametrize("shape", [(2, 3), [2, 3]])
def test_a_shape_is_no_tensor_whatever_it_is_written_as(shape):
    with pytest.raises(tw.DTypeError, match=f"`a` is of type {type(shape).__name__}, not a tensor"):
        tw.explain(tw.matmul, shape, torch.ones(3, 2))


def test_it_refuses_what_the_call_refuses():
    with pytest.raises(tw.ShapeError, match="do not fit"):
        tw.explain(tw.matmul, meta(2, 3), meta(4, 5), device="h200")
    with pytest.raises(tw.DimError):
        tw.explain(tw.softmax, meta(2, 3), 2)
    with pytest.raises(TypeError, match=r"add\(\) missing a required argument"):
        tw.explain(tw.add, meta(2))
    with pytest.raises(TypeError, match=r"add\(\) got an unexpected keyword"):
        tw.explain(tw.add, meta(2), 1, beta=2)
    with pytest.raises(tw.DeviceError, match=r'device="h900" is not known; accepted: .*"h200"'):
        tw.explain(tw.add, meta(2), 1, device="h900")
    for op, name in {
        "mul": "mul",
        tw.devices: "devices",
        torch.matmul: "torch.matmul",
        torch.softmax: "torch.softmax",
        torch.nn.functional.relu: "torch.nn.functional.relu",
        np.add: "numpy.add",
        max: "builtins.max",
    }.items():
        with pytest.raises(tw.OptionError, match=f'op="{name}" is not known; accepted: '):
            tw.explain(op, meta(2))
    # A result in the place of the function.
    with pytest.raises(tw.OptionError, match=r"`op` is of type Tensor; pass one of tilewise's functions"):
        tw.explain(tw.add(torch.ones(2), 1))


@pytest.mark.parametrize("name", ["RTX 4090", "rtx-4090", "NVIDIA GeForce RTX 4090", "GeForce RTX 4090"])
def test_a_gpu_has_several_names(name):
    x = meta(2, 3)
    assert tw.explain(tw.softmax, x, device=name) == tw.explain(tw.softmax, x, device="rtx4090")


def test_a_device_is_named_as_torch_names_it():
    x = meta(2, 3)
    on_cpu = tw.explain(tw.softmax, x, device="cpu")
    assert on_cpu.cpu is not None
    for name in (torch.device("cpu"), torch.device("cpu", 0), "cpu:0"):
        assert tw.explain(tw.softmax, x, device=name) == on_cpu
    here = len(tw.devices())
    for index in range(here):
        by_name = tw.explain(tw.softmax, x, device=f"cuda:{index}")
        assert tw.explain(tw.softmax, x, device=index) == by_name
        assert tw.explain(tw.softmax, x, device=torch.device("cuda", index)) == by_name
    said = f"there is no cuda:{here}" if here else r"no CUDA driver.* or name a GPU|there is no cuda:0"
    for absent in (here, torch.device("cuda", here)):
        with pytest.raises(tw.DeviceError, match=said):
            tw.explain(tw.softmax, x, device=absent)


@pytest.mark.parametrize(
    "device", [torch.device("meta"), True, 1.5, ["h200"], object(), b"h200", -1, "cuda:-1", 10**30]
)
def test_what_is_no_device_is_refused(device):
    with pytest.raises(tw.DeviceError, match=r"device=.* is not known; accepted: None"):
        tw.explain(tw.softmax, meta(2, 3), device=device)


def test_rich_shows_it_as_a_table():
    rich = pytest.importorskip("rich.console")
    console = rich.Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(tw.explain(tw.matmul, meta(64, 64), meta(64, 64), device="l4"))
    assert "NVIDIA L4" in console.export_text()


def test_the_strides_of_every_operand_are_shown():
    added = tw.explain(tw.add, meta(64, 32), meta(32, 64).T, device="h200").problem
    assert (added["x_strides"], added["y_strides"], added["out_strides"]) == ([32, 1], [1, 64], [32, 1])
    assert "y_strides" not in tw.explain(tw.add, meta(64), 2, device="h200").problem
    multiplied = tw.explain(tw.matmul, meta(64, 32), meta(16, 32).T, device="h200").problem
    assert (multiplied["a_strides"], multiplied["b_strides"]) == ([32, 1], [1, 32])


def test_a_persistent_kernel_tells_its_tiles_and_its_tail():
    e = tw.explain(tw.matmul, meta(4096, 4096), meta(4096, 4096), device="h200")
    if e.occupancy is None:
        pytest.skip("this build has no kernels for it")
    (blocks, *_), tiles = e.plan.grid, e.plan.settings["tiles_m"] * e.plan.settings["tiles_n"]
    assert e.occupancy.tiles == tiles > blocks
    assert e.occupancy.waves == math.ceil(tiles / blocks)
    assert (e.occupancy.waves - 1 + e.occupancy.last_wave) * blocks == pytest.approx(tiles)
    assert f"{tiles} on {blocks} blocks, {tiles / blocks:.2f} per block" in str(e)
    warps = e.occupancy.blocks_per_multiprocessor * e.plan.block[0] // 32
    assert f"block/SM, occupancy {warps / 64:.0%} ({warps}/64 warps)" in str(e)


def test_an_estimated_time_stands_beside_the_roofline():
    e = tw.explain(tw.matmul, meta(4096, 4096), meta(4096, 4096), device="h200")
    chosen, other = e.why[-1].clocks
    assert e.estimated_seconds == chosen / e.device.clock_hertz
    assert e.estimated_seconds >= max(e.ceiling.memory_seconds, e.ceiling.arithmetic_seconds)
    ours, theirs = (f"{1e6 * clocks / e.device.clock_hertz:,.1f} µs" for clocks in (chosen, other))
    assert f"lowest estimated time, {ours} against {theirs}" in str(e)
    assert e.as_dict()["estimated_seconds"] == e.estimated_seconds
    small = tw.explain(tw.add, meta(64), meta(64), device="h200")
    assert small.estimated_seconds is None
    assert "estimated_seconds" not in small.as_dict()


def test_small_work_is_bound_by_its_launch():
    small, large = (tw.explain(tw.add, meta(n), 1, device="h200") for n in (64, 1 << 24))
    assert "the launch" in str(small)
    assert "the launch" not in str(large)
    assert small.ceiling.bound_by == large.ceiling.bound_by == "memory"
    estimated = tw.explain(tw.matmul, meta(64, 4096), meta(4096, 64), device="h200")
    assert estimated.ceiling.memory_seconds < 1e-6 < estimated.estimated_seconds
    assert "the launch" not in str(estimated)


@of_every_gpu
def test_small_tile_orders_are_counted_in_elements():
    text = str(tw.explain(tw.matmul, meta(100, 100), meta(100, 100), device="t4"))
    assert "2 rows of tiles of a, 2 columns of tiles of b: 20,000 elements" in text


def test_times_and_intensities_have_units_that_people_read():
    text = str(tw.explain(tw.add, meta(3), meta(3), device="h200"))
    assert "below 1 ns" in text
    assert "1,365 flop/B" in str(tw.explain(tw.matmul, meta(4096, 4096), meta(4096, 4096), device="h200"))
    assert not re.search(r"\d\.?\d*e[-+]\d", text)
