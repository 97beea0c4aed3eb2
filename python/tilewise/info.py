"""`python -m tilewise.info`: what is installed and which devices tilewise sees. Never raises, stdlib only.

The file also runs by itself (`python .../tilewise/info.py`), for when `import tilewise` is what fails.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "cupy",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "jax",
    "quack-kernels",
    "liger-kernel",
)
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "LD_LIBRARY_PATH",
    "TILEWISE_LOG",
    "TILEWISE_NVTX",
    "TILEWISE_NATIVE_OPERATORS",
    "NVTX_INJECTION64_PATH",
    "TILEWISE_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "OMP_NUM_THREADS",
)


def collect() -> dict[str, Any]:
    """Every fact of the report as plain data; a probe that fails leaves its reason in its place."""
    return {
        "tilewise": _guarded(_tilewise),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": _guarded(platform.platform),
        "cpu": _guarded(_cpu),
        "packages": _guarded(_packages),
        "driver": _guarded(_driver),
        "devices": _guarded(_devices),
        "libraries": _guarded(_libraries),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def report() -> str:
    """The facts as text, one a line."""
    return "\n".join(_lines(collect()))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tilewise.info",
        description="What is installed and which devices tilewise sees, as text for a bug report.",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    if parser.parse_args(arguments).json:
        print(json.dumps(collect(), indent=2, default=str))
    else:
        print(report())
    return 0


def _guarded(probe: Callable[[], Any]) -> Any:
    try:
        return probe()
    except Exception as error:  # the report is for machines where things are broken
        return f"unknown ({type(error).__name__}: {error})"


def _tilewise() -> dict[str, Any]:
    module = importlib.import_module("tilewise")
    build = module.build_info()
    return {
        "version": build["version"],
        "location": os.path.dirname(str(module.__file__)),
        "nvcc": build["nvcc"] or "none",
        "targets": _targets(build),
        "kernels": len({kernel["kernel"] for kernel in build["kernels"]}),
    }


def _targets(build: dict[str, Any]) -> str:
    targets = ", ".join(build["targets"])
    if build["emulated"]:
        return f"{targets}: most by name only, as this build is for the tests"
    return targets or "none: this build is for CPUs only"


def _cpu() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {usable} cores usable"


def _packages() -> dict[str, str]:
    # By metadata: importing torch to read its version would take seconds.
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _driver() -> dict[str, Any]:
    """The CUDA driver library: whether it loads, which CUDA it supports, and the kernel module's version."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return {"library": f"not present ({error})"}
    version = ctypes.c_int()
    status = library.cuDriverGetVersion(ctypes.byref(version))
    cuda = (
        f"{version.value // 1000}.{version.value % 1000 // 10}"
        if status == 0
        else f"unknown (status {status})"
    )
    return {"library": name, "supports CUDA": cuda, "version": _guarded(_driver_version)}


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]


def _devices() -> dict[str, Any]:
    """The memory hierarchy of each device, from the registers out."""
    described = {}
    for device in importlib.import_module("tilewise").devices():
        capability = ".".join(map(str, device["compute_capability"]))
        rate, clock = device["memory_bytes_per_second"], device["clock_hz"]
        described[f"cuda:{device['index']}"] = {
            "name": device["name"],
            "compute capability": capability,
            "runs": ", ".join(device["targets"])
            or f"nothing of this build (build with TILEWISE_CUDA_TARGETS={capability} or =all)",
            "multiprocessors": f"{device['multiprocessors']}"
            + (f" at {clock / 1e9:.2f} GHz" if clock else ""),
            "each has": f"{device['threads']} threads, {device['blocks']} blocks, "
            f"{device['registers']} registers, {device['shared_bytes'] // 1024} KiB of shared memory "
            f"({device['shared_bytes_per_block'] // 1024} KiB for one block)",
            "L2": f"{device['l2_bytes'] / 2**20:.0f} MiB",
            "memory": f"{device['memory_bytes'] / 2**30:.0f} GiB"
            + (f", {rate / 1e9:.0f} GB/s" if rate else ""),
        }
    return described


def _libraries() -> list[str]:
    """NVIDIA's and torch's libraries in this process: two copies of one explain many a report."""
    maps = Path("/proc/self/maps")
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines()} if maps.exists() else set()
    names = ("libcuda", "libcudart", "libnvrtc", "libcublas", "libtorch", "libc10", "_core.")
    return sorted(path for path in paths if Path(path).name.startswith(names))


def _lines(facts: Mapping[str, Any], indent: str = "") -> list[str]:
    width = max((len(str(name)) for name in facts), default=0)
    lines = []
    for name, value in facts.items():
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{name}", *_lines(value, indent + "  ")]
        elif isinstance(value, (list, tuple)) and value and not isinstance(value[0], (int, float)):
            lines += [f"{indent}{name}", *(f"{indent}  {item}" for item in value)]
        else:
            lines.append(
                f"{indent}{str(name).ljust(width)}  {value if value not in ({}, [], ()) else 'none'}"
            )
    return lines


class _CallableModule(types.ModuleType):
    """Importing this module binds it to `tilewise.info`, over the function of that name: it acts as both."""

    def __call__(self) -> str:
        return report()


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main())
