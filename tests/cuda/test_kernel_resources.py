"""What the compiler made of every kernel for every target: no spills, nothing missing."""

import re
from pathlib import Path

import pytest
import tilewise as tw

KERNELS = Path(__file__).parents[2] / "kernels"
# Targets whose machine code a wheel carries, and the sources that need one of the newer ones.
TARGETS = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]
FROM_SM_80 = {"matmul_mma", "matmul_skinny", "matmul_repack"}
# What uses instructions of one architecture alone, or serves only what does.
ONLY_SM_90A = {"grouped_matmul_wgmma", "grouped_matmul_wgmma_list"}
ONLY_SM_90A |= {"matmul_bf16x6", "matmul_bf16x6_few", "matmul_split"}
ONLY_SM_90A |= {"matmul_wgmma", "matmul_wgmma_few", "matmul_wgmma_tf32", "matmul_wgmma_training"}
# What is planned only where a multiprocessor has 228 KB of shared memory, or tensor cores for float64; TF32
# on Hopper has a file of its own.
SOME = {
    "softmax_grid": {"sm_90", "sm_100"},
    "matmul_dmma": {"sm_80", "sm_90"},
    "matmul_tf32": {"sm_80", "sm_100", "sm_120"},
}


@pytest.fixture(scope="module")
def info():
    return tw.build_info()


@pytest.fixture(scope="module")
def kernels(info):
    assert info["kernels"], "no kernel was built"
    return info["kernels"]


def test_the_build_says_what_it_was_made_with(info):
    assert info["version"] == tw.__version__
    assert re.search(r"\d+\.\d+", info["nvcc"])
    assert set(info["targets"]) >= set(TARGETS)


def test_no_kernel_spills(kernels):
    spilling = [k for k in kernels if k["spill_bytes"] or k["stack_bytes"]]
    assert not spilling, "\n".join(map(str, spilling))


def test_no_kernel_asks_for_more_than_a_block_can_have(kernels):
    for kernel in kernels:
        assert 0 < kernel["registers"] <= 255
        # Static shared memory beyond 48 KB does not load; what is more must be dynamic.
        assert 0 <= kernel["shared_bytes"] <= 48 << 10


def test_every_source_is_built_for_every_target_it_is_meant_for(kernels):
    if not KERNELS.exists():
        pytest.skip("the sources are not here")
    sources = {path.stem for path in KERNELS.glob("*.cu")}
    built = {(k["file"], k["target"]) for k in kernels}
    assert {file for file, _ in built} == sources
    assert {file for file, target in built if target == "sm_90a"} == ONLY_SM_90A
    for source, targets in SOME.items():
        assert {target for file, target in built if file == source} == targets
    for source in sources - ONLY_SM_90A - SOME.keys():
        for target in TARGETS:
            if not (source in FROM_SM_80 and target == "sm_75"):
                assert (source, target) in built, f"{source} is not built for {target}"


def test_every_target_has_the_same_kernels(kernels):
    built = {}
    for kernel in kernels:
        if kernel["file"] not in SOME:
            built.setdefault(kernel["target"], set()).add(kernel["kernel"])
    # Without tensor cores for bfloat16, sm_75 multiplies halves with kernels of its own.
    older = {name for name in built["sm_75"] if not name.startswith(("matmul", "grouped_matmul"))}
    for target in TARGETS[1:]:
        assert built[target] == built["sm_80"]
        assert older <= built[target]


def test_names_follow_the_rule(kernels):
    for kernel in kernels:
        op = kernel["file"].split("_")[0]
        assert re.fullmatch(rf"(grouped_)?{op}(_[a-z0-9]+)+", kernel["kernel"]), kernel["kernel"]
