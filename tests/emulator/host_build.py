"""Compiles the kernels for the host, and the stand-in for the driver that runs them.

python tests/emulator/host_build.py [h200|a100|t4...] [--without float16,...]

prints the folder to put on LD_LIBRARY_PATH.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "target" / "emulator"

# The compute capability of each device of runtime/devices.cpp.
DEVICES = {"h200": 90, "a100": 80, "l4": 89, "b200": 100, "rtx5090": 120, "t4": 75}

# A dtype's name in a kernel's, and in the lines that instantiate its kernels: EXPORT(f16, f32, f16_f32).
DTYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}

# Kernels look at memory as any type, and count on integers that wrap, as nvcc lets them.
FLAGS = ["-std=c++17", "-g1", "-fPIC", "-fvisibility=hidden"]
FLAGS += ["-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off"]
KERNEL_FLAGS = [
    *["-O1", "-fno-extern-tls-init", "-Wno-unknown-pragmas"],
    "-ftrivial-auto-var-init=pattern",  # a variable that was not set holds a large number
    *["-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"],
]
INSTRUCTIONS = {"fma": "-mfma", "avx2": "-mavx2"}

# What a kernel is and where its dynamic shared memory is, for KERNEL and DYNAMIC to find.
MARKS = [
    "-D__global__=EMULATOR_KERNEL",
    "-D__shared__=EMULATOR_SHARED",
    "-D__launch_bounds__(...)=EMULATOR_BOUNDS(__VA_ARGS__)",
    *["-x", "c++", "-E", "-P"],
]
BOUNDS = r"EMULATOR_BOUNDS\((.*?)\)"
KERNEL = re.compile(rf"EMULATOR_KERNEL\s+void\s+(?:{BOUNDS}\s*)?(\w+)\s*\(\s*const\b", re.DOTALL)
DYNAMIC = re.compile(r"extern\s+EMULATOR_SHARED\s[^;]*?(\w+)\s*\[\s*\]\s*;")


class Unavailable(Exception):
    """Why there can be no emulator here."""


def compiler() -> list[str]:
    path = shutil.which(os.environ.get("CXX", "g++"))
    if path is None:
        raise Unavailable("no g++ to compile the kernels for the host with")
    if not sys.platform.startswith("linux"):
        raise Unavailable("the emulator is for Linux")
    try:
        features = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].splitlines()[0].split()
    except (OSError, IndexError):
        features = []
    return [path, *FLAGS, *(flag for name, flag in INSTRUCTIONS.items() if name in features)]


def digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def run(command: list[object]) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def replace_link(link: Path, to: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_suffix(f".{os.getpid()}")
    new.symlink_to(to)
    new.rename(link)


def cached(output: Path, key: str, make: Callable[[Path], object]) -> Path:
    """`make(path)` unless there is an output of this key; whole or not at all."""
    kept = OUT / "cache" / f"{output.stem}-{key}.so"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(f".{os.getpid()}")
        make(unfinished)
        unfinished.rename(kept)
    replace_link(output, kept)
    return output


def staged_kernels(folder: Path, without: Collection[str]) -> Path:
    """The kernels' folder without common/ptx: a header looks in its own folder first, so that what shall be
    replaced must not be there. And without the kernels of some dtypes."""
    known = {p.name for p in (HERE / "include/ptx").iterdir()}
    missing = {p.name for p in (ROOT / "kernels/common/ptx").iterdir()} - known
    if missing:
        raise RuntimeError(f"tests/emulator/include/ptx has no counterpart of {', '.join(sorted(missing))}")
    stage = folder / "kernels"
    shutil.rmtree(stage, ignore_errors=True)
    shutil.copytree(ROOT / "kernels", stage, ignore=shutil.ignore_patterns("ptx", "*.md"))
    for dtype in without:
        of_dtype = re.compile(rf"^[A-Z_]+\(.*\b{DTYPES[dtype]}\b.*\)$", re.MULTILINE)
        for file in stage.glob("*.cu"):
            file.write_text(of_dtype.sub("", file.read_text()))
    return stage


def runtime(folder: Path = OUT) -> Path:
    sources = sorted((HERE / "runtime").glob("*.cpp"))
    headers = [*HERE.glob("runtime/*.h"), *HERE.glob("include/*.h")]
    # Of tensor cores' products, which are exact, sums may be fused.
    command = [*compiler(), *["-O3", "-flto", "-ffp-contract=fast", "-Wall"]]
    command += ["-shared", "-pthread", "-Wl,-soname,libcuda.so.1"]
    key = digest(command, *(p.read_text() for p in sorted([*sources, *headers])))
    library = cached(folder / "libcuda.so.1", key, lambda to: run([*command, *sources, "-ldl", "-o", to]))
    replace_link(folder / "libcuda.so", library)  # the first name that tilewise asks for
    return library


def registration(file: Path, preprocessed: str) -> str:
    """A translation unit: the kernel file, its dynamic shared memory by each name, its kernels' names."""
    names = sorted({*DYNAMIC.findall(preprocessed), "emulator_dynamic"})
    labels = "".join(f".globl {n}\n.hidden {n}\n.type {n}, @tls_object\n{n}:\n" for n in names)
    section = f'.pushsection .tbss.emulator, "awT", @nobits\n.balign 1024\n{labels}.zero 262144\n.popsection'
    lines = [
        '#include "cuda_device.h"',
        f'#include "{file.name}"',
        '#include "register.h"',
        f'asm(R"({section})");',
        "extern thread_local unsigned char emulator_dynamic[];",
        "static unsigned char* dynamic() { return emulator_dynamic; }",
        "static const emulator::Registration kernels[] = {",
        *(f'    {{"{n}", {{{b}}}, dynamic, {n}}},' for b, n in KERNEL.findall(preprocessed)),
        "};",
    ]
    return "\n".join(lines) + "\n"


def target(file: Path, capability: int) -> int | None:
    """The newest of the file's targets whose machine code the device runs, as that for 9.0a on 9.0 alone."""
    line = file.read_text().splitlines()[0]
    found = [(int(n), exact) for n, exact in re.findall(r" (\d+)(a?)\b", line)]
    first = capability // 10 * 10
    return max(
        (n for n, exact in found if n == capability or (not exact and first <= n < capability)), default=None
    )


def kernel_file(file: Path, capability: int, library: Path) -> None:
    arch = target(file, capability)
    output = library.parent / f"sm_{capability}" / f"{file.stem}.so"
    if arch is None:
        output.unlink(missing_ok=True)
        return
    compile_kernels(file, arch, output, library)


def compile_kernels(file: Path, arch: int, output: Path, library: Path) -> None:
    folders = [file.parent, file.parent / "common", HERE / "include"]
    command = [*compiler(), *(f"-I{folder}" for folder in folders), f"-D__CUDA_ARCH__={arch}0"]
    preprocessed = run([*command, *MARKS, file])
    unit = OUT / "units" / f"{file.stem}.{arch}.cpp"
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text(registration(file, preprocessed))
    headers = [p.read_text() for p in sorted(HERE.glob("include/**/*")) if p.is_file()]
    # The architecture is in there as far as it makes a difference.
    key = digest(compiler(), KERNEL_FLAGS, preprocessed, unit.read_text(), *headers)
    command += [*KERNEL_FLAGS, "-shared", unit, library]
    cached(output, key, lambda to: run([*command, "-o", to]))


def build(device: str = "h200", operation: str = "", without: Collection[str] = ()) -> Path:
    """The folder with libcuda.so.1 and the kernels that `device` runs: of one operation or of all, but of no
    dtype of `without`. What is there already is built no second time."""
    import fcntl  # only Linux has an emulator, but all look at its tests

    folder = OUT / "-".join(["without", *sorted(without)] if without else ["all"])
    folder.mkdir(parents=True, exist_ok=True)
    with (OUT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be building
        library = runtime(folder)
        kernels = staged_kernels(folder, without)
        for output in folder.glob("sm_*/*.so"):
            # Kernels of a file that is gone would be found beside others of their name.
            if not (kernels / f"{output.stem}.cu").exists():
                output.unlink()
        files = sorted(kernels.glob(f"{operation}*.cu"))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda file: kernel_file(file, DEVICES[device], library), files))
    return folder


def environment(
    device: str, multiprocessors: str, operation: str = "", without: Collection[str] = ()
) -> dict[str, str]:
    """What a process needs to find this device, once it is built."""
    folders = [str(build(device, operation, without)), os.environ.get("LD_LIBRARY_PATH")]
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)),
        "TILEWISE_EMULATED_DEVICE": device,
        "TILEWISE_EMULATED_MULTIPROCESSORS": multiprocessors,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", nargs="?", default="h200", choices=DEVICES)
    parser.add_argument("--without", default="", help="these dtypes, as float16,float64")
    chosen = parser.parse_args()
    try:
        print(build(chosen.device, without=list(filter(None, chosen.without.split(",")))))
    except Unavailable as why:  # nor do its tests run
        print(why)
