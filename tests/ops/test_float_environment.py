"""What a thread says of subnormal numbers and of rounding holds for all that compute for it.

Neither an earlier call nor another thread has a say.
"""

import json
import platform
from itertools import pairwise, permutations
from pathlib import Path

import pytest
import torch
from support import fresh

# To nearest, upward, downward, towards zero.
ROUNDING = {"x86_64": [0, 0x800, 0x400, 0xC00], "aarch64": [0, 0x400000, 0x800000, 0xC00000]}
ROUNDING = ROUNDING.get(platform.machine())

pytestmark = pytest.mark.skipif(
    ROUNDING is None or not torch.set_flush_denormal(False), reason="the modes of this machine are not known"
)

MODES = ["gradual", "flush", "upward"]

# AMX, and AVX512-BF16 where it is used (not on Intel's CPUs), have neither subnormal numbers nor modes.
CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
AVX512_BF16 = "avx512_bf16" in CPU and "GenuineIntel" not in CPU
WITHOUT_MODES = {"matmul torch.bfloat16"} if AVX512_BF16 or "amx_bf16" in CPU else set()
if AVX512_BF16:
    WITHOUT_MODES.add("matrix times vector torch.bfloat16")

# Sizes just large enough for threads: subnormal numbers are slow. Inputs are made of bits, since arithmetic
# on them would depend on the mode.
WORK = """
    import ctypes, hashlib, json, threading
    import torch
    import tilewise as tw

    torch.set_num_threads(THREADS)
    tw._core.withhold_torch_threads(WITHHELD)
    libm = ctypes.CDLL("libm.so.6")

    def mode(name):
        torch.set_flush_denormal(name == "flush")
        libm.fesetround(ROUNDING[name == "upward"])

    INTEGERS = {
        torch.float16: (torch.int16, 10), torch.bfloat16: (torch.int16, 7),
        torch.float32: (torch.int32, 23), torch.float64: (torch.int64, 52),
    }

    def numbers(dtype, exponent, *shape):
        '''Random ones of four neighbouring exponents, of which 0 is that of subnormal numbers.'''
        integer, fraction = INTEGERS[dtype]
        generator = torch.Generator().manual_seed(sum(shape))
        drawn = torch.randint(exponent << fraction, exponent + 4 << fraction, shape, generator=generator)
        return drawn.to(integer).view(dtype)

    # The exponent of numbers whose squares are subnormal; float16 has none.
    SMALL = {torch.float16: 8, torch.bfloat16: 60, torch.float32: 60, torch.float64: 500}
    # As far below the maximum as makes exponentials subnormal.
    LOW = {torch.float16: -16, torch.bfloat16: -96, torch.float32: -96, torch.float64: -720}

    def calls(dtype):
        x, y = numbers(dtype, 0, 2048, 1024), numbers(dtype, 0, 2048, 1024).flip(0)
        low = torch.full((256, 1024), LOW[dtype], dtype=dtype)
        low[:, 1::3] += torch.arange(341).fmod(8).to(dtype)
        rows, long = low.clone(), low.view(2, -1)
        rows[:, 0] = 0
        long[:, 0] = 0
        grad, output = (numbers(dtype, SMALL[dtype], 256, 1024 + i)[:, i:] for i in (0, 1))
        a, b = numbers(dtype, SMALL[dtype], 160, 192), numbers(dtype, SMALL[dtype], 192, 192)
        deep, bias = numbers(dtype, SMALL[dtype], 32, 20_000), numbers(dtype, 0, 192)
        silu = dict(activation="silu", saved_is="pre_activation", bias=True)
        yield "add", lambda: tw.add(x, y, alpha=0.75)
        yield "add number", lambda: tw.add(x, 0.0)
        yield "add transposed", lambda: tw.add(x[:512], y.view(1024, 2048).T[:512, :])
        yield "softmax", lambda: tw.softmax(rows)
        yield "softmax of columns", lambda: tw.softmax(rows.T.contiguous(), 0)
        yield "softmax of long rows", lambda: tw.softmax(long)
        yield "softmax of long columns", lambda: tw.softmax(long.view(-1, 16), 0)
        yield "log_softmax", lambda: tw.log_softmax(rows)
        yield "softmax_backward", lambda: tw.softmax_backward(grad, output)
        yield "softmax_backward of columns", lambda: tw.softmax_backward(grad, output, 0)
        yield "log_softmax_backward", lambda: tw.log_softmax_backward(x[:256], rows)
        yield "activation_backward", lambda: tw._core.activation_backward(x[:1024], y[:1024], **silu)
        yield "matmul", lambda: tw.matmul(a, b)
        yield "matmul of a transposed matrix", lambda: tw.matmul(a, b.T)
        yield "matmul with bias", lambda: tw.matmul(a, b, bias=bias, activation="gelu")
        yield "matmul of batches", lambda: tw.matmul(a[:32].expand(8, -1, -1), b)
        yield "matrix times vector", lambda: tw.matmul(deep, deep[0])
        yield "vector times matrix", lambda: tw.matmul(deep[:, 0], deep)

    def digests(name):
        '''Of each result.'''
        mode(name)
        found = {}
        for dtype in DTYPES:
            for what, call in calls(dtype):
                got = call()
                for result in got if isinstance(got, tuple) else (got,):
                    data = result.contiguous().view(torch.uint8).numpy().tobytes()
                    found[f"{what} {dtype}"] = hashlib.sha256(data).hexdigest()
        return found
"""


def run(code, threads, withheld=True):
    """On torch's threads, or with those withheld on tilewise's own; one thread is torch's.

    Two dtypes are enough for torch's: how threads get their modes differs between pools, not between dtypes.
    """
    code = WORK + code
    for name, value in {
        "ROUNDING": ROUNDING,
        "WITHHELD": withheld,
        "THREADS": 1 if withheld else threads,
        "DTYPES": "list(INTEGERS)" if withheld else "[torch.float32, torch.bfloat16]",
    }.items():
        code = code.replace(name, str(value))
    # A fork has none of torch's threads.
    in_a_process = fresh.run_after_torch if withheld else fresh.run
    return json.loads(in_a_process(code, RAYON_NUM_THREADS=str(threads)))


pools = pytest.mark.parametrize("withheld", [True, False], ids=["own", "torch"])


@pytest.fixture(scope="module")
def serial():
    """By mode, what a thread computes that has no others."""
    return run(f"    print(json.dumps({{name: digests(name) for name in {MODES}}}))", 1)


def assert_serial(found, serial, context):
    wrong = [key for key, digest in found.items() if digest != serial[key]]
    assert not wrong, f"{context}: {wrong}"


def test_modes_make_a_difference(serial):
    for dtype in ("bfloat16", "float32", "float64"):
        for what in (
            "add",
            "softmax",
            "softmax of long rows",
            "softmax_backward",
            "matmul",
            "matrix times vector",
        ):
            key = f"{what} torch.{dtype}"
            if key in WITHOUT_MODES:
                continue
            assert serial["gradual"][key] != serial["flush"][key], key
            assert serial["gradual"][key] != serial["upward"][key] or dtype == "bfloat16", key


@pools
def test_many_threads_compute_what_one_does_in_each_mode_after_any_other(serial, withheld):
    order = [*MODES, *MODES[1::-1], MODES[2], MODES[0]]
    assert set(pairwise(order)) == set(permutations(MODES, 2))
    rounds = run(f"    print(json.dumps([digests(name) for name in {order}]))", 4, withheld)
    for i, (name, found) in enumerate(zip(order, rounds, strict=True)):
        assert_serial(found, serial[name], f"{name} after {order[:i]}")


@pools
def test_threads_of_different_modes_at_once(serial, withheld):
    code = f"""
    found = {{}}
    def work(name):
        found[name] = [digests(name) for _ in range(2)]
    threads = [threading.Thread(target=work, args=[name]) for name in {MODES}]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(found))
    """
    for name, rounds in run(code, 4, withheld).items():
        for found in rounds:
            assert_serial(found, serial[name], f"{name} beside others")


def test_a_pool_serves_every_set_of_modes():
    code = """
    x, y = numbers(torch.float32, 120, 2048, 1024), numbers(torch.float32, 100, 2048, 1024).flip(0)
    x = torch.cat([x[:1024], -x[1024:]])
    found, threads = [], []
    for _ in range(2):
        for flush in (False, True):
            for direction in ROUNDING:
                torch.set_flush_denormal(flush)
                libm.fesetround(direction)
                got = tw.add(x, y).numpy().tobytes()
                threads.append(tw.explain(tw.add, x, y).cpu.threads)
                found.append(hashlib.sha256(got).hexdigest())
    print(json.dumps([found, threads]))
    """
    alone, _ = run(code, 1)
    found, threads = run(code, 4)
    assert found == alone
    # Sums of normal numbers: flushing does not matter, each direction does.
    assert len(set(found)) == len(ROUNDING)
    assert threads == [4] * 16
