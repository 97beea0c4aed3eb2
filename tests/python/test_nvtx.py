"""TILEWISE_NVTX=1: a range for each operation, for whatever profiler NVTX_INJECTION64_PATH names."""

import shutil
import subprocess

import pytest
from support import fresh

# A profiler: prints what is pushed and popped. NVTX's own headers would hand it the same tables.
PROFILER = """
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
typedef void (*Function)(void);
typedef int (*ModuleTable)(int, Function***, unsigned*);
struct Callbacks { size_t bytes; ModuleTable table; };
struct Version { size_t bytes; uint32_t version, reserved; void (*set)(uint32_t); };
static int depth;
static int push(const char* name) { return printf("%*s%s\\n", 2 * depth++, "", name), fflush(stdout), depth; }
static int pop(void) { return printf("%*send\\n", 2 * --depth, ""), fflush(stdout), depth; }
int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
    const struct Callbacks* callbacks = export_table(1);
    const struct Version* version = export_table(3);
    version->set(3);
    Function** table;
    unsigned size;
    const int sizes[7] = {0, 16, 9, 15, 7, 16, 7};
    for (int module = 1; module <= 6; ++module) {
        if (!callbacks->table(module, &table, &size) || size != sizes[module]) abort();
        if (table[0] || table[size]) abort();
        for (unsigned i = 1; i < size; ++i) *table[i] = abort;
        if (module == 1) {
            *table[9] = (Function)push;
            *table[11] = (Function)pop;
        }
    }
    if (callbacks->table(0, &table, &size) || callbacks->table(7, 0, 0) || export_table(2)) abort();
    if (callbacks->bytes != sizeof *callbacks || version->bytes != sizeof *version) abort();
    printf("attached\\n"), fflush(stdout);
    return getenv("NOT_READY") == NULL;
}
"""
CALLS = """
import numpy as np, tilewise as tw
from tilewise import _core
x = np.ones((2, 3), "float32")
tw.add(x, 2)
tw.log_softmax(x)
tw.matmul(x, x.T)
tw.softmax_backward(x, x)
_core.activation_backward(x, x, "relu")
try:
    tw.add(x, x[:, :2])
except tw.ShapeError:
    print("refused", flush=True)
tw.softmax(x[:0])
"""
RANGES = """attached
tilewise.add (6,) float32 + number -> float32
end
tilewise.log_softmax 2 rows of 3 float32 -> float32
end
tilewise.matmul 2 x 2 x 3 float32
end
tilewise.softmax_backward 2 rows of 3 float32 -> float32
end
tilewise.activation_backward 2 x 3 float32
end
refused
tilewise.softmax 0 rows of 3 float32 -> float32
end
"""


@pytest.fixture(scope="module")
def profiler(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvtx")
    (folder / "profiler.c").write_text(PROFILER)
    library = folder / "libprofiler.so"
    command = [compiler, "-shared", "-fPIC", "-o", library, folder / "profiler.c"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def test_every_operation_is_a_range_of_its_own(profiler):
    assert fresh.run(CALLS, TILEWISE_NVTX="1", NVTX_INJECTION64_PATH=profiler) == RANGES


@pytest.mark.parametrize("wish", [None, "", "0"])
def test_nothing_is_loaded_unless_asked_for(profiler, wish):
    assert fresh.run(CALLS, TILEWISE_NVTX=wish, NVTX_INJECTION64_PATH=profiler) == "refused\n"


def test_asked_for_without_a_profiler(profiler):
    assert fresh.run(CALLS, TILEWISE_NVTX="1", NVTX_INJECTION64_PATH=None) == "refused\n"
    seen = fresh.run(CALLS, TILEWISE_NVTX="1", NVTX_INJECTION64_PATH=profiler, NOT_READY="1")
    assert seen == "attached\nrefused\n"


def test_a_profiler_that_is_not_there_is_reported_once(tmp_path):
    code = "import os; os.dup2(1, 2)\n" + CALLS
    seen = fresh.run(code, TILEWISE_NVTX="1", NVTX_INJECTION64_PATH=tmp_path / "none.so").splitlines()
    assert len(seen) == 2
    assert seen[0].startswith(f"tilewise: no NVTX ranges, by {tmp_path}/none.so: ")
