"""The CUDA kernels on a CPU: all of them launched by tilewise's functions, results compared with torch."""

import os
import subprocess
import sys
from pathlib import Path

import host_build
import pytest
import tilewise as tw

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif("TILEWISE_EMULATED_DEVICE" in os.environ, reason="this is the emulator")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def compiler():
    try:
        host_build.compiler()
    except host_build.Unavailable as why:
        pytest.skip(str(why))


def python(*arguments, **environment):
    where = os.pathsep.join([str(Path(tw.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": where, **environment}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


# The kernels of float16 are those of bfloat16 by another type: each device runs one of them. A T4 has neither
# cp.async nor tensor cores that the kernels use: other code for the same names.
@pytest.mark.parametrize(
    ("device", "without", "cases"),
    [
        ("h200", "float16", ""),
        ("t4", "bfloat16,float32,float64", "softmax torch.float16 to torch.float16"),
        ("t4", "bfloat16,float32,float64", "matmul torch.float16"),
    ],
)
def test_every_kernel_is_launched_and_right(compiler, device, without, cases):
    runner = Path(__file__).with_name("run_cases.py")
    assert " 0 wrong" in python(runner, "-d", device, "--without", without, cases)


# Out tensors between guards, views of all kinds, every variant with special values: small enough for a CPU.
# Each process imports torch once for all its files. Some also without float64, whose kernels run in the calls
# above as those of all dtypes do.
TWO_DTYPES, NO_FLOAT16 = "not float16 and not float64 or bfloat16", "bfloat16 or not float16"
MEMORY = "ops/test_out.py ops/test_empty.py ops/test_views.py cuda/test_softmax_variants.py"
SPLIT = "cuda/test_matmul_skinny.py cuda/test_matmul_copied.py cuda/test_matmul_bf16x6.py"
FEW = "cuda/test_matmul_few.py cuda/test_matmul_wgmma_few.py cuda/test_matmul_splitk.py"
OTHERS = "cuda/test_matmul_dmma.py cuda/test_matmul_wgmma_tf32.py cuda/test_matmul_wgmma.py"
OWN_TESTS = [(f"{MEMORY} {SPLIT}", TWO_DTYPES), (f"{FEW} {OTHERS}", NO_FLOAT16)]


@pytest.mark.parametrize(("tests", "chosen"), OWN_TESTS)
def test_the_operations_own_tests(compiler, tests, chosen):
    environment = host_build.environment("h200", "4", without=["float16"])
    files = [f"tests/{file}" for file in tests.split()]
    python("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen, *files, **environment)


REFUSED = """
import sys
sys.path[:0] = ["tests", "tests/emulator"]
import arrays, operations, tilewise, torch
operations.install()
tilewise._core.force_softmax("grid", 4)
x = torch.randn(1, 20_000)
for _ in range(2):
    torch.testing.assert_close(tilewise.softmax(x), torch.softmax(x, -1))
print([kernel for kernel, count in arrays.launches().items() if count])
"""


@pytest.mark.parametrize(("partition", "kernel"), [("0", "softmax_grid"), ("3", "softmax_cluster")])
def test_where_a_launch_gets_a_part_of_the_device_blocks_do_not_wait_for_each_other(
    compiler, partition, kernel
):
    """As in a green context, of whose multiprocessors the device's facts say nothing."""
    environment = host_build.environment("h200", "4", without=["float16"])
    environment["TILEWISE_EMULATED_PARTITION"] = partition
    assert f"['{kernel}" in python("-c", REFUSED, **environment)
