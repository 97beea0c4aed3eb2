"""Mistakes among the blocks of a cluster, each of which the emulator must find, in pairs.cu."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import host_build
import pytest

HERE = Path(__file__).parent
SOURCE = HERE / "pairs.cu"
ITEMS = 7
SEEDS = range(24)

# What is said of each mistake with some seed; none of them goes unnoticed with all.
GONE = "which has not begun, or has returned|are on their way|still sends to it"
FOUND = {
    "no_fence": "of its cluster, which has not initialised that, or not fenced since",
    "others_not_waited_for": f"wrong|nobody can go on|{GONE}",
    "leaves_early": GONE,
    "box_outside_of_cluster": "a multicast to blocks 0x5 of a cluster of 2",
    "arrives_outside_of_cluster": "asks for block 2 of a cluster of 2",
    "arrives_at_no_barrier": "no mbarrier was initialised|has not initialised that",
    "arrives_at_returned": f"{GONE}|nobody can go on",
    "announces_too_much": r"nobody can go on: .* wait in mbarrier.try_wait at .*pairs.cu:\d+",
    "address_as_own": "does not lie in the block's shared memory",
    "waits_for_nobody": "may begin before the launch before it is done, and does not wait for it",
}


def outcome(cuda: ctypes.CDLL, mistake: int, seed: int, early: bool) -> str:
    """Launches the kernel of pairs.cu in this process."""

    class Params(ctypes.Structure):
        _fields_ = (
            ("map", ctypes.c_char * 128),
            ("out", ctypes.c_void_p),
            ("items", ctypes.c_uint32),
            ("mistake", ctypes.c_uint32),
            ("unused", ctypes.c_char * 48),
        )

    class Config(ctypes.Structure):
        _fields_ = (
            ("words", ctypes.c_uint32 * 7),
            ("stream", ctypes.c_void_p),
            ("attributes", ctypes.c_void_p),
            ("count", ctypes.c_uint32),
        )

    assert cuda.cuInit(0) == 0
    rows, of_row = ITEMS * 8, 32
    memory = (ctypes.c_uint32 * (3 * rows * of_row + 32))()
    start = ctypes.addressof(memory) + -ctypes.addressof(memory) % 64
    numbers = (ctypes.c_uint32 * (rows * of_row)).from_address(start)
    results = (ctypes.c_uint32 * (2 * rows * of_row)).from_address(start + ctypes.sizeof(numbers))
    numbers[:] = range(1, rows * of_row + 1)
    kept = ctypes.create_string_buffer(ctypes.sizeof(Params) + 64)
    params = Params.from_address(ctypes.addressof(kept) + -ctypes.addressof(kept) % 64)
    sizes, strides = (ctypes.c_uint64 * 2)(of_row, rows), (ctypes.c_uint64 * 1)(of_row * 4)
    box, steps = (ctypes.c_uint32 * 2)(of_row, 4), (ctypes.c_uint32 * 2)(1, 1)
    at = ctypes.c_void_p(ctypes.addressof(params))
    assert cuda.cuTensorMapEncodeTiled(at, 2, 2, numbers, sizes, strides, box, steps, 0, 0, 0, 0) == 0
    params.out, params.items, params.mistake = ctypes.addressof(results), ITEMS, mistake
    function = ctypes.c_void_p()
    assert cuda.cuModuleGetFunction(ctypes.byref(function), None, b"pairs") == 0
    cuda.emulator_seed(ctypes.c_uint64(seed))
    attributes = ((ctypes.c_uint32 * 18) * 2)((4, 0, 2, 1, 1), (6, 0, 1))
    config = Config((2, 1, 1, 96, 1, 1, 4096), None, ctypes.addressof(attributes), 1 + early)
    pointers = (ctypes.c_void_p * 1)(at)
    code = cuda.cuLaunchKernelEx(ctypes.byref(config), function, pointers, None)
    if code != 0:
        why = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(why))
        return why.value.decode()
    return "right" if list(results) == 2 * list(numbers) else "wrong"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Of a mistake, by seed: in another process, for other tests shall meet no emulated driver."""
    try:
        host_build.compiler()
    except host_build.Unavailable as why:
        pytest.skip(str(why))
    kernels = tmp_path_factory.mktemp("pairs") / "pairs.so"
    host_build.OUT.mkdir(parents=True, exist_ok=True)
    host_build.compile_kernels(SOURCE, 90, kernels, host_build.runtime())
    names = re.findall(r"^    (\w+),", SOURCE.read_text().split("enum Mistake")[1], re.MULTILINE)

    def of(mistake):
        command = [sys.executable, __file__, host_build.OUT / "libcuda.so.1", kernels]
        command += [names.index(mistake), int(mistake == "waits_for_nobody")]
        environment = {**os.environ, "TILEWISE_EMULATED_DEVICE": "h200"}
        done = subprocess.run(map(str, command), env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return of


def test_two_blocks_load_for_each_other(outcomes):
    assert set(outcomes("none")) == {"right"}


@pytest.mark.parametrize("mistake", FOUND)
def test_a_mistake_is_found(outcomes, mistake):
    found = outcomes(mistake)
    assert any(text != "right" for text in found)
    for text in found:
        assert text == "right" or re.search(FOUND[mistake], text)


if __name__ == "__main__":
    driver, compiled = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL), ctypes.CDLL(sys.argv[2])
    for seed in SEEDS:
        print(outcome(driver, int(sys.argv[3]), seed, sys.argv[4] == "1"))
